"""The arguments that methods have in common: as a type checker and as the command line see them."""

import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Unpack, get_type_hints

import pytest
import torch
from jsonargparse import ArgumentParser

from fl_lightning import CommonArguments, FederatedAlgorithm, FederatedModule, Net, methods
from fl_lightning.run.arguments import AlgorithmArguments, ArgumentsButWeighting, ArgumentsButWeightingAndTasks
from fl_lightning.tasks import FedWeIT

ROOT = Path(__file__).parents[2]


def named(kind: type) -> dict[str, Any]:
    """Types of the arguments that a class names, but for the net."""
    kinds = get_type_hints(kind.__init__)
    return {name: kinds[name] for name in inspect.signature(kind.__init__).parameters if name not in ("self", "net", "common")}


def test_they_are_those_of_both_classes():
    """By name and type; of a method that has some itself, all others."""
    of_algorithm, all_of_them = named(FederatedAlgorithm), named(FederatedAlgorithm) | named(FederatedModule)
    assert get_type_hints(AlgorithmArguments) == of_algorithm
    assert get_type_hints(CommonArguments) == all_of_them
    del all_of_them["server_weighting"]
    assert get_type_hints(ArgumentsButWeighting) == all_of_them
    del all_of_them["tasks"]
    assert get_type_hints(ArgumentsButWeightingAndTasks) == all_of_them


class Mine(FederatedModule):
    def __init__(self, net: Net, mu: float = 0.5, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)


class MineAsText(FederatedModule):
    def __init__(self, net: Net, mu: float = 0.5, **others: "Unpack[CommonArguments]") -> None:
        super().__init__(net, **others)


@pytest.mark.parametrize("kind", [*(getattr(methods, name) for name in methods.__all__), FedWeIT, Mine, MineAsText])
def test_the_command_line_has_their_defaults(kind):
    """Which are in the signatures of the two classes, or the method's."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, "model")
    defaults = parser.get_defaults()["model"]
    signatures = [inspect.signature(one.__init__).parameters for one in (FederatedAlgorithm, FederatedModule, kind)]
    expected = {name: one.default for parameters in signatures for name, one in parameters.items()}
    for name in ("learning_rate_decay", "local_steps", "server_weighting", "engine", "client_state", "tasks"):
        assert defaults[name] == expected[name], name


@pytest.mark.parametrize(
    ("name", "cure"),
    [("local_step", "did you mean local_steps?"), ("muu", "did you mean mu?"), ("lr", "the common ones are loss, ")],
)
def test_an_argument_that_is_none_is_named_with_the_method(name, cure):
    with pytest.raises(TypeError) as error:
        Mine(torch.nn.Linear(2, 2), **{name: 3})
    assert str(error.value).startswith(f"{name} is not an argument of Mine: {cure}")


SNIPPET = """
from typing import Unpack

import torch

from fl_lightning import SCAFFOLD, CommonArguments, FedAvg, FederatedModule, FedProx, Net
from fl_lightning.losses import TruncatedCrossEntropy
from fl_lightning.models import MLP
from fl_lightning.tasks import APD, EWC, MFCL, ICaRL


class Mine(FederatedModule):
    def __init__(self, net: Net, strength: float = 0.01, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)


FedAvg(MLP, loss=TruncatedCrossEntropy(), optimizer=torch.optim.SGD, local_steps=3, engine="vectorized", tasks=EWC())
FedProx(MLP, mu=0.1, loss=torch.nn.CrossEntropyLoss(), client_state="disk")
SCAFFOLD(MLP, server_weighting="n_weighted", initial_weights=None)
Mine(MLP, strength=2.0, local_epochs=3)
EWC(penalty=1.0, rounds_per_task=3)
ICaRL(memory=3, softmax_over="seen")
FedAvg(MLP, loss=3)  # loss
FedAvg(MLP, loss=3, nonsense=1)  # nonsense
FedProx(MLP, engine="fast")  # engine
SCAFFOLD(MLP, nonsense=1)  # nonsense
Mine(MLP, local_stps=3)  # local_stps
APD(rounds_pr_task=3)  # rounds_pr_task
EWC(patience="long")  # patience
MFCL(memory=3)  # memory
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is missing: pip install 'fl-lightning[test]'")
def test_a_type_checker_names_wrong_ones(tmp_path):
    """Of one call pyright names arguments that there are not, or else those of another type."""
    (tmp_path / "snippet.py").write_text(SNIPPET)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)], "include": ["snippet.py"]}))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "--project", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = SNIPPET.splitlines()
    found = {one["range"]["start"]["line"]: one["message"] for one in json.loads(ran.stdout)["generalDiagnostics"]}
    expected = {number: line.partition("  # ")[2] for number, line in enumerate(lines) if "  # " in line}
    assert found.keys() == expected.keys(), ran.stdout
    for number, name in expected.items():
        assert f'"{name}"' in found[number]
