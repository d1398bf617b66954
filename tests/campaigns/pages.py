"""Fenced blocks of README.md and docs/, and the commands in them as a shell reads them."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

# Programs write their arguments to descriptor 3 and do nothing; those that start others lead to them.
_PROGRAMS = r"""
record() { local line; printf -v line '%s\037' "$@"; printf '%s\036' "$line" >&3; }
programs="fl-lightning pip python python3 pytest tensorboard flower-superlink flower-supernode flwr ssh-keygen"
for name in $programs; do eval "$name() { record $name \"\$@\"; }"; done
source() { test "$1" = .venv/bin/activate; }
torchrun() { while test "$1" != fl-lightning; do shift; done; "$@"; }
sbatch() { eval "${!#}"; }
"""


@dataclass(frozen=True)
class Block:
    """What stands between two fences.

    Args:
        page: its path in the repository.
        line: of the opening fence, from 1.
        language: that the fence names, or nothing.
        text: without the fences.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def script(self) -> str:
        """The commands of a block in which some are shown with a prompt and their output, or all of it."""
        prompted = re.findall(r"^\$ ((?:.*\\\n)*.*\n)", self.text, re.MULTILINE)
        return "".join(prompted) or self.text

    @property
    def output(self) -> str:
        """What the block shows below the command after the prompt."""
        return re.sub(r"^\$ (?:.*\\\n)*.*\n", "", self.text, flags=re.MULTILINE) if self.text.startswith("$ ") else ""


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page in their order, also those in lists."""
    text = (ROOT / page).read_text(encoding="utf-8")
    fenced = re.finditer(r"^( *)(`{3,}|~{3,})(.*)\n((?:.*\n)*?)\1\2$", text, re.MULTILINE)
    return [Block(page, text.count("\n", 0, found.start()) + 1, found[3].strip(), found[4]) for found in fenced]


def commands(script: str) -> list[list[str]]:
    """Every program that a script starts, with its arguments, as bash makes them of loops, variables and quotes.

    Raises:
        ValueError: if bash cannot read it or finds no such program.
    """
    given = ["bash", "-c", f"exec 3>&1 >/dev/null; {_PROGRAMS}\n{script}"]
    with tempfile.TemporaryDirectory() as folder:  # for what other programs of the script write
        ended = subprocess.run(given, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, cwd=folder)
    if ended.returncode in (2, 126, 127) or "command not found" in ended.stderr:
        raise ValueError(ended.stderr)
    return [record.split("\037")[:-1] for record in ended.stdout.split("\036")[:-1]]
