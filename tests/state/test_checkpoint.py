"""What is read as a checkpoint: as it was written, of a run, and never code."""

import os
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from options import NO_PICTURES

from fl_lightning import FedAvg
from fl_lightning.state.atomic_files import atomic_save
from fl_lightning.state.checkpoint import LAYOUT, AtomicCheckpointIO, read_checkpoint, weights_of_net

DIGITS = ["--config", "digits_tce.yaml", "--model.net", "MLP", "--model.net.hidden", "[16]", "--trainer.max_steps", "2"]
DIGITS += NO_PICTURES
LAST = Path("runs/digits_tce/version_0/checkpoints/last.ckpt")
READERS = ("fit", "validate", "test", "predict")


class Code:
    """Pickled, a call that makes a folder where it is read."""

    def __reduce__(self):
        return os.mkdir, ("it_ran",)


def flip_a_bit_of(tensor, path):
    """In the middle of where a file holds a tensor's bytes."""
    stored, of_tensor = bytearray(path.read_bytes()), tensor.contiguous().numpy().tobytes()
    assert stored.count(of_tensor) == 1
    stored[stored.index(of_tensor) + len(of_tensor) // 2] ^= 1
    path.write_bytes(stored)


def one_line(error):
    assert error.count("\n") == 1, error
    return error


@pytest.fixture(scope="module")
def trained(run_in, tmp_path_factory):
    """The folder in which a run was started."""
    return run_in(tmp_path_factory.mktemp("trained"), "fit", *DIGITS)


@pytest.fixture
def digits(main, trained, tmp_path):
    """A copy of the run, in the working folder."""
    shutil.copytree(trained / "runs", tmp_path / "runs")


def test_a_flipped_bit_of_a_weight_is_named_by_every_reader(main, digits):
    """Where training, or an answer, went on from other weights without a word."""
    weight = torch.load(LAST, weights_only=True)["state_dict"]["net.features.1.weight"]
    flip_a_bit_of(weight, LAST)
    assert not torch.equal(torch.load(LAST, weights_only=True)["state_dict"]["net.features.1.weight"], weight)
    for command in READERS:
        rounds = ["--trainer.max_steps", "3"] if command == "fit" else []
        code, _, error = main(command, *DIGITS, *rounds, "--ckpt_path", "last")
        assert code == 1
        assert "last.ckpt, which is not a checkpoint that can be read (its bytes have changed since they" in one_line(error)
        assert "give an older one" in error
    code, _, error = main("attack", "--ckpt_path", str(LAST))
    assert code == 1
    assert "last.ckpt, which is not a checkpoint that can be read (its bytes have changed" in one_line(error)


def test_a_flipped_bit_of_a_clients_state_is_named(main):
    """On disk: the client, its round, and the cure."""
    scaffold = ["--model", "SCAFFOLD", "--model.client_state", "disk", "--data.clients_per_round", "20"]
    assert main("fit", *DIGITS, *scaffold)[0] == 0
    for path in Path("runs/digits_tce/version_0/client_states").rglob("*.pt"):
        flip_a_bit_of(torch.load(path, weights_only=True)["method/variate/features.1.weight"], path)
    code, _, error = main("fit", *DIGITS, *scaffold, "--trainer.max_steps", "3", "--ckpt_path", "last")
    assert code == 1
    assert "cannot be read (its bytes have changed since they were written" in one_line(error)
    assert "from round 2" in error
    assert "resume from an older checkpoint" in error


@pytest.mark.slow
def test_code_in_a_checkpoint_never_runs(main, digits):
    """Whatever is asked for: nothing runs, and nobody is advised to let it."""
    stored = torch.load(LAST, weights_only=True)
    for evil in (Code(), {**stored, "state_dict": {**stored["state_dict"], "x": Code()}}):
        torch.save(evil, LAST)
        for options in ([], ["--weights_only", "false"], ["--weights_only", "true"]):
            for command in READERS:
                code, _, error = main(command, *DIGITS, "--ckpt_path", str(LAST), *options)
                assert code == 1
                says = "weights_only is false" if "false" in options else "(it holds code or objects"
                assert says in one_line(error)
                assert "weights_only=False" not in error
        code, _, error = main("attack", "--ckpt_path", str(LAST))
        assert code == 1
        assert "(it holds code or objects" in one_line(error)
    assert not Path("it_ran").exists()


@pytest.mark.parametrize("command", [*READERS, "partition", "sweep"])
def test_a_config_cannot_ask_for_code(main, digits, command):
    """As the config.yaml next to a checkpoint from elsewhere may; refused before anything is built."""
    config = Path("runs/digits_tce/version_0/config.yaml")
    config.write_text(config.read_text().replace("weights_only: null", "weights_only: false"))
    before = sorted(Path().rglob("*"))
    options = {"sweep": ["--set", "model.seed=1,2"], "partition": []}.get(command, ["--ckpt_path", str(LAST)])
    code, _, error = main(command, "--config", str(config), *options)
    assert code == 1
    assert "weights_only is false, with which a checkpoint could run any code" in one_line(error)
    assert sorted(Path().rglob("*")) == before


def test_python_cannot_ask_for_code_either(fit, toy_data, tmp_path):
    """``trainer.fit(..., weights_only=False)`` ends in the same line."""
    trainer = fit(FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64)), toy_data(), 1, precision="64-true")
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="weights_only is false"):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "a.ckpt", weights_only=False)


