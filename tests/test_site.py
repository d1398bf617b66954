"""The documentation site: what is written from the code is complete, and nothing is loaded from elsewhere.

``python docs/site`` builds it, which needs the extra ``docs``; these tests do not.
"""

import importlib
import pkgutil
import re
import runpy
from collections import defaultdict
from pathlib import Path
from types import FunctionType
from urllib.parse import urlsplit

import pytest
import yaml
from options import NO_PICTURES

from fl_lightning.forgetting import DEFINITIONS

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "site"


@pytest.fixture(autouse=True)
def _tools(monkeypatch):
    monkeypatch.syspath_prepend(SITE)


def test_every_method_has_a_page():
    """Each of fl_lightning.methods with its row of docs/methods.md, what it does, its keys and its class."""
    from method_pages import method_pages

    from fl_lightning import methods

    pages = method_pages(ROOT)
    for name in methods.__all__:
        page = pages[f"docs/methods/{name}.md"]
        assert f"| `{name}` |" in page, name
        for section in ("## What it does", "## Keys", "## Configs", "## Results", "## Class"):
            assert section in page, f"{name}: {section}"
    assert "| `--model.mu` | `0.01` | strength of the pull" in pages["docs/methods/FedProx.md"]
    assert "| `fedreg_mnist_two_class_fedprox.yaml` |" in pages["docs/methods/FedProx.md"]
    assert "No run of it is recorded here yet." in pages["docs/methods/FedBN.md"]
    assert "../results/text_chapters/report.md)" in pages["docs/methods/L2SP.md"]
    of_fedrep = pages["docs/methods/FedRep.md"]
    assert "[Personal models: CIFAR-10, Dirichlet 0.1](../results/personal_dirichlet/report.md)" in of_fedrep
    assert "2 classes a client, at a lower rate](../results/personal_shards_at_lower_rate/report.md)" in of_fedrep
    of_lwf = pages["docs/methods/LwF.md"]
    assert "Its numbers are in [Arriving classes: digits in five tasks](../results/digits_classes/report.md)," in of_lwf
    assert "Declared to run it: [arriving_classes](../results.md)." in of_lwf


@pytest.mark.slow
def test_methods_without_a_config_run_by_the_command_of_their_page(command_line):
    """Each in a process of its own, where no test has defined a class of the same name."""
    from method_pages import command_without_config, configs_by_method, documented_methods

    for name, method in documented_methods().items():
        if not configs_by_method()[name]:
            program, *arguments = command_without_config(name, method, ROOT).split()
            assert program == "fl-lightning"
            run = command_line(*arguments, "--trainer.max_steps", "1", *NO_PICTURES)
            assert run.returncode == 0, f"{name}: {run.stderr}"


def test_the_readmes_methods_lead_to_their_pages():
    """On the site; in the repository, to their files."""
    from assembly import _with_pages
    from method_pages import documented_methods

    rows = (ROOT / "README.md").read_text().split("## Methods")[1].split("## Results")[0]
    named = re.findall(r"\[([\w-]+)\]\(([^)]+)\) \(", _with_pages(rows))
    own = {target: name for name, target in named if target.startswith("docs/methods/")}
    assert len(named) == rows.count(" (") - 1  # that of the table's head
    assert set(own) <= {f"docs/methods/{name}.md" for name in documented_methods()}
    assert {"FedProx", "EWC", "iCaRL"} <= set(own.values())
    losses = {name: target for name, target in named if target not in own}  # and rules, with a page for all
    assert {"TCE": "docs/papers/tce.md", "FedLC": "docs/api/fl_lightning.losses.rst"}.items() <= losses.items()
    assert all(target.startswith("docs/") for target in losses.values())


def test_names_are_broken_between_their_words():
    """And only in code and titles; what a reader copies stays the same."""
    from line_breaks import with_line_breaks

    name = '<code><span class="pre">{}</span></code> of CrossEntropy a_b'
    broken = with_line_breaks(name.format("losses.CalibratedCrossEntropy"))
    assert broken == name.format("losses.<wbr>Calibrated<wbr>Cross<wbr>Entropy")
    assert with_line_breaks("<h1>fl_lightning.data<a>a.b</a></h1>") == "<h1>fl_<wbr>lightning.<wbr>data<a>a.b</a></h1>"
    assert with_line_breaks(name.format("a_b/c=&lt;MLP&gt;...")) == name.format("a_<wbr>b/<wbr>c=&lt;MLP&gt;...")


