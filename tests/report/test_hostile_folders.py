"""Run folders that are broken or evil: each is named in one line, and the report of the others is written."""

import os
import struct
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
import yaml
from markdown_it import MarkdownIt
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

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


def _events(folder: Path) -> Path:
    (path,) = folder.glob("events*")
    return path


def _becomes_folder(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = _events(folder) if name == "events" else folder / name
        path.unlink(missing_ok=True)
        path.mkdir()

    return change


def _becomes_pipe(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = _events(folder) if name == "events" else folder / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    return change


def _cut(folder: Path) -> None:
    _events(folder).write_bytes(_events(folder).read_bytes()[:30])


def _recorded(*lines: str) -> Callable[[Path], None]:
    """The log is a record of these lines alone."""

    def change(folder: Path) -> None:
        _events(folder).unlink()
        (folder / "record.jsonl").write_text("".join(f"{line}\n" for line in lines))

    return change


def _with_record(*values: Summary.Value, time: float = 1.7e9) -> Callable[[Path], None]:
    """The log is one event of round 3 with some values, after a header."""
    data = Event(wall_time=time, step=3, summary=Summary(value=values)).SerializeToString()
    return lambda folder: _events(folder).write_bytes(struct.pack("<Q4x", len(data)) + data + bytes(4))


_HISTOGRAM = Summary.Value(tag="forgetting/local", histo=HistogramProto(bucket_limit=[0.5, 1.0], bucket=[1.0]))
_SHAPE = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1 << 20), TensorShapeProto.Dim(size=1 << 20)])
_BOMB = Summary.Value(tag="clients/accuracy_after", tensor=TensorProto(dtype=1, tensor_shape=_SHAPE, float_val=[0.5]))

