"""Run folders that are broken or evil: each is named in one line, and the report of the others is written."""

import os
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import yaml
from markdown_it import MarkdownIt
from recorded import RecordWriter, line, packed

from fl_lightning.report.safe_text import one_line


def _config(folder: Path, change: Callable[[dict], object]) -> None:
    """Rewrite config.yaml with what ``change`` gives of it, or with it as changed."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(change(config) or config))


def _sets(**values: object) -> Callable[[Path], None]:
    """Set keys of the config; ``data__source`` stands for ``data.source``."""

    def change(config: dict) -> None:
        for key, value in values.items():
            *above, last = key.split("__")
            inner = config
            for part in above:
                inner = inner[part]
            inner[last] = value

    return lambda folder: _config(folder, change)


def _writes(name: str, content: str | bytes) -> Callable[[Path], object]:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data)


def _becomes_folder(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return change


def _becomes_pipe(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


def _has_length(name: str, length: int) -> Callable[[Path], None]:
    """A file of zeros, of which the disk keeps none."""

    def change(folder: Path) -> None:
        (folder / name).write_bytes(b"")
        os.truncate(folder / name, length)

    return change


def _recorded(content: str) -> Callable[[Path], object]:
    """The record is this alone."""
    return _writes(_RECORD, content)


def _has_settings(content):
    """Settings instead of a config."""

    def change(folder):
        (folder / "config.yaml").rename(folder / "settings.json")
        (folder / "settings.json").write_text(content)

    return change


_RECORD = "record.jsonl"
_SCALARS = {"test/accuracy": 1.0}

# What is done to a run's folder, and what is said of it.
_UNREAD = f"nothing in its {_RECORD} can be read"
_NO_RUN = "its config.yaml is not that of a run"
_BOMB, _WIDE = packed([0.5]) | {"shape": [1 << 20, 1 << 20]}, packed([]) | {"shape": [0, 10**12]}
# Each line stands for nine of the one before: 9 ** 12 values.
_YAML_BOMB = "a0: &a0 x\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 13))
_BROKEN = {
    "no config": (lambda folder: (folder / "config.yaml").unlink(), "it has neither config.yaml nor settings.json"),
    "settings cut off": (_has_settings('{"model": "FedAvg"'), "its settings.json is not that of a run"),
    "settings too deep": (_has_settings("[" * 100_000), "too deep"),
    "settings that are a list": (_has_settings("[1]"), "its settings.json is not that of a run"),
    "settings without data": (_has_settings('{"model": "FedAvg"}'), "its settings.json has no data.source"),
    "settings with a seed that is a word": (
        _has_settings('{"model": "FedAvg", "data.source": "Digits", "seed_everything": "abc"}'),
        "its settings.json has seed_everything abc, which is not a whole number",
    ),
    "an empty config": (_writes("config.yaml", ""), _NO_RUN),
    "a config cut off": (_writes("config.yaml", "model: {class_path: 'fl"), _NO_RUN),
    "a config in another encoding": (_writes("config.yaml", "model: é".encode("latin-1")), _NO_RUN),
    "a config of zeros": (_writes("config.yaml", bytes(512)), _NO_RUN),
    "a list for a config": (_writes("config.yaml", "[1, 2]"), _NO_RUN),
    "a number too long": (_writes("config.yaml", f"model: {'9' * 5000}"), _NO_RUN),
    "Python in the config": (_writes("config.yaml", "model: !!python/object/apply:os.getcwd []\ndata: {}"), _NO_RUN),
    "a folder for a config": (_becomes_folder("config.yaml"), "its config.yaml is not a file"),
    "a pipe for a config": (_becomes_pipe("config.yaml"), "its config.yaml is not a file"),
    "a config that holds itself": (_writes("config.yaml", "data: {}\nmodel: &a {b: *a}"), "alias *a in line 2 is part of it"),
    "a config that multiplies": (_writes("config.yaml", _YAML_BOMB), f"{_NO_RUN}: it holds more than 1,000,000 values"),
    "a key given twice": (
        _writes("config.yaml", "data: {}\nmodel: {}\ndata: {source: x}"),
        f"{_NO_RUN}: the key data is given twice, the second time in line 3",
    ),
    "a key given twice, in two lines": (
        _writes("config.yaml", 'data: {}\nmodel: {"a\\nb": 1, "a\\nb": 2}'),
        f"{_NO_RUN}: the key a\\nb is given twice, the second time in line 2",
    ),
    "a config too deep": (_writes("config.yaml", "data: {}\nmodel: " + "[" * 60), "nested deeper than 50 levels"),
    # PyYAML may refuse so many first, in its words.
    "a config far too deep": (_writes("config.yaml", "data: {}\nmodel: " + "[" * 10_000), _NO_RUN),
    "a config of megabytes": (_writes("config.yaml", "#" * (1 << 23)), "8,388,608 characters"),
    "model is null": (_sets(model=None), "its config.yaml has no model"),
    "data is null": (_sets(data=None), "its config.yaml has no data.source"),
    "model is a list": (_sets(model=[1]), "its config.yaml has model (1,), which is not a class"),
    "arguments are a list": (_sets(model__init_args=[1]), "its config.yaml has model.init_args, which holds no keys"),
    "a seed that is a word": (_sets(seed_everything="abc"), "seed_everything abc, which is not a whole number"),
    "a seed that is no number": (_sets(seed_everything=float("nan")), "seed_everything nan, which is not a whole number"),
    "rounds that are a word": (_sets(trainer__max_steps="ten"), "trainer.max_steps ten, which is not a number"),
    "a rate that is a word": (_sets(model__init_args__optimizer__init_args__lr="big"), "lr big, which is not a number"),
    "a rate beyond floats": (_sets(model__init_args__optimizer__init_args__lr=10**400), "0..., which is not a number"),
    "a target that is a number": (_sets(callbacks__summary__targets=0.5), "targets 0.5, which is not a list of numbers"),
    "targets that are words": (_sets(callbacks__summary__targets=["x"]), "which is not a list of numbers"),
    "a list for results": (_writes("results.json", "[1]"), "its results.json is not that of a run"),
    "other results": (_writes("results.json", '{"a": {"b": []}}'), "its results.json is not that of a run"),
    "results without rounds": (_writes("results.json", '{"rounds": "4"}'), "its results.json is not that of a run"),
    "results cut off": (_writes("results.json", '{"rounds": 4'), "its results.json is not that of a run"),
    "results too deep": (_writes("results.json", "[" * 100_000), "too deep"),
    "results in a folder": (_becomes_folder("results.json"), "its results.json is not a file"),
    "a size that is a word": (_writes("results.json", '{"rounds": 4, "model_megabytes": "x"}'), "model_megabytes x, which"),
    "no record": (lambda folder: (folder / _RECORD).unlink(), "it has no record.jsonl"),
    "a folder for a record": (_becomes_folder(_RECORD), _UNREAD),
    "a pipe for a record": (_becomes_pipe(_RECORD), _UNREAD),
    "a record cut off": (_recorded(line(1, scalars=_SCALARS)[:30]), _UNREAD),
    "a record of noise": (_writes(_RECORD, b"\xff" * 400), _UNREAD),
    "a record of something else": (_recorded("[1]\n"), _UNREAD),
    "a record without rounds": (_recorded('{"time": 1.0, "scalars": {"test/accuracy": 1.0}}\n'), _UNREAD),
    "a record without a time": (_recorded(line(1, float("inf"), scalars=_SCALARS)), _UNREAD),
    "a record with a word": (_recorded(line(1, scalars={"test/accuracy": "high"})), _UNREAD),
    "a record with a list for a tensor": (_recorded(line(1, tensors={"clients/cohort": [1, 2]})), _UNREAD),
    "a record too deep": (_recorded("[" * 100_000 + "\n"), _UNREAD),
    "a distribution of one column": (_recorded(line(3, tensors={"forgetting/local": packed([[1.0]])})), _UNREAD),
    "a tensor of 4 TB": (_recorded(line(3, tensors={"clients/accuracy_after": _BOMB})), _UNREAD),
    "a tensor of nothing, 10^12 wide": (_recorded(line(3, tensors={"label_counts/first_clients": _WIDE})), _UNREAD),
    "a record of round 2^40": (_recorded(line(2**40, scalars=_SCALARS)), _UNREAD),
    "a record of 64 GB": (_has_length(_RECORD, 1 << 36), _UNREAD),
    "results of 64 GB": (_has_length("results.json", 1 << 36), "its results.json has 68,719,476,736 bytes, must have at most"),
}


@pytest.fixture
def two_runs(write_run) -> list[Path]:
    """Runs that have nothing wrong."""
    return [write_run("good", {1: 0.25, 2: 0.5, 4: 0.75}, seed=seed) for seed in range(2)]


def test_a_broken_folder_is_named_and_skipped(two_runs, write_run, main, tmp_path):
    """All of them at once: the report is that of the good runs, and of each other there is a line."""
    folders = {}
    for number, (name, (spoil, _)) in enumerate(_BROKEN.items()):
        folders[name] = write_run(f"bad_{number}_", {1: 0.5})
        spoil(folders[name])
    code, out, err = main("report", "runs")
    assert (code, out) == (0, "Report of 2 runs of 1 method: report/report.html\n")
    lines = err.splitlines()
    for name, (_, said) in _BROKEN.items():
        of_it = [line for line in lines if str(folders[name].relative_to(tmp_path)) in line]
        assert len(of_it) == 1, (name, of_it)
        assert ": skipped, " in of_it[0], (name, of_it)
        assert said in of_it[0], (name, of_it)
    assert len(lines) == len(_BROKEN)
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| FedAvg, CrossEntropy | 2 | 0, 1 | 4 | yes |" in text


@pytest.mark.parametrize("name", ["model is null", "a list for results", "a folder for a record", "a record cut off"])
def test_broken_folders_alone_are_no_report(write_run, main, tmp_path, name):
    spoil, said = _BROKEN[name]
    folder = write_run("bad", {1: 0.5})
    spoil(folder)
    code, _, err = main("report", "runs")
    assert (code, err.count("\n")) == (1, 1)
    assert said in err
    assert str(folder.relative_to(tmp_path)) in err
    assert not (tmp_path / "report").exists()


def test_a_log_may_end_within_a_round(write_run, no_pictures, main, tmp_path):
    """Cut after each of its lines, as by a full disk: of all that a section needs, some logs have a part."""
    tensors = {
        "cohort": (2,),
        "accuracy_before": (2,),
        "accuracy_after": (2, 2),
        "class_cohort": (2,),
        "class_accuracy": (4, 2),
    }
    scalars = {f"class_accuracy/{name}": {4: 0.5} for name in ("cat", "owl")}
    folder = write_run("whole", {4: 0.5}, scalars=scalars)
    with RecordWriter(folder) as more:
        for name, shape in tensors.items():
            more.add_tensor(f"clients/{name}", np.ones(shape), 4)
        more.add_tensor("forgetting/local", [[0.5, 3]], 4)
    lines = (folder / _RECORD).read_bytes().splitlines(keepends=True)
    for seed in range(len(lines)):
        log = b"".join(lines[:seed]) + lines[seed][:9]  # with a part of the next line
        (write_run("cut", {4: 0.5}, seed=seed + 1) / _RECORD).write_bytes(log)
    code, out, err = main("report", "runs")
    assert (code, out) == (0, f"Report of {len(lines) - 1} runs of 1 method: report/report.html\n")
    assert err.count(_UNREAD) == 2
    assert {path.name for path in (tmp_path / "report" / "figures").glob("*.svg")} == {
        "accuracy.svg",
        "who_forgets_whose_data_4.svg",
        "one_round_by_class_4.svg",
    }


_HOSTILE = (
    "`code`",
    "``two`",
    "`",
    "a\nb",
    "a\r\n\n# heading",
    "a | b",
    "\\",
    "\\| x",
    "<script>alert(1)</script>",
    "</td></tr></table><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "--><script>alert(1)</script>",
    "&lt;b&gt; &amp;",
    "\"><svg onload='alert(1)'>",
    "'",
    "{{ 7 * 7 }} {% raw %}",
    "[link](javascript:alert)",
    "![x](figures/x.png)",
    "**bold** _not_ ~~gone~~",
    "$\\frac{$",
    "$$x$$",
    "\x1b[31mred",
    "\x00",
    "\u202eevil",
    "1. one",
    "- item",
    "# title",
    "=====",
    " padded ",
    "é漢🙂",
    "x" * 5000,
)


class _Page(HTMLParser):
    """Tags with their attributes, and the text of cells and of settings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes, self.tags, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]

    def handle_data(self, data):
        self.text.append(data)