def cut(path, length):
    path.write_bytes(path.read_bytes()[:length])


def without(key, path):
    stored = torch.load(path, weights_only=True)
    del stored[key]
    atomic_save(stored, path)


def with_values(path, **values):
    atomic_save({**torch.load(path, weights_only=True), **values}, path)


SPOILT = {
    "empty": (partial(cut, length=0), "not an archive that torch.save wrote, or not all of it"),
    "one byte": (partial(cut, length=1), "not an archive that torch.save wrote, or not all of it"),
    "half": (partial(cut, length=3000), "not an archive that torch.save wrote, or not all of it"),
    "without its end": (partial(cut, length=-10), "not an archive that torch.save wrote, or not all of it"),
    "text": (lambda path: path.write_text("weights: 3\n" * 100), "not an archive that torch.save wrote, or not all of it"),
    "a pickle": (lambda path: path.write_bytes(b"\x80\x02]q\x00."), "not an archive that torch.save wrote, or not all of it"),
    "of the old format": (
        lambda path: torch.save({"state_dict": {}}, path, _use_new_zipfile_serialization=False),
        "not an archive that torch.save wrote, or not all of it",
    ),
    "a list": (lambda path: torch.save([1], path), "no run of fl-lightning wrote (it holds a list)"),
    "a tensor": (lambda path: torch.save(torch.ones(2), path), "no run of fl-lightning wrote (it holds a Tensor)"),
    "weights alone": (lambda path: torch.save({"w": torch.ones(2)}, path), "(it lacks pytorch-lightning_version)"),
    "no weights": (partial(without, "state_dict"), "(it lacks state_dict)"),
    "no round": (partial(without, "global_step"), "(it lacks global_step)"),
    "of another module": (partial(without, "federated"), "(it lacks federated)"),
    "a number for weights": (partial(with_values, state_dict=3), "(its state_dict is a int)"),
    "numbers for weights": (partial(with_values, state_dict={"net.x": 3}), "(its state_dict.net.x is a int)"),
    "no client states": (partial(with_values, federated={}), "(it lacks client_states)"),
}


