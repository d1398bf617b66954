"""Declarations of studies, a module a paper. Their settings stand fixed before the first run."""
