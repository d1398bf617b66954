"""Every method, task stream, callback, storage, precision and defence on the pretended GPU ends as on the CPU."""

from itertools import cycle

import pytest
import torch
from declared_by_tests import changes, trains_at_the_server
from pretended.runs import assert_same, both, fit, loop

from fl_lightning import callbacks, methods
from fl_lightning import tasks as room
from fl_lightning.data import Arrays
from fl_lightning.privacy import DPSGD, UserLevelDP
from fl_lightning.robustness import Krum, LabelFlip, SignFlip
from fl_lightning.tasks import ClassLearner, ClassStream, DomainStream, TaskStream

pytestmark = pytest.mark.slow
ENGINES = ["sequential", "vectorized", "captured"]
OF_A_STEP = ("client_start", "client_loss", "client_penalty", "client_gradients", "client_step", "resting")  # hooks
BUFFERS = ["averaged", "local", "reset"]
OPTIMIZERS = ["Adam", "Adagrad", "RMSprop"]
UNDER_A_TRAINER = [next(filter(trains_at_the_server, methods.__all__)), "APFL"]
MAGNIFIES = "FedProx SynapticIntelligence"  # rounding: importances are quotients by squares of small steps
# Of a federated method with a learner of tasks those with the most state.
TASKS = ["FedWeIT", "LocalOnly SingleTask", "LocalOnly EWC", "FedAvg TaskLearner", "SCAFFOLD EWC", "FedCurv APD"]
TASKS += ["FedProx StableSGD", MAGNIFIES]
GENERATORS = ["LANDER", "MFCL", "TARGET"]  # of images; they magnify rounding


def learners(kind: type) -> list[str]:
    """Public names of the learners that derive from a class, without it."""
    public = {name: getattr(room, name) for name in room.__all__}
    return sorted(name for name, value in public.items() if issubclass(value, kind) and value is not kind)


@pytest.mark.parametrize("name", methods.__all__)
def test_methods(name):
    """Rounds without a trainer; local steps that are a method's own are captured. tests/engines stacks those of all."""
    gpu, _ = loop("gpu", name, "captured" if name == "FedAvg" or changes(name, *OF_A_STEP) else "vectorized")
    assert_same(gpu, loop("cpu", name)[0])


@pytest.mark.parametrize("name", UNDER_A_TRAINER)
def test_methods_under_a_trainer(name):
    """One that trains at the server, and one with a model of each client: the tests below have the others' parts."""
    both(name=name)


@pytest.mark.parametrize(("name", "engine"), list(zip(TASKS, cycle(ENGINES))), ids=TASKS)
def test_methods_on_task_streams(name, engine):
    """Two tasks of a round each."""
    settings = {"num_classes": 2, "data": {"tasks": TaskStream(classes_per_task=2), "augment": ()}}
    settings |= {"precision": "64-true"} if name == MAGNIFIES else {}
    both(name=name, engine=engine, **settings)


@pytest.mark.parametrize("name", learners(ClassLearner))
def test_methods_on_arriving_classes(name):
    settings = {"precision": "64-true", "atol": 1e-9} if name in GENERATORS else {}
    settings |= {"rounds": 4} if name == "LANDER" else {}  # two a task
    both(name=f"FedAvg {name}", data={"tasks": ClassStream(num_tasks=2), "val_fraction": 0.0}, **settings)


def test_methods_on_arriving_domains():
    data = {"domains": ["ink", "paint"], "tasks": DomainStream(), "val_fraction": 0.0, "augment": ()}
    both(name="FedAvg ServerEWC", engine="captured", data=data)


@pytest.mark.parametrize(("buffers", "engine"), zip(BUFFERS, ENGINES), ids=BUFFERS)
def test_batch_norm(buffers, engine):
    """test_budgets.py has averaged buffers under every engine."""
    gpu, _ = loop("gpu", engine=engine, norm="batch", batch_norm_buffers=buffers)
    assert_same(gpu, loop("cpu", norm="batch", batch_norm_buffers=buffers)[0])


@pytest.mark.parametrize(("optimizer", "engine"), zip(OPTIMIZERS, ENGINES), ids=OPTIMIZERS)
def test_optimizers(optimizer, engine):
    settings = {"optimizer": lambda weights: getattr(torch.optim, optimizer)(weights, lr=0.01)}
    assert_same(loop("gpu", engine=engine, **settings)[0], loop("cpu", **settings)[0], atol=1e-4)


@pytest.mark.parametrize(("storage", "engine"), [("device", "vectorized"), ("stream", "sequential"), ("stream", "captured")])
def test_storage(storage, engine):
    both(engine=engine, data={"storage": storage})


