"""What may change when a run goes on, and what is refused by name."""

import inspect
import re
import shutil
import sys
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import yaml
from options import NO_PICTURES
from torch.optim.lr_scheduler import ExponentialLR

import fl_lightning
from fl_lightning import FedAvg, FederatedDataModule, FederatedModule, FedPer, FedProx, tasks
from fl_lightning.command_line import cli
from fl_lightning.data import IID, Shards, from_arrays
from fl_lightning.losses import TruncatedCrossEntropy, WeightedCrossEntropy
from fl_lightning.models import MLP
from fl_lightning.state.atomic_files import atomic_save

NET = "--config digits_tce.yaml --model.net MLP --model.net.hidden [16]".split()
DATA = "--data.num_clients 20 --data.clients_per_round 5 --data.batch_size 32 --data.val_fraction 0.1 --data.monitor_test 2"
RUN = ["fit", *NET, *DATA.split(), *NO_PICTURES]
RUN += "--model.local_steps 3 --trainer.val_check_interval 2 --trainer.max_steps".split()


@pytest.fixture(scope="module")
def run_of_two_rounds(tmp_path_factory) -> Path:
    """The folder in which the first round ran."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["fl-lightning"])
        assert cli.main([*RUN, "2"]) == 0
    return folder


@pytest.fixture
def two_rounds(run_of_two_rounds, tmp_path) -> Path:
    """A copy of that folder's runs in the folder of the test, to go on from."""
    return Path(shutil.copytree(run_of_two_rounds, tmp_path, dirs_exist_ok=True))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


CHANGED_TOGETHER = [
    {
        "--model.server_optimizer.lr 0.001": "model.server_optimizer.lr is 0.001, 1.0 in the run",
        "--model.optimizer.lr 0.7": "model.optimizer.lr is 0.7, 0.1 in the run",
        "--model.optimizer.momentum 0.9": "model.optimizer.momentum is 0.9, 0",
        "--model.loss CrossEntropy": "model.loss is CrossEntropy, TruncatedCrossEntropy in the run",
        "--model.local_steps 5": "model.local_steps is 5, 3 in the run",
        "--model.learning_rate_decay 0.5": "model.learning_rate_decay is 0.5, 1.0 in the run",
        "--model.initial_weights nowhere.ckpt": "model.initial_weights is nowhere.ckpt, None in the run",
        "--model.net.hidden [8]": "model.net.hidden is [8], [16] in the run",
        "--seed_everything 7": "seed_everything is 7, 0 in the run",
    },
    {
        "--model FedProx": "model is FedProx, FedAvg in the run",
        "--model.privacy UserLevelDP --model.privacy.noise_multiplier 1": "model.privacy is UserLevelDP, None in the run",
        "--data.partition.alpha 5": "data.partition.alpha is 5.0, 0.1 in the run",
        "--data.num_clients 15": "data.num_clients is 15, 20 in the run",
        "--data.clients_per_round 4": "data.clients_per_round is 4, 5 in the run",
        "--data.batch_size 8": "data.batch_size is 8, 32 in the run",
        "--data.val_fraction 0.2": "data.val_fraction is 0.2, 0.1 in the run",
        "--data.augment+=fl_lightning.data.augment.RandomHorizontalFlip": "data.augment is ['RandomHorizontalFlip'], [] in the",
        "--trainer.precision bf16-true": "trainer.precision is bf16-true, 32-true in the run",
        "--trainer.limit_val_batches 1": "trainer.limit_val_batches is 1, 1.0 in the run",
    },
    {
        "--model SCAFFOLD": "model is SCAFFOLD, FedAvg in the run",
        "--model.server_optimizer torch.optim.Adam": "model.server_optimizer is Adam, SGD in the run",
        "--model.lr_scheduler StepLR --model.lr_scheduler.step_size 1": "model.lr_scheduler is StepLR, None in the run",
        "--data.partition IID": "data.partition is IID, Dirichlet in the run",
        "--trainer.limit_test_batches 0.5": "trainer.limit_test_batches is 0.5, 1.0 in the run",
    },
    {"--data.batch_size 8": "ckpt_path is of a run with other settings: data.batch_size is 8, 32 in the run: "},
]


