"""The version of the code that made a run."""

import subprocess
from functools import cache
from pathlib import Path
from shutil import which

_HERE = Path(__file__).parent.parent
_CODE = ("fl_lightning", "callbacks", "configs")  # a study writes its results into the checkout that it runs from
_RECORDED = _HERE / "commit.txt"  # by setup.py, when the package is built


@cache
def commit() -> str | None:
    """The commit of the package as 40 hexadecimal digits, with ``-dirty`` appended if the checkout has other code.

    Read once from git if the package runs in its checkout, else from the build's record; None without either.
    """
    if (_HERE.parent / ".git").exists() and which("git"):
        head = _git("describe", "--always", "--abbrev=40", "--exclude=*")
        is_changed = _git("status", "--porcelain", "--untracked-files=no", "--", *_CODE)
        return f"{head}-dirty" if head and is_changed else head or None  # empty if git distrusts another user's checkout
    return _RECORDED.read_text(encoding="utf-8").strip() if _RECORDED.is_file() else None


def _git(*arguments: str) -> str:
    asked = subprocess.run(["git", "-C", str(_HERE.parent), *arguments], capture_output=True, text=True, check=False)
    return asked.stdout.strip()
