"""The tables of methods in docs come from docstrings of files and classes: WRITE_PAGES=1 writes them again."""

import inspect
import re
import sys

import pytest
from written_pages import hold_table, round_of

from fl_lightning import FederatedModule, losses, methods, tasks
from fl_lightning.config_files.bundled import bundled_files
from fl_lightning.config_files.reading import config_values
from fl_lightning.protocol import Learner

EXCHANGED = ("clients", "server", "more down", "more up", "a client keeps")
KINDS = ("loss", "one model", "personal models", "pretrained nets", "task streams", "arriving classes")
PERSONAL = ("a client uses", "the server has")


ROUNDS = {name: round_of(name) for name in sorted(methods.__all__, key=lambda name: (name != "FedAvg", name.lower()))}


@pytest.mark.parametrize("name", ROUNDS)
def test_every_method_says_what_a_round_is(name):
    """The objective and the server's step at least, and nothing that no table shows."""
    assert {"clients", "server"} <= ROUNDS[name].keys() <= {*EXCHANGED, *PERSONAL}
    assert (PERSONAL[0] in ROUNDS[name]) == (PERSONAL[1] in ROUNDS[name])


def _kind(name: str, value: type) -> str:
    if name in methods.__all__:
        return "personal models" if PERSONAL[0] in ROUNDS[name] else "one model"
    if issubclass(value, tasks.L2SP):
        return "pretrained nets"
    return "arriving classes" if issubclass(value, tasks.ClassLearner) else "task streams"


def _paper(docstring: str) -> str:
    """Of the paper that the second paragraph begins with: first author, year and arXiv number; without a year all authors."""
    cited = " ".join(docstring.partition("\n\n")[2].partition("\n\n")[0].split())
    authors = re.match(r"(?:[\w -]+ in )?((?:[A-Z]\S*\. )+.*?|[A-Z]\w+, .*?)(?: et al\.)?(?::|, \")", cited)
    if authors is None:
        return ""
    surnames = [author.rpartition(". ")[2] for author in authors[1].split(", ")]
    arxiv = re.search(r"arXiv (\d\d)\d\d\.\d+", cited)
    year = re.search(r"\b(?:19|20)\d\d\b(?!\.\d)", cited.partition("arXiv")[0])
    date = year[0] if year else f"20{arxiv[1]}" if arxiv else ""
    return ", ".join(filter(None, [f"{surnames[0]} {date}" if date else ", ".join(surnames), arxiv[0] if arxiv else ""]))


@pytest.mark.parametrize(
    ("cited", "expected"),
    [
        ("T. Li, A. K. Sahu: Federated. MLSys 2020.\narXiv 1812.06127. Equation 2.", "Li 2020, arXiv 1812.06127"),
        ("J. Kirkpatrick et al.: Overcoming. PNAS 2017. arXiv 1612.00796.", "Kirkpatrick 2017, arXiv 1612.00796"),
        ("X.-C. Li, D.-C. Zhan: FedRS. KDD 2021. Equation 5.", "Li 2021"),
        ('Aljahdali, Horváth, "Flashback", arXiv 2402.05558, 2 steps.', "Aljahdali 2024, arXiv 2402.05558"),
        ("STL in J. Yoon, W. Jeong: Transfer. ICML 2021.", "Yoon 2021"),
        ("G. Legate, L. Caccia: Forgetting.", "Legate, Caccia"),
        ("The formula is in :func:`f`.", ""),
        ("Departures: none.", ""),
    ],
)
def test_a_paper_is_read_from_a_docstring(cited, expected):
    assert _paper(f"Title.\n\n{cited}\n\nMore of 1999.") == expected


def _linked(paper: str) -> str:
    """The same with a link from the arXiv number."""
    return re.sub(r"arXiv (\S+)$", r"[\g<0>](https://arxiv.org/abs/\1)", paper)


def test_the_table_of_kinds():
    """Every loss, method and learner with the first line of its docstring or file, its key and its paper."""
    found = {name: getattr(module, name) for module in (methods, tasks) for name in module.__all__}
    rows = []
    for name in losses.__all__:
        if name != "Loss":
            docstring = inspect.getdoc(getattr(losses, name))
            what, paper = re.split(r"[.;]\s", docstring)[0].rstrip("."), _paper(docstring)
            page = {"TruncatedCrossEntropy": "tce", "ReweightedSoftmax": "wsm"}.get(name)
            link = f"[{paper}](papers/{page}.md)" if page else _linked(paper)
            rows.append([f"`{name}`", "loss", what, "`--model.loss`", link])
    for name, value in found.items():
        if issubclass(value, FederatedModule | Learner):
            docstring = inspect.getdoc(sys.modules[value.__module__])
            what = re.sub(r"^[\w -]+: ", "", docstring.partition("\n")[0]).rstrip(".")
            key = "`--model`" if issubclass(value, FederatedModule) else "`--model.tasks`"
            rows.append([f"`{name}`", _kind(name, value), what, key, _linked(_paper(docstring))])
    first = ("`CrossEntropy`", "`FedAvg`")
    rows.sort(key=lambda row: (KINDS.index(row[1]), row[0] not in first, row[0].lower()))
    hold_table("methods.md", ["name", "kind", "what it does", "key", "paper"], rows)


def test_the_table_of_methods():
    rows = [[f"`{name}`", *(said.get(key, "") for key in EXCHANGED)] for name, said in ROUNDS.items()]
    hold_table("methods.md", ["method", *EXCHANGED], rows)


def test_the_table_of_methods_with_personal_models():
    """With the config of the paper's settings, where a method has one that needs no tasks."""
    configs = {
        config_values(name)["model"].get("class_path"): f"`{name}`"
        for name, path in bundled_files().items()
        if path.parent.name == "methods"
        and "class_path" in (model := config_values(name).get("model", {}))
        and "tasks" not in model.get("init_args", {})
    }
    rows = [
        [f"`{name}`", *(said[key] for key in PERSONAL), configs.get(f"fl_lightning.{name}", "")]
        for name, said in ROUNDS.items()
        if PERSONAL[0] in said
    ]
    hold_table("personal_models.md", ["`--model`", *PERSONAL, "config"], rows)