@pytest.mark.parametrize("changed", CHANGED_TOGETHER, ids=lambda changed: next(iter(changed)))
def test_other_settings_are_refused_by_name(main, monkeypatch, run_of_two_rounds, changed):
    """The key as typed and both values in one line, for each setting; no file of the run changes."""
    monkeypatch.chdir(run_of_two_rounds)
    before = contents(run_of_two_rounds)
    code, _, error = main(*RUN, "4", *" ".join(changed).split(), "--ckpt_path", "last")
    assert code == 1
    assert error.count("\n") == 1
    assert "ckpt_path is of a run with other settings: " in error
    missing = [message for message in changed.values() if message not in error]
    assert not missing, error
    assert "model.initial_weights" in error
    assert contents(run_of_two_rounds) == before


def test_a_run_that_has_all_rounds_is_held_to_its_settings(main, monkeypatch, run_of_two_rounds):
    """Nothing is left to do, but not for a run with other settings, whose rounds these are not."""
    monkeypatch.chdir(run_of_two_rounds)
    before = contents(run_of_two_rounds)
    code, _, error = main(*RUN, "2", "--model.optimizer.lr", "0.7", "--ckpt_path", "last")
    assert (code, error.count("\n")) == (1, 1)
    assert "model.optimizer.lr is 0.7, 0.1 in the run" in error
    code, out, _ = main(*RUN, "2", "--ckpt_path", "last")
    assert code == 0
    assert "already has 2 rounds" in out
    assert contents(run_of_two_rounds) == before


OPAQUE_OPTIONS = "--model.net opaque_parts.Net --model.loss opaque_parts.Scaled".split()
OPAQUE_RUN = ["fit", *NET[:2], *OPAQUE_OPTIONS, *RUN[len(NET) + 1 :]]
OPAQUE = """
import torch
from torch.nn import functional as F

from fl_lightning.losses import Loss


class Net(torch.nn.Linear):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int, act: str = "relu"):
        super().__init__(64, num_classes)
        self._act = getattr(F, act)

    def forward(self, inputs):
        return self._act(super().forward(inputs.flatten(1)))


class Scaled(Loss):
    def __init__(self, weight: float = 1.0):
        self._weight = torch.tensor(weight)

    def __call__(self, logits, target, label_counts):
        return self._weight * F.cross_entropy(logits, target, reduction="none")
"""


@pytest.fixture(scope="module")
def opaque_run(tmp_path_factory) -> Path:
    """A folder with a net and a loss that show no option of theirs, and a run with them whose config.yaml is gone."""
    folder = tmp_path_factory.mktemp("opaque")
    (folder / "opaque_parts.py").write_text(OPAQUE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["fl-lightning"])
        assert cli.main([*OPAQUE_RUN, "2"]) == 0
    (folder / "runs" / "digits_tce" / "version_0" / "config.yaml").unlink()
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--model.net.act gelu", "model.net.act is gelu, relu in the run"),
        ("--model.loss.weight 5", "model.loss.weight is 5.0, 1.0 in the run"),
    ],
)
def test_an_option_that_an_object_keeps_to_itself_stays(main, monkeypatch, opaque_run, options, message):
    """The checkpoint has the config's values, whether or not config.yaml is there."""
    monkeypatch.chdir(opaque_run)
    before = contents(opaque_run)
    code, _, error = main(*OPAQUE_RUN, "4", *options.split(), "--ckpt_path", "last")
    assert (code, error.count("\n")) == (1, 1)
    assert message in error
    assert contents(opaque_run) == before


def test_a_run_with_such_objects_goes_on(main, tmp_path):
    """Told by the same options."""
    (tmp_path / "opaque_parts.py").write_text(OPAQUE)
    assert main(*OPAQUE_RUN, "2")[0] == 0
    code, _, error = main(*OPAQUE_RUN, "4", "--model.engine", "sequential", "--ckpt_path", "last")
    assert code == 0, error


def test_evaluation_takes_the_options_of_the_net(main, monkeypatch, opaque_run):
    """Another activation is another net, though all its weights fit."""
    monkeypatch.chdir(opaque_run)
    code, _, error = main("test", *NET[:2], *OPAQUE_OPTIONS, "--model.net.act", "gelu", "--ckpt_path", "last")
    assert (code, error.count("\n")) == (1, 1)
    assert (
        "ckpt_path is of a run with another net, other clients or other tasks: model.net.act is gelu, relu in the run: use "
        "that run's" in error
    )
    assert main("test", *NET[:2], *OPAQUE_OPTIONS, "--ckpt_path", "last")[0] == 0


