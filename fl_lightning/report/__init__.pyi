# What fl_lightning/report/__init__.py offers, for type checkers: it imports it where it is first used.
from .data_frame import load_runs as load_runs
