"""``fl-lightning watch``: a page of runs that is refreshed while they run, served only to this machine."""