def test_a_batch_of_an_evaluation_has_its_size_where_batches_are_counted(fit, toy_data, tmp_path):
    """Two batches of 2 samples are other samples than two of 3; where all are evaluated the size may change."""
    for limit, message in ((2, "data.eval_batch_size is 3, 2 in the run"), (None, None)):
        fit(FedAvg(torch.nn.Linear(4, 3)), toy_data(eval_batch_size=2), 1, limit_val_batches=limit).save_checkpoint(
            tmp_path / "one.ckpt"
        )
        changed = FedAvg(torch.nn.Linear(4, 3)), toy_data(eval_batch_size=3), 2, tmp_path / "one.ckpt"
        if message is None:
            fit(*changed, limit_val_batches=limit)
        else:
            with pytest.raises(ValueError, match=message):
                fit(*changed, limit_val_batches=limit)


def test_what_may_change_does(main, two_rounds):
    """More rounds, cadences, logging, engine and where states lie; config.yaml then says what ran."""
    allowed = (
        "--trainer.val_check_interval 3 --data.monitor_test 1 --callbacks.client_forgetting.every 2 --model.engine sequential "
        "--model.client_state disk --data.root elsewhere --data.eval_batch_size 100 --trainer.enable_progress_bar false "
        "--trainer.log_every_n_steps 2"
    )
    code, _, error = main(*RUN, "4", *allowed.split(), "--ckpt_path", "last")
    assert code == 0, error
    config = yaml.safe_load((two_rounds / "runs" / "digits_tce" / "version_0" / "config.yaml").read_text())
    assert config["trainer"]["max_steps"] == 4
    assert config["trainer"]["val_check_interval"] == 3
    assert config["data"]["root"] == "elsewhere"


def test_evaluation_takes_other_settings(main, two_rounds, recwarn):
    """validate and test ask for the same net alone; validate warns of samples that the run trained on."""
    other = "--data.partition.alpha 5 --model.optimizer.lr 3 --ckpt_path last"
    warning = "which may have trained on them: data.partition.alpha is 5.0, 0.1 in the run"
    for command in ("validate", "test"):
        code, _, error = main(command, *NET, *other.split())
        assert code == 0, error
        assert any(warning in str(one.message) for one in recwarn) == (command == "validate")
        recwarn.clear()


def test_personal_models_are_evaluated_on_samples_of_their_clients(fit, tmp_path):
    """Another seed or partition gives other clients, another fraction holds out samples that the run trained on."""
    settings = {"num_clients": 4, "clients_per_round": 2, "val_fraction": 0.2, "test_fraction": 0.2, "partition": Shards()}
    fit(FedPer(MLP), FederatedDataModule(**settings), 1).save_checkpoint(tmp_path / "one.ckpt")

    def evaluate(command, **changed):
        trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
        data = FederatedDataModule(**{**settings, **changed})
        getattr(trainer, command)(FedPer(MLP), datamodule=data, ckpt_path=tmp_path / "one.ckpt", verbose=False)

    for command in ("test", "validate"):
        evaluate(command)
        for changed, message in (
            ({"seed": 5}, "data.seed is 5, 0 in the run"),
            ({"partition": IID()}, "data.partition is IID, Shards in the run"),
            ({"test_fraction": 0.5}, "data.test_fraction is 0.5, 0.2 in the run"),
        ):
            with pytest.raises(ValueError, match=f"is of a run with another net, other clients or other tasks: {message}"):
                evaluate(command, **changed)


@pytest.mark.parametrize("command", ["test", "validate", "predict"])
def test_evaluation_normalises_as_the_training_did(main, monkeypatch, run_of_two_rounds, command):
    """Other statistics would give other accuracies of the same net without a word; the run's may be given."""
    monkeypatch.chdir(run_of_two_rounds)
    evaluation = (command, *NET, "--ckpt_path", "last")
    code, _, error = main(*evaluation, "--data.mean", "[0.9]", "--data.std", "[0.1]")
    assert (code, error.count("\n")) == (1, 1)
    assert "data.mean and data.std are, given or measured, [0.9] and [0.1], but the net of ckpt_path was trained with" in error
    options = error.partition("or give ")[2].split()
    assert options[::2] == ["--data.mean", "--data.std"]
    code, _, error = main(*evaluation, *options)
    assert code == 0, error


