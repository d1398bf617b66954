"""Build the documentation site: ``python docs/site`` writes ``build/site/html``, which opens from the disk.

A warning, such as that of a link that leads nowhere, or an asset from the internet ends it with exit code 1. ``--links`` visits
the outside links instead, and ends with exit code 1 if one leads nowhere.
"""

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from assembly import assemble

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
_LOADED = re.compile(r'<(?:iframe|img|link|script|source|video)\b[^>]* (?:href|src)="((?:https?:)?//[^"]*)"')


def from_elsewhere(site: Path) -> list[str]:
    """One line for each asset that a page loads from the internet.

    Args:
        site: the folder of the site's ``index.html``.
    """
    pages = sorted(site.rglob("*.html"))
    return [f"{page.relative_to(site)}: {url}" for page in pages for url in _LOADED.findall(page.read_text(encoding="utf-8"))]


def main() -> int:
    """Write the site; 1 if a page is at fault."""
    parser = argparse.ArgumentParser(prog="python docs/site", description="Build the documentation site.")
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / "site", help="folder; its html/ is the site")
    parser.add_argument("--links", action="store_true", help="visit the outside links instead of building")
    arguments = parser.parse_args()
    out = arguments.out
    for part in ("source", "doctrees", "html"):  # and not notebooks, a cache
        shutil.rmtree(out / part, ignore_errors=True)
    assemble(ROOT, out / "source")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # notebooks call fl-lightning
    options = ["-q", "-W", "--keep-going", "-c", HERE, "-d", out / "doctrees"]
    if arguments.links:
        options += ["-b", "linkcheck", "-D", "nb_execution_mode=off"]
        return build_main([str(argument) for argument in (*options, out / "source", out / "links")])
    options += ["-D", f"nb_execution_cache_path={(out / 'notebooks').resolve()}"]
    code = build_main([str(argument) for argument in (*options, out / "source", out / "html")])
    loaded = from_elsewhere(out / "html") if code == 0 else []
    for line in loaded:
        print(f"{line} comes from the internet", file=sys.stderr)
    if code == 0 and not loaded:
        print(f"Site: {out / 'html' / 'index.html'}")
    return code or bool(loaded)


if __name__ == "__main__":
    sys.exit(main())
