"""Federated learning on PyTorch Lightning that shows what a model forgets."""

from pathlib import Path

from lazy_loader import attach_stub

# torch and Lightning take seconds to import: only what is asked for is, and the command line can answer --help before.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

# In the source tree callbacks/ and configs/ are folders next to this one: a python that starts there finds them as well.
if not (Path(__file__).parent / "callbacks").is_dir():
    __path__.append(str(Path(__file__).parent.parent))
