"""``fl-lightning report``: from the logs of many runs to tables, figures and one page."""