@pytest.fixture(scope="module")
def whole_checkpoint(tmp_path_factory):
    """As written by a run of one round."""
    import lightning.pytorch as pl

    from fl_lightning.data import from_arrays

    data = from_arrays(torch.randn(9, 4), torch.arange(9) % 3, [range(9)], classes=["a", "b", "c"])
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(max_steps=1, max_epochs=-1, accelerator="cpu", **quiet)
    trainer.fit(FedAvg(torch.nn.Linear(4, 3)), datamodule=data)
    path = tmp_path_factory.mktemp("run") / "last.ckpt"
    trainer.save_checkpoint(path)
    return path.read_bytes()


@pytest.mark.parametrize("name", SPOILT)
def test_a_truncated_or_foreign_file_is_named(whole_checkpoint, tmp_path, name):
    """In one line, with what is wrong with it."""
    spoil, says = SPOILT[name]
    path = tmp_path / "last.ckpt"
    path.write_bytes(whole_checkpoint)
    assert read_checkpoint(path)["global_step"] == 1
    spoil(path)
    with pytest.raises(ValueError, match="^ckpt_path is .*last.ckpt, which ") as caught:
        read_checkpoint(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)


def test_a_checkpoint_without_its_digest_is_refused(whole_checkpoint, tmp_path):
    """As torch.save leaves it, it is not what the run wrote."""
    path = tmp_path / "last.ckpt"
    path.write_bytes(whole_checkpoint)
    stored = read_checkpoint(path)
    torch.save(stored, path)
    with pytest.raises(ValueError, match=r"last\.ckpt, which has lost the digest of its run: give an older one"):
        read_checkpoint(path)


def test_weights_alone_can_be_evaluated_but_not_gone_on_from(fit, toy_data, tmp_path):
    """What ModelCheckpoint(save_weights_only=True) writes: test and load_from_checkpoint take it, a fit names what it lacks."""
    net = torch.nn.Linear(4, 3, dtype=torch.float64)
    method, data = FedAvg(net), toy_data()
    trainer = fit(method, data, 1, precision="64-true")
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    trainer.test(method, datamodule=data, ckpt_path=tmp_path / "weights.ckpt", verbose=False)
    again = FedAvg.load_from_checkpoint(tmp_path / "weights.ckpt", net=torch.nn.Linear(4, 3))
    assert torch.equal(again.net.weight, net.weight)
    with pytest.raises(ValueError, match=r"ckpt_path holds only weights \(it lacks callbacks\), from which no fit can resume"):
        fit(FedAvg(net), toy_data(), 2, precision="64-true", ckpt_path=tmp_path / "weights.ckpt")


@pytest.mark.parametrize(("layout", "said"), [(LAYOUT - 1, "an earlier version"), (LAYOUT + 1, "a later version")])
def test_a_checkpoint_of_another_layout_says_of_which(main, layout, said):
    """Neither a fit nor an evaluation begins with it, and a new run does not take its weights."""
    assert main("fit", *DIGITS)[0] == 0
    present = torch.load(LAST, weights_only=True)
    atomic_save({**present, "federated": present["federated"] | {"layout": layout}}, LAST)
    for command in ("fit", "test"):
        code, _, error = main(command, *DIGITS, "--ckpt_path", "last")
        assert code == 1
        assert f"which {said} of fl-lightning wrote (layout {layout}, this one reads {LAYOUT})" in one_line(error)
        assert ("update fl-lightning" in error) == (layout > LAYOUT)
    code, _, error = main("fit", *DIGITS, "--model.initial_weights", str(LAST))
    assert (code, one_line(error).count(said)) == (1, 1)


def test_weights_of_a_net_are_those_of_the_submodule():
    """By its whole name: neither a submodule whose name begins so, nor one of a submodule that is called so too."""
    parts = {"net": torch.nn.Linear(1, 1), "network": torch.nn.Linear(1, 1), "twin": torch.nn.ModuleDict()}
    parts["twin"]["net"] = torch.nn.Linear(1, 1)
    method = torch.nn.ModuleDict(parts)
    method.register_buffer("position", torch.zeros(()))
    assert weights_of_net({"state_dict": method.state_dict()}).keys() == method["net"].state_dict().keys()
