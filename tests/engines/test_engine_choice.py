"""The engine that ``auto`` and ``tune`` choose: by a rule, or measured once on a machine."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from engine_cases import (
    CLASSES,
    SHAPE,
    Case,
    CustomStep,
    KeepsCount,
    assert_same,
    conv_net,
    deep_conv_net,
    equal,
    group_norm_net,
    mlp,
    momentum,
    ragged,
    random_slope_net,
    run,
    sgd,
    whole_shards,
)

from fl_lightning import FedAvg
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import ClientSampler
from fl_lightning.engines import engine_choice, engine_timing
from fl_lightning.engines.engine_choice import choose_engine
from fl_lightning.engines.ranks import OneProcess
from fl_lightning.engines.run_context import RunContext
from fl_lightning.protocol import Visit


def engine_line(capsys):
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Engine"))
    return line


def test_auto_goes_by_the_layers_and_says_so(fit, capsys, monkeypatch):
    """One line at the start of the run, with the numbers that decide."""
    many = "Engine: sequential (4 samples a step, 57 of 169 weights in convolutions)"
    for net, few, expected in (
        (mlp, 0, "Engine: vectorized (2,172 weights times samples a step)"),
        (conv_net, 3, many),
        (deep_conv_net, 4, "Engine: sequential (4 samples a step, 285 of 397 weights in convolutions)"),
    ):
        monkeypatch.setattr(engine_choice, "_STACKABLE_IMAGES", few)
        capsys.readouterr()
        run(fit, Case(FedAvg, net, ragged, sgd), "auto")
        assert engine_line(capsys) == expected


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """An empty cache, and seconds by kind of engine in place of measured ones; the engines that were measured are noted."""
    monkeypatch.setenv("FL_LIGHTNING_CACHE", str(tmp_path / "cache"))
    clock = SimpleNamespace(seconds={"SequentialEngine": 0.25, "VectorizedEngine": 0.5}, measured=[])

    def timed(engine, round, visits, turns, max_steps):
        assert 0 < len(visits) <= 10
        assert turns == 4
        assert max_steps == 3
        clock.measured.append(type(engine).__name__)
        return clock.seconds[clock.measured[-1]]

    monkeypatch.setattr(engine_choice, "timed", timed)
    return clock


def test_auto_measures_once_on_a_machine(fit, tmp_path, capsys, clock):
    """The faster engine, kept for the same command; measured anew for another net, an edited file, other threads."""
    case, both = Case(FedAvg, conv_net, ragged, sgd), ["SequentialEngine", "VectorizedEngine"]
    expected = run(fit, case, "sequential")
    capsys.readouterr()
    run(fit, case, "auto")
    assert engine_line(capsys) == "Engine: sequential (measured once on this machine: sequential 0.25 s, vectorized 0.5 s)"
    assert clock.measured == both

    clock.seconds["SequentialEngine"] = 1.0
    run(fit, case, "auto")
    assert engine_line(capsys).startswith("Engine: sequential (measured once")
    assert clock.measured == both

    run(fit, Case(FedAvg, group_norm_net, ragged, sgd), "auto")
    assert engine_line(capsys) == "Engine: vectorized (measured once on this machine: sequential 1 s, vectorized 0.5 s)"
    assert clock.measured == 2 * both

    for file in (tmp_path / "cache").glob("*.json"):
        file.write_text("edited")
    run(fit, case, "auto")
    assert engine_line(capsys).startswith("Engine: vectorized (measured once")
    assert clock.measured == 3 * both

    clock.seconds["VectorizedEngine"] = 2.0
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        actual = run(fit, case, "auto")
    finally:
        torch.set_num_threads(threads)
    assert engine_line(capsys).startswith("Engine: sequential (measured once")
    assert_same(actual, expected, 1e-10)


def test_auto_measures_anew_when_the_engines_change(fit, monkeypatch, clock):
    """The digest of their code is part of the key."""
    case, both = Case(FedAvg, conv_net, ragged, sgd), ["SequentialEngine", "VectorizedEngine"]
    run(fit, case, "auto")
    monkeypatch.setattr(engine_timing, "code", lambda: "another")
    run(fit, case, "auto")
    assert clock.measured == 2 * both


def test_the_digest_of_the_engines_code(monkeypatch, tmp_path):
    """The same twice, and another after a change of one file."""
    before = engine_timing.code()
    shutil.copytree(Path(engine_timing.__file__).parent, tmp_path / "engines")
    monkeypatch.setattr(engine_timing, "__file__", str(tmp_path / "engines" / "engine_timing.py"))
    assert engine_timing.code() == before
    (tmp_path / "engines" / "sums.py").open("a").write("# slower\n")
    assert engine_timing.code() != before


def test_a_resumed_run_keeps_the_engine_that_auto_measured(fit, tmp_path, capsys, clock):
    """On another machine too, where another engine is faster."""
    case = Case(FedAvg, conv_net, ragged, sgd)
    expected = run(fit, case, "auto", callbacks=[Save(tmp_path)])
    assert engine_line(capsys).startswith("Engine: sequential (measured once")
    clock.seconds["SequentialEngine"] = 1.0
    for file in (tmp_path / "cache").iterdir():
        file.unlink()
    resumed = run(fit, case, "auto", ckpt_path=tmp_path / "1.ckpt")
    assert engine_line(capsys) == "Engine: sequential (measured when the run began)"
    assert_same(resumed["weights"], expected["weights"], 0)


def test_auto_says_what_cannot_be_kept_or_stacked(fit, capsys, monkeypatch, clock, tmp_path):
    """Without a folder for the cache it measures at every start; a failure is the reason, and nothing is kept."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("FL_LIGHTNING_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        run(fit, Case(FedAvg, conv_net, ragged, sgd), "auto")
        line = engine_line(capsys)
        assert line.startswith(f"Engine: sequential (measured at every start ({tmp_path}/file/cache ")
        assert line.endswith(" with FL_LIGHTNING_CACHE=FOLDER): sequential 0.25 s, vectorized 0.5 s)")
    assert len(clock.measured) == 4

    monkeypatch.setenv("FL_LIGHTNING_CACHE", str(tmp_path / "cache"))
    clock.seconds = {"SequentialEngine": 0.25}
    run(fit, Case(FedAvg, conv_net, ragged, sgd), "auto")
    assert engine_line(capsys) == "Engine: sequential (FedAvg on Net cannot be vectorized: KeyError: 'VectorizedEngine')"
    assert list((tmp_path / "cache").glob("*.json")) == []


