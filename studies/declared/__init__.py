"""Declarations of studies, a module a paper. Their settings are fixed before the first run."""