@pytest.mark.parametrize(
    ("precision", "atol", "engine"),
    [("64-true", 1e-12, "vectorized"), ("bf16-mixed", 0.05, "sequential"), ("bf16-true", 0.05, "captured")],
)
def test_precision(precision, atol, engine):
    """test_budgets.py has bf16-mixed under the other engines."""
    both(precision=precision, engine=engine, atol=atol)


@pytest.mark.parametrize(
    ("settings", "engine"),
    [({"aggregation": Krum(0)}, "vectorized"), ({"hostile": SignFlip()}, "captured"), ({"hostile": LabelFlip()}, "sequential")],
    ids=str,
)
def test_rules_and_hostile_clients(settings, engine):
    both(engine=engine, **settings)


def test_callbacks():
    """Of the global model, all in one run: the scalars of each are compared."""
    of_rounds = ("ClientForgetting", "RoundForgetting", "LossIncrease", "LabelCounts", "Communication")
    both(
        watch=lambda: [
            *(getattr(callbacks, name)(every=1) for name in of_rounds),
            callbacks.PerClassAccuracy(every=1, clients_every=1),
        ]
    )


def test_personal_accuracy():
    settings = {"fine_tune": True, "fine_tuning_epochs": 1, "new_clients": 1}
    both(name="FedPer", watch=lambda: [callbacks.PersonalAccuracy(every=1, **settings)])


def known_before():
    """Images of two of the classes, of which no client has any."""
    images = torch.randint(0, 256, (12, 3, 5, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    return Arrays(images, [0, 1] * 6, images, [0, 1] * 6)


@pytest.mark.parametrize(
    ("learner", "engine"),
    [(lambda: room.L2SP(1.0), "captured"), (lambda: room.PretrainedEWC(known_before(), 1.0), "vectorized")],
)
def test_what_holds_a_net_to_its_start(learner, engine):
    """And what looks at what it knew: samples of another source go to the device too."""

    def run(device, engine):
        sets = {"old": known_before()}
        watch = [callbacks.ReferenceAccuracy(sets, every=1), callbacks.WiseFT(sets, [0.5])]
        return fit(device, engine=engine, tasks=learner(), watch=watch)

    cpu, gpu = run("cpu", "sequential"), run("gpu", engine)
    assert_same(gpu, cpu)
    names = [name for name in cpu.newest if name.startswith(("reference/", "wise_ft/"))]
    assert len(names) == 6
    assert [gpu.newest[name] for name in names] == pytest.approx([cpu.newest[name] for name in names], abs=1e-4)


STREAM = {"tasks": TaskStream(classes_per_task=2), "augment": ()}
OF_SOME_METHODS = {
    "TaskAccuracy TaskAttention": {"name": "FedWeIT", "num_classes": 2, "data": STREAM},
    "ArrivingClasses": {"name": "FedAvg ICaRL", "data": {"tasks": ClassStream(num_tasks=2), "val_fraction": 0.0}},
    "PseudoDataFisher": {"name": "FedReg", "engine": "sequential", "data": {"augment": ()}},
}


@pytest.mark.parametrize("names", OF_SOME_METHODS)
def test_callbacks_of_some_methods(names):
    settings = {} if names == "ArrivingClasses" else {"every": 1}
    both(watch=lambda: [getattr(callbacks, name)(**settings) for name in names.split()], **OF_SOME_METHODS[names])


@pytest.mark.parametrize(("defence", "engine"), [(DPSGD, "sequential"), (UserLevelDP, "vectorized")])
def test_defences(defence, engine):
    settings = {"server_weighting": "uniform", "loss": torch.nn.CrossEntropyLoss()}
    settings |= {"privacy": defence(noise_multiplier=1.0), "watch": lambda: [callbacks.PrivacyBudget()]}
    both(engine=engine, **settings, data={"augment": ()})


@pytest.mark.parametrize(("client_state", "first", "then"), [("memory", "cpu", "gpu"), ("disk", "gpu", "cpu")])
def test_a_run_goes_on_elsewhere(client_state, first, then, tmp_path, monkeypatch):
    """From a checkpoint with the momentum of the server and what clients keep, which comes to a GPU from a file in any case."""
    settings = {"name": "SCAFFOLD", "client_state": client_state}
    settings |= {"server_optimizer": lambda weights: torch.optim.SGD(weights, lr=1.0, momentum=0.5)}
    monkeypatch.chdir(tmp_path)
    engine = {"cpu": "sequential", "gpu": "auto"}
    whole = fit("cpu", engine="sequential", rounds=3, **settings)
    (tmp_path / "cut").mkdir()
    monkeypatch.chdir(tmp_path / "cut")
    fit(first, engine=engine[first], rounds=2, save=tmp_path / "2.ckpt", **settings)
    assert_same(fit(then, engine=engine[then], rounds=3, ckpt_path=tmp_path / "2.ckpt", **settings), whole)