def test_of_several_processes_the_first_measures(clock):
    """What it found holds in the others."""

    class SecondRank(OneProcess):
        rank, size = 1, 2

        def broadcast(self, value):
            assert value is None
            return [{"sequential": 2.0, "vectorized": 1.0}, {}, ""]

    data = ragged()[0]
    data.setup()
    method = FedAvg(conv_net(SHAPE, CLASSES), optimizer=sgd, local_steps=1)
    method.join(data)
    choice = choose_engine(method, RunContext(ranks=SecondRank()), "auto", None, range(1, 3))
    assert choice == ("vectorized", "measured once on this machine: sequential 2 s, vectorized 1 s")
    assert clock.measured == []


def test_auto_does_not_stack_large_steps(fit, capsys, monkeypatch):
    """Above the limit of weights times samples a step one by one is faster: 539 weights, 4 samples, 2,156 against a limit."""
    weights = 72 * 7 + 7 + 7 * 4 + 4
    for limit, expected in ((4 * weights - 1, "sequential"), (4 * weights, "vectorized")):
        monkeypatch.setattr(engine_choice, "_STACKABLE_WORK", limit)
        capsys.readouterr()
        run(fit, Case(FedAvg, mlp, ragged, sgd), "auto")
        assert f"Engine: {expected} ({4 * weights:,} weights times samples a step)" in capsys.readouterr().out


class NobodyAtFirst(ClientSampler):
    """In round 2 client 3 alone, of two expected."""

    may_be_empty = True

    def cohort(self, round, num_clients, size, seed):
        return [] if round == 1 else [3]


@pytest.mark.parametrize("engine", ["auto", "tune"])
def test_a_first_round_of_nobody_hides_nothing(fit, capsys, monkeypatch, engine):
    """The first client to come is rehearsed: its 16 bytes count for two clients a round, its 9 samples for the engine."""

    def data():
        return whole_shards(cohorts=None, client_sampler=NobodyAtFirst(), clients_per_round=2)

    measured, timed = [], engine_choice.timed
    monkeypatch.setattr(engine_choice, "timed", lambda *some: (measured.extend(some[2]), timed(*some))[1])
    run(fit, Case(CustomStep, mlp, data, sgd), engine)
    out = capsys.readouterr().out
    assert "client state: up to 4 clients x 16 bytes = 64 bytes in memory" in out
    if engine == "auto":
        assert f"Engine: vectorized ({9 * (72 * 7 + 7 + 7 * 4 + 4):,} weights times samples a step)" in out
    else:
        assert measured == [Visit(3)] * 3


@pytest.mark.parametrize("method", [FedAvg, KeepsCount])
def test_tune_measures_once_and_changes_nothing(fit, tmp_path, capsys, monkeypatch, method):
    """Seconds of every engine are printed; results are those of one engine; a resumed run takes the choice over."""
    case = Case(method, mlp, ragged, momentum)
    expected = run(fit, case, "sequential")
    capsys.readouterr()
    assert_same(run(fit, case, "tune", callbacks=[Save(tmp_path)]), expected, 1e-10)
    text = capsys.readouterr().out
    chosen = re.search(r"Engine: (\w+) \(sequential \S+ s a round, vectorized \S+ s a round, captured \S+ s a round\)", text)
    assert chosen, text
    checkpoint = torch.load(tmp_path / "1.ckpt", weights_only=True)
    assert checkpoint["federated"]["tuned_engine"] == chosen[1]

    monkeypatch.setattr(engine_choice, "by_measurement", lambda *_: pytest.fail("measured again"))
    resumed = run(fit, case, "tune", ckpt_path=tmp_path / "1.ckpt")
    assert f"Engine: {chosen[1]} (measured when the run began)" in capsys.readouterr().out
    for part in ("weights", "buffers", "states"):
        assert_same(resumed[part], expected[part], 1e-10, part)


class Save(FederatedCallback):
    """A checkpoint after round 1."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_train_batch_end(self, trainer, *arguments):
        if trainer.global_step == 1:
            trainer.save_checkpoint(self.folder / "1.ckpt")


def test_tune_leaves_engines_out_that_cannot_run(fit, capsys):
    """Random slopes cannot be stacked: said, and the run goes on with another engine, with the results of that one."""
    case = Case(FedAvg, random_slope_net, equal, sgd)
    run(fit, case, "tune")
    text = capsys.readouterr().out
    assert "vectorized cannot run this: " in text
    assert re.search(r"Engine: (sequential|captured) \(", text)