# What is done to a run's folder, and what is said of it.
_UNREAD = "nothing in its events.out.tfevents.* or record.jsonl can be read"
_NO_RUN = "its config.yaml is not that of a run"
# Each line stands for nine of the one before: 9 ** 12 values.
_YAML_BOMB = "a0: &a0 x\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 13))
_BROKEN = {
    "no config": (lambda folder: (folder / "config.yaml").unlink(), "it has no config.yaml"),
    "an empty config": (_writes("config.yaml", ""), _NO_RUN),
    "a config cut off": (_writes("config.yaml", "model: {class_path: 'fl"), _NO_RUN),
    "a config in another encoding": (_writes("config.yaml", "model: é".encode("latin-1")), _NO_RUN),
    "a config of zeros": (_writes("config.yaml", bytes(512)), _NO_RUN),
    "a list for a config": (_writes("config.yaml", "[1, 2]"), _NO_RUN),
    "a number too long": (_writes("config.yaml", f"model: {'9' * 5000}"), _NO_RUN),
    "Python in the config": (_writes("config.yaml", "model: !!python/object/apply:os.getcwd []\ndata: {}"), _NO_RUN),
    "a folder for a config": (_becomes_folder("config.yaml"), "its config.yaml is no file"),
    "a pipe for a config": (_becomes_pipe("config.yaml"), "its config.yaml is no file"),
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
    "a config too deep": (_writes("config.yaml", "data: {}\nmodel: " + "[" * 10_000), "nested deeper than 50 levels"),
    "a config of megabytes": (_writes("config.yaml", "#" * (1 << 23)), "8,388,608 characters"),
    "model is null": (_sets(model=None), "its config.yaml has no model"),
    "data is null": (_sets(data=None), "its config.yaml has no data.source"),
    "model is a list": (_sets(model=[1]), "its config.yaml has model (1,), which is no class"),
    "arguments are a list": (_sets(model__init_args=[1]), "its config.yaml has model.init_args, which holds no keys"),
    "a seed that is a word": (_sets(seed_everything="abc"), "seed_everything abc, which is no whole number"),
    "a seed that is no number": (_sets(seed_everything=float("nan")), "seed_everything nan, which is no whole number"),
    "rounds that are a word": (_sets(trainer__max_steps="ten"), "trainer.max_steps ten, which is no number"),
    "a rate that is a word": (_sets(model__init_args__optimizer__init_args__lr="big"), "lr big, which is no number"),
    "a rate beyond floats": (_sets(model__init_args__optimizer__init_args__lr=10**400), "0..., which is no number"),
    "a target that is a number": (_sets(callbacks__summary__targets=0.5), "targets 0.5, which is no list of numbers"),
    "targets that are words": (_sets(callbacks__summary__targets=["x"]), "which is no list of numbers"),
    "a list for results": (_writes("results.json", "[1]"), "its results.json is not that of a run"),
    "other results": (_writes("results.json", '{"a": {"b": []}}'), "its results.json is not that of a run"),
    "results without rounds": (_writes("results.json", '{"rounds": "4"}'), "its results.json is not that of a run"),
    "results cut off": (_writes("results.json", '{"rounds": 4'), "its results.json is not that of a run"),
    "results too deep": (_writes("results.json", "[" * 100_000), "too deep"),
    "results in a folder": (_becomes_folder("results.json"), "its results.json is no file"),
    "a size that is a word": (_writes("results.json", '{"rounds": 4, "model_megabytes": "x"}'), "model_megabytes x, which"),
    "no events": (lambda folder: _events(folder).unlink(), "it has no events.out.tfevents.*"),
    "a folder for events": (_becomes_folder("events"), _UNREAD),
    "a pipe for events": (_becomes_pipe("events"), _UNREAD),
    "events cut off": (_cut, _UNREAD),
    "events of something else": (lambda folder: _events(folder).write_bytes(b"\xff" * 400), _UNREAD),
    "events without a time": (_with_record(Summary.Value(tag="test/accuracy", simple_value=1.0), time=float("inf")), _UNREAD),
    "a histogram that does not fit": (_with_record(_HISTOGRAM), _UNREAD),
    "a record of something else": (_recorded("[1]"), _UNREAD),
    "a record without rounds": (_recorded('{"time": 1.0, "scalars": {"test/accuracy": 1.0}}'), _UNREAD),
    "a record without a time": (_recorded('{"round": 1, "time": Infinity, "scalars": {"test/accuracy": 1.0}}'), _UNREAD),
    "a record with a word": (_recorded('{"round": 1, "time": 1.0, "scalars": {"test/accuracy": "high"}}'), _UNREAD),
    "a record with ragged rows": (_recorded('{"round": 1, "time": 1.0, "tensors": {"clients/cohort": [1, [2]]}}'), _UNREAD),
    "a record too deep": (_recorded("[" * 100_000), _UNREAD),
    "a tensor of 4 TB": (_with_record(_BOMB), _UNREAD),
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
    assert "| FedAvg | 2 | 0, 1 | 4 | yes |" in text


@pytest.mark.parametrize("name", ["model is null", "a list for results", "a folder for events", "events cut off"])
def test_broken_folders_alone_are_no_report(write_run, main, tmp_path, name):
    spoil, said = _BROKEN[name]
    folder = write_run("bad", {1: 0.5})
    spoil(folder)
    code, _, err = main("report", "runs")
    assert (code, err.count("\n")) == (1, 1)
    assert said in err
    assert str(folder.relative_to(tmp_path)) in err
    assert not (tmp_path / "report").exists()


def test_a_log_may_end_within_a_round(write_run, writer, main, tmp_path):
    """Cut after each of its records, as by a full disk: of all that a section needs, some logs have a part."""
    tensors = {
        "cohort": (2,),
        "accuracy_before": (2,),
        "accuracy_after": (2, 2),
        "class_cohort": (2,),
        "class_accuracy": (4, 2),
    }
    scalars = {f"class_accuracy/{name}": {4: 0.5} for name in ("cat", "owl")}
    folder = write_run("whole", {4: 0.5}, scalars=scalars)
    with writer(folder) as more:
        for name, shape in tensors.items():
            more.add_tensor(f"clients/{name}", torch.ones(shape), 4)
        more.add_histogram("forgetting/local", torch.rand(3), 4)
    log = b"".join(path.read_bytes() for path in sorted(folder.glob("events*")))
    (cuts := [0]).extend(_ends(log))
    for seed, end in enumerate(cuts, start=1):
        _events(write_run("cut", {4: 0.5}, seed=seed)).write_bytes(log[: end + 5])  # with a part of the next record
    code, out, err = main("report", "runs")
    assert (code, out) == (0, f"Report of {len(cuts) - 1} runs of 1 method: report/report.html\n")
    assert err.count(_UNREAD) == 2
    assert {path.name for path in (tmp_path / "report" / "figures").glob("*.svg")} == {
        "accuracy.svg",
        "who_forgets_whose_data_4.svg",
        "one_round_by_class_4.svg",
    }


def _ends(log: bytes) -> Iterator[int]:
    position = 0
    while position < len(log):
        position += 12 + struct.unpack_from("<Q", log, position)[0] + 4
        yield position


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