def test_equations_of_methods_are_formulas():
    """On every page, between dollars, which a browser sets; what is left as code is no equation."""
    from method_pages import method_pages

    pages = {path: text.partition("## Keys")[0] for path, text in method_pages(ROOT).items()}
    shown = {path: re.findall(r"\$([^$]+)\$", text) for path, text in pages.items()}
    assert [path for path, formulas in shown.items() if not formulas] == []
    assert r"F_k(w) + \frac{\mu}{2} \Vert w - w_t \Vert^2" in shown["docs/methods/FedProx.md"]
    assert [formula for formulas in shown.values() for formula in formulas if formula.count("{") != formula.count("}")] == []
    texts = {path: text.partition("## What it does")[2].partition("## ")[0] for path, text in pages.items()}
    assert [path for path, text in texts.items() if re.search(r"`[^`]*(<-|sum_|\|\|)[^`]*`", text)] == []


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ("F_k(w) + mu/2 * ||w - w_t||^2", r"F_{k}(w)+\mu/2\,\Vert w-w_{t}\Vert^{2}"),
        ("1/(T-1) sum_{i<T} max_{i<=t<T} (a_{t,i} - a_{T,i})", r"1/(T-1)\sum_{i<T}\max_{i\le t<T}(a_{t,i}-a_{T,i})"),
        ("logsumexp_{c in C_k} f_c - tau n_y^(-1/4)", r"\operatorname{logsumexp}_{c\in C_{k}}f_{c}-\tau n_{y}^{-1/4}"),
        ("1 - <g, g*> / ||g||", r"1-\langle g,g^{\ast}\rangle/\Vert g\Vert"),
    ],
)
def test_a_formula_of_a_docstring_is_set(plain, expected):
    from formulas import with_formulas

    shown = with_formulas(f"The term ``{plain}``.", "${}$")
    assert shown.replace(" ", "") == f"Theterm${expected}$.".replace(" ", "")


@pytest.mark.parametrize("code", ["weights[k]", "label_counts", "every=100", "torch.nn.Linear", "N * k", "F_ki"])
def test_code_in_a_docstring_is_no_formula(code):
    from formulas import with_formulas

    assert with_formulas(f"As ``{code}`` is.") == f"As ``{code}`` is."


def test_every_config_and_callback_is_listed():
    from lists_of_code import callbacks_page, configs_pages, methods_of_configs

    import fl_lightning
    from fl_lightning.config_files.bundled import bundled_files, bundled_rows

    papers = [path.read_text() for path in (ROOT / "docs" / "papers").glob("*.md")]
    configs = "".join([*configs_pages(ROOT).values(), *papers])
    assert [name for name in {**bundled_files(), **bundled_rows()} if f"`{name}`" not in configs] == []
    assert "| [TCE paper](papers/tce.md) |" in configs  # which has no second page
    assert methods_of_configs("| `cifar10_tce.yaml` |") == "\nPages of the methods: [FedAvg](../methods/FedAvg.md).\n"
    assert "| `digits_classes_fedprox.yaml` | FedProx | [FedProx](../methods/FedProx.md)" in configs
    callbacks = callbacks_page()["docs/callbacks.md"]
    classes = [name for name in fl_lightning.callbacks.__all__ if isinstance(getattr(fl_lightning.callbacks, name), type)]
    assert [name for name in classes if f"## {name}\n" not in callbacks] == []
    assert "| `callbacks.client_forgetting.every` | `100` |" in callbacks


# Their names are not for users, or fl_lightning offers them.
NOT_FOR_USERS = "command_line config_files sweep state run evaluation processes sites module __main__".split()


def test_every_public_name_is_documented_in_one_place():
    """It is the module from which users import: of what several pages list, all name the same one, which has it, too."""
    from api import homes

    import fl_lightning

    by_module = homes()
    places = defaultdict(set)
    for module, names in by_module.items():
        for name, home in names.items():
            places[getattr(importlib.import_module(module), name)].add(f"{home}.{name}")
            assert by_module[home][name] == home
    assert [found for found in places.values() if len(found) > 1] == []
    for found in pkgutil.walk_packages(fl_lightning.__path__, "fl_lightning."):
        if found.name.split(".")[1] not in NOT_FOR_USERS:
            module = importlib.import_module(found.name)
            values = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
            missing = [name for name, value in values.items() if isinstance(value, type | FunctionType) and value not in places]
            assert missing == [], f"{found.name}: add it to docs/site/api.rst"
    assert by_module["fl_lightning"]["FedAvg"] == "fl_lightning.methods"
    assert by_module["fl_lightning"]["FederatedModule"] == "fl_lightning"
    assert by_module["fl_lightning.callbacks"]["heatmap"] == "fl_lightning.callbacks.figures"


def test_every_name_that_a_page_imports_has_an_api_page():
    """Also those of modules without a list of names: whoever adds one to a page adds its module to the API."""
    from api import homes

    import_line = re.compile(r"^from (fl_lightning[\w.]*) import (.+)$", re.MULTILINE)
    texts = [path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))]
    imported = {name for text in texts for _, names in import_line.findall(text) for name in names.split(", ")}
    assert {"check_range", "RunContext", "SequentialEngine"} <= imported
    modules = [(names, importlib.import_module(name)) for name, names in homes().items()]
    listed = {name for names, module in modules for name in (*names, *getattr(module, "__all__", ()))}
    assert imported <= listed


