"""Comparisons with the papers, one command each: ``python -m studies NAME OUT``."""
