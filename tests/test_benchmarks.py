"""What a results file of the benchmarks says of the machine, and the command for a GPU on the pretended one."""

import json
import re
import shutil
import sys
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from options import NO_PICTURES
from pretended import pretended_gpu

from fl_lightning.data import Arrays, Dirichlet, FederatedDataModule

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)  # they are no part of what is installed


def test_a_results_file_names_the_instruction_set(tmp_path):
    from benchmarks.measurements import Table
    from benchmarks.report import circumstances, write_json

    write_json(tmp_path / "results.json", circumstances(threads=1), [Table("W1", [{"s": 1.0}])])
    about = json.loads((tmp_path / "results.json").read_text())
    assert about["cpu capability"] == torch.backends.cpu.get_cpu_capability()


@pytest.mark.parametrize(("row", "at_most", "holds"), [("ours", 0.5, "yes"), ("ours", 0.49, "no"), ("left out", 0.5, "no")])
def test_a_check_fails_above_a_limit_and_without_a_program(monkeypatch, capsys, tmp_path, row, at_most, holds):
    from benchmarks import __main__, check
    from benchmarks.measurements import Table, ratios_to

    def measured(options):
        rounds = {"reference": [2.0, 4.0, 1.0], "ours": [1.0, 2.0, 3.0]}
        reference, ours = ([{"seconds": seconds} for seconds in of_one] for of_one in rounds.values())
        return Table("W", [{"program": "ours", "to reference": sorted(ratios_to(reference, ours))[1]}])

    monkeypatch.setattr(check, "LIMITS", (check.Limit("a ratio", measured, row, "to reference", at_most),))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--check", "--out", str(tmp_path / "check.json")])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == (0 if holds == "yes" else 1)
    found = "0.5" if row == "ours" else "nan"
    assert f"| a ratio | {found} | {at_most} | {holds} |" in capsys.readouterr().out
    assert json.loads((tmp_path / "check.json").read_text())["tables"][0]["rows"][0]["holds"] == holds


def test_a_check_fails_without_the_program_that_all_are_compared_with(monkeypatch, capsys):
    """The other programs of W5 start, and are not taken for the smallest one."""
    from benchmarks import check, measurements

    monkeypatch.setattr(measurements, "running", lambda *_: nullcontext({"W5-10000": None, "W5-100000": None}))
    monkeypatch.setattr(check, "LIMITS", (check.Limit("W5", measurements.population_growth, "W5-100000", "to first", 1.1),))
    table, holds = check.check(Namespace(threads=1))
    assert not holds
    assert table.rows[0]["holds"] == "no"
    assert capsys.readouterr().err == "W5-1000 did not start: nothing can be compared with it\n"


def test_ratios_have_their_quartiles():
    from benchmarks.measurements import spread

    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == "2 to 4"
    assert spread([0.5]) == "0.5 to 0.5"


def _small_federation():
    images, labels = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8), torch.arange(60) % 4
    source = Arrays(images, labels, images[:8], labels[:8])
    return FederatedDataModule(source, num_clients=4, clients_per_round=2, batch_size=4, partition=Dirichlet(alpha=5.0))


