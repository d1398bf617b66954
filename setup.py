"""What pyproject.toml cannot say: packages that lie at the top level, the commit, and addresses.

``FL_LIGHTNING_REPOSITORY=https://github.com/OWNER/NAME python -m build`` names the repository on the package index, where the
README's relative links and pictures would lead nowhere; a build without it leaves them out, and its log lists them.
"""

import os
import re
import runpy
from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup

ROOT = Path(__file__).parent
TOP_LEVEL = {"fl_lightning.callbacks": "callbacks", "fl_lightning.configs": "configs"}


def description(readme: str, repository: str, commit: str | None) -> str:
    """The README with whole addresses in place of relative ones: of pictures as they are, of pages as they are shown.

    Without the repository's address, a relative link is reduced to its text, and a picture with the caption below it is left
    out, as are brackets and paragraphs that hold nothing but links. It prints how many. The section More, of links and of
    commands in a clone, is left out with them. The command that installs is that of the index, not of a clone.
    """
    readme = readme.replace("pip install -e . &&", "pip install fl-lightning &&")
    readme = readme.replace("Run this in a clone. It installs", "It installs")
    if not repository:
        readme = re.sub(r"^## More\n.*?(?=^## |\Z)", "", readme, flags=re.MULTILINE | re.DOTALL)
        captioned = re.sub(r"(^!\[[^]]*\]\((?!\w+:)[^)]*\)\n)\n[A-Z](.+\n)+", r"\1", readme, flags=re.MULTILINE)
        text, pictures = re.subn(r"\[?!\[[^]]*\]\((?!\w+:)[^)]*\)(\]\([^)]*\))?\n+", "", captioned)
        link = r"\[([^]]*)\]\((?!\w+:|#)[^)]*\)"
        text, bare = re.subn(rf"\s\({link}\)|^({link}[,.\s]+)+\n", "", text, flags=re.MULTILINE)
        text, links = re.subn(link, r"\1", text)
        lost = f"{pictures} pictures and {bare} lists of links left out, {links} links reduced to their text"
        print(f"README.md on the package index: {lost}: set FL_LIGHTNING_REPOSITORY=https://github.com/OWNER/NAME to keep them")
        return text
    pictures = re.sub(r"(!\[[^]]*\]\()(?!\w+:|#)", rf"\1{repository}/raw/{commit}/", readme)
    return re.sub(r"(\]\()(?!\w+:|#)", rf"\1{repository}/blob/{commit}/", pictures)  # also of a picture that is a link


def addresses(repository: str, commit: str) -> dict[str, str]:
    """The links of the package index, to the repository as of the commit."""
    return {
        "Repository": repository,
        "Documentation": f"{repository}/tree/{commit}/docs",
        "Changelog": f"{repository}/blob/{commit}/CHANGELOG.md",
    }


def packages() -> list[str]:
    """Every package; folders without Python code, which hold configs, count too."""
    folders = [f"{package}.{name}" for package, folder in TOP_LEVEL.items() for name in find_namespace_packages(folder)]
    return [*find_packages(include=["fl_lightning", "fl_lightning.*"]), *TOP_LEVEL, *folders]


def main() -> None:
    """Build, with the commit written into the package."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commit = runpy.run_path(str(ROOT / "fl_lightning" / "run" / "provenance.py"))["commit"]()
    if commit is not None:
        (ROOT / "fl_lightning" / "commit.txt").write_text(f"{commit}\n", encoding="utf-8")
    repository = os.environ.get("FL_LIGHTNING_REPOSITORY", "").rstrip("/")
    if repository and (commit is None or commit.endswith("-dirty")):
        raise SystemExit(f"FL_LIGHTNING_REPOSITORY is {repository}, but the code is of no commit there: commit and push first")
    setup(
        packages=packages(),
        package_dir=TOP_LEVEL,
        long_description=description(readme, repository, commit),
        long_description_content_type="text/markdown",
        project_urls=addresses(repository, commit) if repository else {},
    )


if __name__ == "__main__":
    main()
