"""Build the documentation site: ``python docs/site`` writes ``build/site/html``, which opens from the disk.

A warning, a link that leads nowhere or an asset from the internet ends it with exit code 1.
"""

import argparse
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from assembly import assemble
from link_check import broken_links

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def main() -> int:
    """Write the site; 1 if a page or a link is at fault."""
    parser = argparse.ArgumentParser(prog="python docs/site", description="Build the documentation site.")
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / "site", help="folder; its html/ is the site")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    assemble(ROOT, out / "source")
    options = ["-q", "-W", "--keep-going", "-c", HERE, "-d", out / "doctrees"]
    code = build_main([str(argument) for argument in (*options, out / "source", out / "html")])
    broken = broken_links(out / "html") if code == 0 else []
    for line in broken:
        print(line, file=sys.stderr)
    if code == 0 and not broken:
        print(f"Site: {out / 'html' / 'index.html'}")
    return code or bool(broken)


if __name__ == "__main__":
    sys.exit(main())