def _shown(value: str) -> str:
    """What stands for a value in the table of settings: escapes for what cannot be printed, 60 characters."""
    return one_line(value if len(value) <= 60 else value[:60] + "...")


def _cells(tokens) -> list[list[str]]:
    """The text of all rows of all tables of a parsed Markdown page."""
    rows = []
    for index, token in enumerate(tokens):
        if token.type == "tr_open":
            rows.append([])
        if token.type in ("td_open", "th_open"):
            rows[-1].append("".join(child.content for child in tokens[index + 1].children))
    return rows


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.slow
def test_values_are_text_in_every_file(write_run, main, tmp_path):
    """Each hostile text as a setting in which methods differ, as one that all share, as a class and as a folder."""
    classes = {f"class_accuracy/{value}": {1: 0.25, 4: 0.5} for value in _HOSTILE if value.isprintable()}
    shared = {f"model__same_{number}": value for number, value in enumerate(_HOSTILE)}
    for number, value in enumerate(_HOSTILE):
        rounds, scalars = 9 if number % 5 == 0 else 4, classes if number == 0 else {}
        folder = write_run(str(number), {1: 0.25, 4: 0.5}, scalars=scalars, rounds=rounds, model__note=value, **shared)
        folder.parent.rename(folder.parents[1] / f"{value[:50]}{number}\udcff".replace("/", "").replace("\0", ""))
    code, _, err = main("report", "runs")
    assert code == 0
    assert all(": not finished, 4 of 9 rounds; " in line for line in err.splitlines())
    assert "\\udcff/version_0: not finished" in err

    page = _Page((tmp_path / "report" / "report.html").read_text(encoding="utf-8"))
    assert not {"script", "img", "iframe", "link", "b"} & set(page.tags)
    assert not [name for name in page.attributes if name.startswith("on")]
    assert page.tags.count("table") == page.tags.count("tbody")
    assert [value for value in _HOSTILE if _shown(value) not in page.text] == []

    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    inner = [child for token in tokens for child in token.children or ()]
    markup = {"html_block", "html_inline", "fence", "code_block", "s_open"}
    assert not markup & {token.type for token in (*tokens, *inner)}
    links = [child.attrs.get("href", child.attrs.get("src")) for child in inner if child.type in ("link_open", "image")]
    assert [link for link in links if not link.startswith(("figures/", "tables/"))] == []
    rows = _cells(tokens)
    apart = [row[1] for row in rows if len(row) == 3 and row[2] in ("4", "9")]  # method, model.note, trainer.max_steps
    assert sorted(cell.strip() for cell in apart) == sorted(_shown(value).strip() for value in _HOSTILE)
    codes = [child.content for child in inner if child.type == "code_inline"]
    settings = dict(zip(codes[::2], codes[1::2], strict=True))
    assert [settings[f"model.same_{number}"] for number in range(len(_HOSTILE))] == [
        one_line(value if len(value) <= 200 else value[:200] + "...") for value in _HOSTILE
    ]
