"""What docs/start.md and docs/tutorials/ show runs, in fewer rounds, one command after another in one folder."""

import json
import re
import shlex
from pathlib import Path

import pytest
from options import NO_PICTURES

from fl_lightning.report.log import read_log

DOCS = Path(__file__).parent.parent / "docs"
FEWER_ROUNDS = ["--trainer.max_steps", "2"]


def blocks(page: str, language: str = "") -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return [text for label, text in fenced if label == language]


def commands(page: str) -> list[list[str]]:
    """Arguments of every ``fl-lightning``, one that torchrun starts included."""
    lines = "".join(blocks(page)).replace("\\\n", " ").splitlines()
    return [shlex.split(line.partition("fl-lightning ")[2]) for line in lines if "fl-lightning " in line]


def shortened(arguments: list[str]) -> list[str]:
    """A command as it stands, but for a fit of few rounds, and CIFAR-10, which is not everywhere: its settings are printed."""
    if "cifar10_tce.yaml" in arguments and arguments[0] != "configs":
        return [*arguments, *([] if "--print_config" in arguments else ["--print_config"])]
    return [*arguments, *NO_PICTURES, *FEWER_ROUNDS] if arguments[0] == "fit" else arguments


@pytest.fixture
def run_page(main):
    """Run a page's commands in order; gives all that they print."""

    def run(page: str) -> str:
        printed = ""
        for arguments in commands(page):
            code, out, error = main(*shortened(arguments))
            assert not code, f"fl-lightning {shlex.join(arguments)}: {error}"
            printed += out
        return printed

    return run


@pytest.mark.slow
def test_start(run_page, tmp_path):
    """The page names every file of the run and no other, and the report is there."""
    printed = run_page("start.md")
    assert "ReweightedSoftmax" in printed
    folder = tmp_path / "runs" / "digits_wsm" / "version_0"
    files = (DOCS / "start.md").read_text().split("| file | what |")[1]
    names = re.findall(r"^\| `([^`]+)` \|", files, re.MULTILINE)
    found = [{path.name for path in folder.glob(name)} for name in names]
    assert all(found), names
    assert set().union(*found) == {path.name for path in folder.glob("[!.]*")}
    assert (tmp_path / "report" / "report.html").is_file()


@pytest.mark.slow
def test_data_and_net(run_page, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    federation, net, archive = blocks("tutorials/data_and_net.md", "python")
    exec(federation, {})
    printed = dict(re.findall(r"^(test accuracy|client forgetting) (\S+)$", capsys.readouterr().out, re.MULTILINE))
    assert float(printed["test accuracy"]) > 0.8  # a linear border between two classes
    assert -1 <= float(printed["client forgetting"]) <= 1
    (tmp_path / "my_net.py").write_text(net)
    exec(archive, {})
    run_page("tutorials/data_and_net.md")
    assert len(json.loads((tmp_path / "partition.json").read_text())["clients"]) == 10
    config = (tmp_path / "runs" / "digits_tce" / "version_0" / "config.yaml").read_text()
    assert "my_net.SmallNet" in config
    assert "width: 64" in config


@pytest.mark.slow
def test_the_table_of_unlearning(main, tmp_path):
    """docs/unlearning.md's commands, with fine-tuning, make its rows; another processor may move a few samples."""
    (config,) = blocks("unlearning.md", "yaml")
    (tmp_path / "mine.yaml").write_text(config)
    *begun, repaired = commands("unlearning.md")
    tuned = [word.replace("erased.pt", "checkpoints/last.ckpt") for word in repaired]
    for arguments in (*begun, repaired, tuned):
        code, _, error = main(*arguments)
        assert not code, f"fl-lightning {shlex.join(arguments)}: {error}"
    rows = re.findall(r"^\| ([a-z].*?) \| (0\..*) \|$", (DOCS / "unlearning.md").read_text(), re.MULTILINE)
    columns = ["unlearning/forget_accuracy", "unlearning/rest_accuracy", "test/accuracy", "unlearning/membership_auc"]
    made = {
        "retrained, 20 rounds": ("retrained/mine/version_0", 20),
        "with client 0, 20 rounds": ("all/mine/version_0", 20),
        "fine-tuned, 5 rounds": ("erased/mine/version_1", 5),
        "erased, 12 steps, before the rounds": ("erased/mine/version_0", 0),
        "erased, and 5 rounds": ("erased/mine/version_0", 5),
    }
    assert [name for name, _ in rows] == list(made)
    for (folder, round), (name, numbers) in zip(made.values(), rows, strict=True):
        *shown, distance = map(float, numbers.split(" | "))
        curves = {tag: curve.by_round() for tag, curve in read_log(tmp_path / folder).scalars.items()}
        assert [curves[column][round] for column in columns] == pytest.approx(shown, abs=0.02), name
        apart = curves.get("unlearning/distance", {round: 0.0})[round]  # the retrained net is its own reference
        assert apart == pytest.approx(distance, rel=0.05), name
    assert read_log(tmp_path / "all/mine/version_0").scalars["ascent/steps"].values[-1] == 12


@pytest.mark.slow
def test_a_papers_table(run_page, tmp_path):
    (config,) = blocks("tutorials/a_papers_table.md", "yaml")
    (tmp_path / "mine.yaml").write_text(config)
    run_page("tutorials/a_papers_table.md")
    last = max((tmp_path / "runs").rglob("config.yaml"), key=lambda path: path.stat().st_mtime)
    assert "fl_lightning.FedNTD" in last.read_text()
    table = (tmp_path / "table_report" / "tables" / "final_accuracy.tex").read_text()
    assert all(loss in table for loss in ("CrossEntropy", "TruncatedCrossEntropy", "ReweightedSoftmax"))


@pytest.mark.slow
def test_a_sweep_with_a_report(command_line, main, capsys):
    """Two of the twelve runs."""
    sweep, report = commands("tutorials/a_sweep_with_a_report.md")
    fewer = [word.replace("=0.05,0.1", "=0.05") for word in sweep]
    fewer[fewer.index("--seeds") + 1] = "1"
    result = command_line(*fewer, *NO_PICTURES, "--callbacks.client_forgetting.every", "1", *FEWER_ROUNDS)
    assert result.returncode == 0, result.stderr
    code, _, error = main(*report)
    assert not code, error
    (code,) = blocks("tutorials/a_sweep_with_a_report.md", "python")
    exec(code, {})
    printed = capsys.readouterr().out
    assert "CrossEntropy" in printed
    assert "mean" in printed


def test_several_processes(command_line, main, tmp_path):
    """One process and two end with the same model."""
    import torch

    one, two, torchrun = commands("tutorials/several_processes.md")
    weights = []
    for arguments in (one, two):
        result = command_line(*shortened(arguments))
        assert result.returncode == 0, result.stderr
        (file,) = (tmp_path / arguments[arguments.index("--trainer.default_root_dir") + 1]).rglob("last.ckpt")
        weights.append({name: w for name, w in torch.load(file)["state_dict"].items() if name.startswith("net.")})
    torch.testing.assert_close(*weights)
    code, _, error = main(*shortened(torchrun))
    assert not code, error


def test_every_tutorial_is_tried():
    """A page of docs/tutorials/ that no test here runs fails."""
    text = Path(__file__).read_text()
    for page in (DOCS / "tutorials").glob("*.md"):
        assert f'"tutorials/{page.name}"' in text, page.name
