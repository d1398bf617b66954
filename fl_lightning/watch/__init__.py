"""``fl-lightning watch``: a page of runs that is refreshed as they go on, served only to this machine."""
