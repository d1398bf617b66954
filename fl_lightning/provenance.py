"""Which code a run was made with."""

import subprocess
from functools import cache
from pathlib import Path
from shutil import which

_HERE = Path(__file__).parent
_RECORDED = _HERE / "commit.txt"  # by setup.py, when the package is built


@cache
def commit() -> str | None:
    """The commit of the package as 40 hexadecimal digits, with ``-dirty`` behind them where the checkout has other code.

    Asked of git once where the package runs in its checkout, else read from what the build recorded; None where neither says.
    """
    if (_HERE.parent / ".git").exists() and which("git"):
        describe = ["git", "-C", str(_HERE), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        asked = subprocess.run(describe, capture_output=True, text=True, check=False)
        return asked.stdout.strip() or None  # nothing where git distrusts a checkout of another user
    return _RECORDED.read_text(encoding="utf-8").strip() if _RECORDED.is_file() else None