def test_a_checkpoint_without_settings_is_refused(main, two_rounds):
    """No run of this layout wrote it, and nothing would hold the fit to them."""
    path = two_rounds / "runs" / "digits_tce" / "version_0" / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["federated"]["settings"]
    atomic_save(checkpoint, path)
    code, _, error = main(*RUN, "3", "--model.optimizer.lr", "0.3", "--ckpt_path", "last")
    assert (code, error.count("\n")) == (1, 1)
    assert "last.ckpt, which no run of fl-lightning wrote (it lacks settings): give a checkpoint of one" in error


def test_a_method_may_be_fitted_again(fit, toy_data):
    """Whatever the first fit has left on it, such as its engine: the second trains on."""
    method, data = FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64)), toy_data()
    fit(method, data, 1, precision="64-true")
    first = method.net.weight.detach().clone()
    fit(method, data, 2, precision="64-true")
    assert not torch.equal(method.net.weight, first)


def test_other_samples_with_the_same_labels_are_refused(fit, toy_data, tmp_path):
    """Other names of classes, and images of another mean."""

    def method():
        torch.manual_seed(0)
        return FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64))

    fit(method(), toy_data(), 1, precision="64-true").save_checkpoint(tmp_path / "one.ckpt")
    with pytest.raises(ValueError, match=r"classes of the samples is \['a', 'b', 'c'\], \['cat', 'dog', 'owl'\] in the run"):
        fit(method(), toy_data(classes=["a", "b", "c"]), 2, precision="64-true", ckpt_path=tmp_path / "one.ckpt")


class Dropout(torch.nn.Sequential):
    """Two weights, whatever the probability."""

    def __init__(self, p: float) -> None:
        super().__init__(torch.nn.Linear(4, 3, dtype=torch.float64), torch.nn.Dropout(p))


