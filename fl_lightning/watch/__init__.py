"""``fl-lightning watch``: a page of runs that goes on as they do, served to this machine alone."""