@pytest.fixture
def checkout(tmp_path):
    """The files that the command writes."""
    for name in ("benchmarks/RESULTS.md", "docs/results.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


_SMALL = """
import sys
sys.path[:0] = {path!r}
import test_benchmarks
from benchmarks import __main__, run_on_gpu
from fl_lightning.models import MLP
run_on_gpu.federation = test_benchmarks._small_federation
run_on_gpu.ResNet18 = lambda *shape, norm: MLP(*shape, hidden=(8,))
with test_benchmarks.pretended_gpu():
    __main__.main()
"""


@pytest.fixture
def small_headline(monkeypatch, tmp_path):
    """Two rounds of a small net with one engine, a device test on the pretended GPU and none, and one short run on digits."""
    from benchmarks import headline
    from studies.declaration import Sweep

    arguments = ["--config", "digits_tce.yaml", "--model.net", "MLP", "--model.net.hidden", "[8]", *NO_PICTURES]
    arguments += ["--trainer.max_steps", "2", "--trainer.val_check_interval", "1", "--trainer.accelerator", "cpu"]
    sweep = Sweep("cross entropy, group norm", " ".join(arguments))
    monkeypatch.setattr(headline, "_STUDY", replace(headline._STUDY, sweeps=(sweep,)))
    monkeypatch.setattr(headline, "_ENGINES", ("captured",))
    monkeypatch.setattr(headline, "_ROUNDS", 2)
    monkeypatch.setattr(headline, "_REAL", {})
    tests = ["test_batch_norm[averaged]", "test_no_such"]
    monkeypatch.setattr(headline, "_tests", lambda: [f"{headline._TESTS}::{name}" for name in tests])
    (tmp_path / "small.py").write_text(_SMALL.format(path=[str(Path(__file__).parent), *sys.path]))
    monkeypatch.setattr(headline, "_GPU", (sys.executable, str(tmp_path / "small.py"), "--gpu"))
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    return headline.headline


@pytest.mark.slow
def test_the_headline_is_measured_in_pieces(small_headline, checkout, capsys):
    """Out of time it ends and goes on from there; what was measured once is not measured again."""
    options = Namespace(out=checkout / "headline.json", runs=checkout / "runs", minutes=0, data=[])
    before = (checkout / "benchmarks" / "RESULTS.md").read_text()
    with pretended_gpu():
        assert small_headline(options, checkout) == 143
        assert "0 of 3 measurements are done, and no full run: run the same command to resume" in capsys.readouterr().err
        options.minutes = 10
        assert small_headline(options, checkout) == 0
        measured = options.out.read_bytes()
        assert small_headline(options, checkout) == 0
    found = json.loads(measured)["measured"]
    assert options.out.read_bytes() == measured
    assert found["engine captured"]["rounds"] == 2
    tests = [row for name, row in found.items() if "::" in name]
    assert tests[0] == {"device": "pretended GPU", "passed": 1, "failed": []}
    assert tests[1]["error"].startswith("ERROR: not found: ")

    page = (checkout / "benchmarks" / "RESULTS.md").read_text()
    section = re.search(r"## On a GPU: measured\n(.*?)(?=\n## )", page, re.DOTALL)[0]
    assert page.replace(f"{section}\n", "") == before
    assert re.search(r"^\| captured \| pretended GPU \| 2 \|", section, re.MULTILINE)
    assert "| test_batch_norm[averaged] | pretended GPU | 1 | none |" in section
    assert "| [headline](results/headline/report.md) |" in (checkout / "docs" / "results.md").read_text()
    assert "All 1 runs are done." in (checkout / "docs" / "results" / "headline" / "report.md").read_text()


def test_a_part_that_does_not_fit_is_a_row(monkeypatch, tmp_path):
    """An engine for which there is no memory, as a run says so, and parts that do not end."""
    from benchmarks import headline

    said = 'import sys; sys.exit("Traceback\\nMemoryError: round 1, the clients\' local fits asked for 80 GiB")'
    monkeypatch.setattr(headline, "_GPU", (sys.executable, "-c", said))
    row = {"error": "MemoryError: round 1, the clients' local fits asked for 80 GiB"}
    assert headline._engine("vectorized") == row
    test = tmp_path / "test_large.py"
    test.write_text(f"def test_it():\n    raise MemoryError({row['error'].partition(': ')[2]!r})\n")
    found = headline._device_test(f"{test}::test_it")
    assert (found["passed"], len(found["failed"]), found["error"]) == (0, 1, row["error"])
    assert f"| 0 | `test_it`, {row['error']} |" in headline._tables({f"{headline._TESTS}::test_it": {"device": "GPU", **found}})
    monkeypatch.setattr(headline, "_SECONDS", 0.01)
    assert headline._engine("vectorized") == {"error": "it took longer than 0.01 s"}
    assert headline._device_test("tests/test_package.py") == {"error": "it took longer than 0.01 s"}


@pytest.mark.slow
def test_every_device_test_is_a_part():
    """One a method, and not one for all methods."""
    from benchmarks.headline import _TESTS, _tests

    assert f"{_TESTS}::test_methods[SCAFFOLD]" in _tests()
    assert f"{_TESTS}::test_batch_norm[averaged]" in _tests()


def test_full_runs_and_timed_rounds_have_one_arithmetic(monkeypatch):
    """On the pretended GPU: precision, products of float32 and cuDNN's choice as a run of the study has them."""
    from benchmarks import run_on_gpu
    from fl_lightning import Trainer
    from fl_lightning.models import MLP
    from studies.catalogue import STUDIES

    def arithmetic():
        cudnn = torch.backends.cudnn
        return torch.get_float32_matmul_precision(), cudnn.benchmark, cudnn.allow_tf32

    before, seen = arithmetic(), []
    monkeypatch.setattr(run_on_gpu, "federation", _small_federation)
    monkeypatch.setattr(run_on_gpu, "ResNet18", lambda *shape, norm: MLP(*shape, hidden=(8,)))
    monkeypatch.setattr(run_on_gpu.Clock, "on_train_start", lambda self, trainer, module: seen.append(trainer.precision))
    monkeypatch.setattr(run_on_gpu, "Clock", type("Stopped", (run_on_gpu.Clock,), {"after_first": 0.0, "start": 0.0}))
    try:
        with pretended_gpu():
            run_on_gpu.run_on_gpu(Namespace(engine="sequential", rounds=1, analysis=False))
            timed = arithmetic()
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.benchmark = False
            Trainer(accelerator="gpu", devices=1, logger=False, enable_checkpointing=False)
            assert arithmetic() == timed
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before[1:]
    for sweep in STUDIES["headline"].sweeps:
        assert f"--trainer.precision {seen[0]}" in sweep.arguments


def test_without_a_gpu_it_is_one_line(monkeypatch):
    from benchmarks import __main__

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments, said in ((["--gpu", "--headline"], "there is no CUDA device here"), (["--headline"], "give --gpu too")):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        with pytest.raises(SystemExit) as ended:
            __main__.main()
        assert re.fullmatch(rf"benchmarks -.*{said}", ended.value.code)  # which Python prints, and exits with 1
