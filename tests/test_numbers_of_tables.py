"""Where the numbers of hand-written tables come from: pages of studies, papers, what another test makes, or no results file."""

import re
from decimal import Decimal
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
HAND_WRITTEN = [ROOT / "README.md", *sorted(page for page in DOCS.rglob("*.md") if DOCS / "results" not in page.parents)]
LINK = re.compile(r"\(([^()\s]*(?:report|forgetbench|unlearning)\.md)")
TABLE = re.compile(r"^\|.*\|\n\|[ :|-]+\|\n(?:\|.*\n)+", re.MULTILINE)

# Sections, by page, with numbers that are on no linked page of a study. These are settings.
SETTINGS = {
    ("docs/arriving_classes.md", "## Learners"),
    ("docs/forgetbench.md", "## The federations"),
    ("docs/privacy.md", "## What an update gives away"),
    ("docs/reports.md", "## What counts as a method"),
    ("docs/reports.md", "## Sections"),
    ("docs/results.md", "## Declared studies"),
}
# Made from results files by tests/bench/test_shipped_results.py or by commands that tests/test_tutorials.py runs, computed by
# hand in the section, or printed by its command.
MADE_THERE = {
    ("docs/forgetbench.md", "### digits"),
    ("docs/forgetbench.md", "### cifar10"),
    ("docs/forgetbench.md", "### cifar100_tasks"),
    ("docs/how_forgetting_is_measured.md", "## Which forgetting?"),
    ("docs/reports.md", "# Reports"),
    ("docs/reports.md", "## Comparing two runs or folders"),
    ("docs/study_digits/report.md", "## Final accuracy"),
    ("docs/study_digits/report.md", "## Forgetting"),
    ("docs/study_digits/report.md", "## Communication and model size"),
    ("docs/study_digits/report.md", "## Time"),
    ("docs/unlearning.md", "## Example: client 0 of ten"),
}
# Numbers of runs without a results file; the section must say so. Add none, and remove a section once its study has run.
NO_FILE = {
    ("docs/papers/fedreg.md", "## What our runs show"),
    ("docs/papers/fedreg.md", "## MNIST, two digits a client: FedReg's comparison"),
    ("docs/papers/fedreg.md", "## Attack strength against accuracy: digits and MNIST"),
    ("docs/papers/fedreg.md", "## Table 1, MNIST two-class"),
    ("docs/papers/fedweit.md", "## What our runs show"),
    ("docs/papers/fedweit.md", "## Overlapped-CIFAR-100: the FedWeIT paper's Table 2"),
    ("docs/papers/fedweit.md", "## Table 2, Overlapped-CIFAR-100"),
    ("docs/verified.md", "## Defences"),
    ("docs/verified.md", "## Tasks and arriving classes"),
}


def _numbers(text: str) -> set[str]:
    """Those with a point, however the leading 0 is written."""
    return {number.lstrip("0") for number in re.findall(r"(?<![\w.])\d*\.\d+(?![\w.])", text)}


def _unknown(numbers: set[str], known: set[str]) -> set[str]:
    """Those that are not known, and to which no known one is rounded."""

    def rounds_to(number: str, other: str) -> bool:
        return abs(Decimal(other) - Decimal(number)) <= Decimal(1).scaleb(Decimal(number).as_tuple().exponent) / 2

    return {number for number in numbers - known if not any(rounds_to(number, other) for other in known)}


def _measured(table: str) -> str:
    """The cells of a table that are ours: of a page of a paper its column of ours, else all but what the paper has."""
    head, _, *rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines()]
    ours = [i for i, name in enumerate(head) if name in ("ours", "here")] or range(len(head))
    cells = [row[i] for row in rows for i in ours if head[i] not in ("paper", "the paper")]
    return re.sub(r"`[^`]*`|\]\([^)]*\)", " ", " | ".join(cells))


def test_numbers_of_tables_come_from_somewhere():
    """Each is on a page that its section or the head of its page links, or the section is listed above."""
    elsewhere, seen = set(), 0
    for path in HAND_WRITTEN:
        head, *sections = re.split("(?m)^(?=#{2,} )", path.read_text())
        for section in [head, *sections]:
            numbers = set().union(*(_numbers(_measured(table)) for table in TABLE.findall(section)))
            # The site's front page links from the root.
            links = [folder / link for link in LINK.findall(f"{head}\n{section}") for folder in (path.parent, ROOT)]
            known = _numbers(" ".join(page.read_text() for page in links if page.exists()))
            seen += len(numbers)
            if _unknown(numbers, known):
                name = (str(path.relative_to(ROOT)), section.splitlines()[0])
                elsewhere.add(name)
                assert name not in NO_FILE or re.search(r"no\s+results\s+file", section, re.IGNORECASE), name
    assert elsewhere == SETTINGS | MADE_THERE | NO_FILE
    assert seen


def test_numbers_before_a_link_to_a_page_are_on_it():
    """In hand-written tables: those of a cell between the last semicolon and the link."""
    seen = 0
    for path in HAND_WRITTEN:
        cells = re.findall(r"^\|.*$", path.read_text(), re.MULTILINE)
        for text, link in re.findall(r"([^|]*?)\(([^()\s]*report\.md)\)", "\n".join(cells)):
            numbers = {number for number in _numbers(text.rpartition(";")[2]) if number.startswith(".")}
            page = _numbers((path.parent / link).read_text())
            assert not _unknown(numbers, page), (path, link)
            seen += len(numbers)
    assert seen
