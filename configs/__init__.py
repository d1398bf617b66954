"""Bundled configs, found by bare name: ``--config digits_tce.yaml``."""