class RateOfBiases:
    """An optimizer callable of a user's, with a rate for biases."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, parameters):
        weight, bias = parameters
        return torch.optim.SGD([{"params": [weight]}, {"params": [bias], "lr": self.rate}], lr=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"net": Dropout(0.5)}, r"a layer of model.net is .*Dropout\(p=0.5, inplace=False\), .*p=0.2, .* in the run"),
        ({"optimizer": RateOfBiases(0.3)}, r"model.optimizer.1.lr is 0.3, 0.2 in the run"),
        ({"lr_scheduler": lambda optimizer: ExponentialLR(optimizer, 0.8)}, "model.lr_scheduler.gamma is 0.8, 0.9 in the run"),
        ({"loss": TruncatedCrossEntropy()}, "model.loss is TruncatedCrossEntropy, CrossEntropy in the run"),
        ({"loss": torch.nn.CrossEntropyLoss()}, "model.loss is TorchLoss, CrossEntropy in the run"),
        ({"kind": FedProx}, "model is FedProx, FedAvg in the run"),
        ({"data": {"cohorts": [[0, 1], [1, 2], [0, 1]]}}, "data.cohorts is "),
        ({"data": {"clients": [range(6), range(6, 15), range(15, 30)]}}, "who holds which samples is "),
        ({"data": {"cohorts": [[0, 2], [0, 1], [2]]}}, None),
    ],
)
def test_in_python_the_objects_say_what_a_run_is(fit, tmp_path, change, message):
    """What nobody typed is told by objects: what callables build, who holds which samples, the cohorts that were."""

    def build(net=None, kind=FedAvg, data=None, **options):
        torch.manual_seed(0)
        options = {"optimizer": RateOfBiases(0.2), "lr_scheduler": lambda server: ExponentialLR(server, 0.9), **options}
        settings = {"cohorts": [[0, 2], [1, 2], [0, 1]], "clients": [range(5), range(5, 15), range(15, 30)], **(data or {})}
        inputs = torch.linspace(-1, 1, 120, dtype=torch.float64).reshape(30, 4)
        return kind(net or Dropout(0.2), **options), from_arrays(inputs, torch.arange(30) % 3, batch_size=None, **settings)

    fit(*build(), 1, precision="64-true").save_checkpoint(tmp_path / "one.ckpt")
    if message is None:
        fit(*build(**change), 2, precision="64-true", ckpt_path=tmp_path / "one.ckpt")
        return
    with pytest.raises(ValueError, match=message):
        fit(*build(**change), 2, precision="64-true", ckpt_path=tmp_path / "one.ckpt")


def test_a_loss_of_torch_has_its_options(fit, toy_data, tmp_path):
    """As that class keeps them."""

    def build(smoothing: float) -> FedAvg:
        return FedAvg(Dropout(0.1), loss=torch.nn.CrossEntropyLoss(label_smoothing=smoothing))

    fit(build(0.1), toy_data(), 1, precision="64-true").save_checkpoint(tmp_path / "one.ckpt")
    with pytest.raises(ValueError, match=r"model.loss.loss.label_smoothing is 0.2, 0.1 in the run"):
        fit(build(0.2), toy_data(), 2, precision="64-true", ckpt_path=tmp_path / "one.ckpt")


def methods() -> list[type[FederatedModule]]:
    public = [getattr(package, name) for package in (fl_lightning, tasks) for name in package.__all__]
    return [kind for kind in dict.fromkeys(public) if inspect.isclass(kind) and issubclass(kind, FederatedModule)]


@pytest.mark.parametrize("kind", methods(), ids=lambda kind: kind.__name__)
def test_methods_keep_their_options(kind):
    """Each option is an attribute of its name: else a run would not know it."""
    options = dict.fromkeys(name for each in kind.__mro__[:-1] for name in inspect.signature(each.__init__).parameters)
    method, no_option = kind(torch.nn.Linear(4, 3)), ("self", "args", "kwargs", "common", "engine")
    assert [name for name in options if name not in no_option and not hasattr(method, name)] == []


def test_the_data_module_keeps_its_options(toy_data):
    """Likewise; the size of a cohort counts as it comes out."""
    data, options = toy_data(), inspect.signature(FederatedDataModule.__init__).parameters
    assert [name for name in options if name not in ("self", "clients_per_round") and not hasattr(data, name)] == []


class Hidden(FedAvg):
    """Keeps its argument under another name, as does its loss."""

    def __init__(self, net, beta: float = 1.0, **common):
        super().__init__(net, **common)
        self._beta = beta


class HiddenLoss(TruncatedCrossEntropy):
    def __init__(self, sharpness: float = 1.0) -> None:
        self._sharpness = sharpness


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 7.0}, "model.beta is 7.0, 1.0 in the run"),
        ({"loss": HiddenLoss(2.0)}, "model.loss._sharpness is 2.0, 1.0 in the run"),
    ],
)
def test_what_a_class_of_ones_own_keeps_under_another_name_stays(fit, toy_data, tmp_path, settings, message):
    """It decides what is learned, whatever it is called."""

    def method(beta=1.0, loss=HiddenLoss()):
        return Hidden(torch.nn.Linear(4, 3), beta=beta, loss=loss)

    fit(method(), toy_data(), 1).save_checkpoint(tmp_path / "cut.ckpt")
    fit(method(), toy_data(), 2, tmp_path / "cut.ckpt")
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(method(**settings), toy_data(), 2, tmp_path / "cut.ckpt")


def test_numbers_of_numpy_are_numbers(fit, toy_data, tmp_path):
    """As of a loop over an array of settings: a run with another number is another run."""

    def method(steps):
        return FedAvg(torch.nn.Linear(4, 3), local_steps=np.int64(steps))

    fit(method(2), toy_data(), 1).save_checkpoint(tmp_path / "cut.ckpt")
    fit(method(2), toy_data(), 2, tmp_path / "cut.ckpt")
    with pytest.raises(ValueError, match="model.local_steps is 3, 2 in the run"):
        fit(method(3), toy_data(), 2, tmp_path / "cut.ckpt")


def test_numbers_of_numpy_in_lists_are_numbers(fit, toy_data, tmp_path):
    """As of a draw of cohorts: the checkpoint can be read, and a run with other past cohorts is another run."""
    drawn = np.array([[0, 1], [1, 2]])

    def method():
        return FedAvg(
            partial(MLP, hidden=[*np.array([5])]), loss=WeightedCrossEntropy(np.array([1.0, 2.0, 3.0])), local_steps=1
        )

    fit(method(), toy_data(cohorts=[*map(list, drawn)]), 1).save_checkpoint(tmp_path / "cut.ckpt")
    fit(method(), toy_data(cohorts=[*drawn]), 2, tmp_path / "cut.ckpt")
    with pytest.raises(ValueError, match="data.cohorts"):
        fit(method(), toy_data(cohorts=[[0, 2], [1, 2]]), 2, tmp_path / "cut.ckpt")