def test_the_landing_pages_python_runs(tmp_path, monkeypatch, capsys):
    """It prints accuracy and forgetting of both losses; the page's table has rows of the README's."""
    monkeypatch.chdir(tmp_path)
    page = (SITE / "index.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    printed = capsys.readouterr().out
    for title in ("FedAvg, CrossEntropy", "FedAvg, ReweightedSoftmax"):
        table = printed.partition(title)[2]
        for name in ("test accuracy", "client forgetting F_ki, last"):
            assert re.search(rf"│ {name} +│ -?\d\.\d+", table)
    rows = re.findall(r"^\| .*\d.* \|$", page, re.MULTILINE)
    assert len(rows) == 4
    assert all(row in (ROOT / "README.md").read_text() for row in rows)


HOSTS = {"semver.org", "arxiv.org", "github.com", "huggingface.co", "pytorch.org", "docs.pytorch.org"}  # that pages may link to


def test_external_links_lead_to_listed_hosts():
    """With https and a host; addresses on the reader's machine lead to none."""
    pages = [*ROOT.glob("*.md"), *(path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".ipynb"))]
    links = {link for page in pages for link in re.findall(r"https?://[^\s)>\"'`|\\]+", page.read_text())}
    found = {link: urlsplit(link) for link in links}
    external = {link: parts for link, parts in found.items() if parts.hostname not in ("localhost", "127.0.0.1")}
    assert external
    assert [link for link, parts in external.items() if parts.scheme != "https" or parts.hostname not in HOSTS] == []


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"(test|val)/loss", ["test/loss", "val/loss"]),
        (r"forgetting/(round|every_\d+)|Overview/x", ["forgetting/round", "forgetting/every_N", "Overview/x"]),
        (r"personal/(\w+)/(fine_tuned_)?mean", ["personal/*/[fine_tuned_]mean"]),
        (r"communication/(total_)?down", ["communication/[total_]down"]),
    ],
)
def test_a_pattern_of_tags_is_readable(pattern, names):
    from lists_of_code import _readable

    assert list(_readable(pattern)) == names


def test_pictures_show_what_the_page_says(tmp_path):
    """The page's code draws each of its pictures, and prints the numbers of its comments."""
    from pictures import draw

    printed = draw(tmp_path)
    page = (ROOT / "docs" / "how_forgetting_is_measured.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == set(re.findall(r"\(images/(\w+\.png)\)", page))
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", printed)]
    of_definitions = [0.2, 0.35, 0.267, 0.125, 0.2, 0.2, 0.5, 0.25, 0.5, 0.167, 0.25, 0.667, 0.722, 0.15, 0.083]
    assert numbers == pytest.approx([0.15, 0.1, 0.35, 0.3, 0.3, 0.2, 0.2, 0.5, -0.25, *of_definitions], abs=1e-4)


def test_the_page_lists_every_definition_of_forgetting(tmp_path):
    """With the value that its code prints."""
    from pictures import draw

    page = (ROOT / "docs" / "how_forgetting_is_measured.md").read_text()
    values = dict(re.findall(r"^(\w+) (\d\.\d{3})$", draw(tmp_path), flags=re.M))
    signs = {1: "positive is forgetting", -1: "negative is forgetting", 0: "not forgetting"}
    rows = [
        f"| `{name}` | ${one.formula}$ | {values[name]} | {one.low} to {one.high} | {signs[one.sign]} | {one.source} |\n"
        for name, one in DEFINITIONS.items()
    ]
    assert "".join(rows) in page


def test_every_page_is_in_the_contents():
    """Every page of docs/ that lies in the repository has its place on the site, and every place of the repository its page."""
    contents = yaml.safe_load((SITE / "contents.yaml").read_text())

    def names(entries):
        for entry in entries:
            for name, below in entry.items() if isinstance(entry, dict) else [(entry, [])]:
                yield name
                yield from names(below)

    listed = [name for name in names(contents) if "*" not in name]
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md") if SITE not in path.parents}
    matched = {str(path.relative_to(ROOT)) for name in names(contents) if "*" in name for path in ROOT.glob(name)}
    assert there - set(listed) - matched == set()
    written = {"docs/api.rst", "docs/configs.md", "docs/callbacks.md", "docs/tags.md"}
    assert [name for name in listed if name not in written and not (ROOT / name).is_file()] == []


def test_assets_from_elsewhere_are_found(tmp_path):
    pytest.importorskip("sphinx")
    from_elsewhere = runpy.run_path(str(SITE / "__main__.py"))["from_elsewhere"]
    (tmp_path / "index.html").write_text(
        '<a href="https://example.org">.</a><script defer src="https://example.org/x.js"></script><img src="b.png">'
        '<link rel="stylesheet" type="text/css" href="//example.org/x.css" />'
    )
    assert from_elsewhere(tmp_path) == ["index.html: https://example.org/x.js", "index.html: //example.org/x.css"]
