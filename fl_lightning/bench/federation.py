"""The federations of forgetbench: what is fixed, and digests by which everybody can tell that it is the same."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources

import yaml
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fl_lightning.checks import did_you_mean
from fl_lightning.config_files.reading import config_values, flat_values, options_of
from fl_lightning.data import FederatedDataModule
from fl_lightning.state.strict_yaml import load_yaml

_FREE = ("data.root", "data.num_workers", "data.storage", "trainer.accelerator", "trainer.devices")
_FIXED = (
    *("model.net", "model.local_steps", "model.local_epochs", "model.initial_weights", "model.tasks.rounds_per_task"),
    *("model.tasks.source", "model.hostile", "model.adapter", "model.trained"),
)


@dataclass(frozen=True)
class Federation:
    """One of the federations."""

    name: str  # on the command line
    config: str  # the bundled config of a run
    seeds: Sequence[int]  # those of a whole cell
    megabytes: float  # budget of a run, up and down together, in 10^6 bytes
    processor_hours: float  # budget of a run
    measures: Mapping[str, str]  # column of the table -> scalar of `run_scalars`
    partitions: Mapping[int, str]  # seed -> the first of `data_digests`
    pretrained: str = ""  # bundled config of the net that runs begin with; empty for none

    @property
    def digest(self) -> str:
        """Of all of this and of the contents of the configs: a results file of another digest is of another federation."""
        contents = [config_values(config) for config in (self.config, self.pretrained) if config]
        return digest_of([asdict(self), contents])


@cache
def federations() -> dict[str, Federation]:
    """All federations by name."""
    declared = load_yaml((resources.files("fl_lightning.bench") / "federations.yaml").read_text(encoding="utf-8"))
    return {name: Federation(name, **settings) for name, settings in declared.items()}


def federation(name: str) -> Federation:
    """The federation of a name.

    Raises:
        ValueError: naming all, if there is none.
    """
    known = federations()
    if name not in known:
        cure = did_you_mean(name, known, otherwise="docs/forgetbench.md describes them")
        raise ValueError(f"--federation is {name}, must be one of {', '.join(known)}: {cure}")
    return known[name]


def digest_of(content: object) -> str:
    """SHA-256 of a content as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def data_digests(data: FederatedDataModule) -> tuple[str, str]:
    """Digest of the labels and of who holds which sample, and digest of the samples' inputs.

    They are two because images can be stored with losses: then they have other bytes, in the same order, with the same labels.
    ``data.setup`` comes before.
    """
    dataset, shards = data.samples.dataset, data.shards
    held = (shards.train, shards.train_start, shards.validation, shards.validation_start)
    inputs = tree_leaves([dataset.train.inputs, dataset.test.inputs])
    return _digest([dataset.train.targets, dataset.test.targets, *held]), _digest(inputs)


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def check_options(options: Sequence[str]) -> None:
    """Check that options change the method and nothing else.

    Args:
        options: of the command line, such as ``--model.mu 0.1``.

    Raises:
        ValueError: naming the first that is fixed.
    """
    keys = (key for option in options_of(options) for key in _keys(*option))
    for key in (re.sub(r"\.(init_args|class_path|dict_kwargs)\b", "", key) for key in keys):
        is_fixed = any(key == fixed or key.startswith(f"{fixed}.") for fixed in _FIXED)
        if is_fixed or not (key.startswith("model.") or key in _FREE):
            raise ValueError(
                f"--{key} is fixed by forgetbench: options of the method (--model.mu), the loss and the rates are free, and "
                f"{', '.join(_FREE)}"
            )


def _keys(key: str, value: str | None) -> Iterator[str]:
    """The key of an option, and those below it that its value has as YAML."""
    yield key
    with suppress(yaml.YAMLError, ValueError):  # a plain text, or one that the parser refuses
        yield from (name for name, _ in flat_values(load_yaml(value or ""), key))
