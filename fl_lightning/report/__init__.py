"""``fl-lightning report``: from the logs of many runs to tables, figures and one page. ``load_runs``: to a data frame."""

from lazy_loader import attach

# pandas is an extra, which a report does not need.
__getattr__, __dir__, __all__ = attach(__name__, submod_attrs={"data_frame": ["load_runs"]})
