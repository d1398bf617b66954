"""The settings of a run, as its checkpoints store them, and those that can change when a fit resumes from one.

These can change: the number of rounds (``trainer.max_steps``, ``data.cohorts`` for later rounds), the intervals of evaluating,
watching, logging and saving (``trainer.val_check_interval``, ``data.monitor_test``, ``callbacks``, loggers), the places of data
and results (``data.root``, ``data.storage``, ``data.num_workers``, ``trainer.default_root_dir``, paths of files) and of
clients' states (``model.client_state``), and the devices (``trainer.accelerator``, ``devices``, ``num_nodes``, ``strategy``,
``model.engine``, ``data.eval_batch_size`` where whole sets are evaluated). Everything else affects training or measuring, and
must stay the same. Settings are read from the objects, and from the config, if there is one, where an object hides them.
"""

import functools
import inspect
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import counted
from fl_lightning.data import FederatedDataModule, Fixed, Trace
from fl_lightning.functional.schedules import build_schedule
from fl_lightning.losses import Loss
from fl_lightning.protocol import Learner
from fl_lightning.run.round_callback import round_callbacks
from fl_lightning.run.trainer_settings import data_of
from fl_lightning.state.checkpoint import check_whole

Settings = dict[str, Any]  # key of the command line -> number, text, truth value, None, or a list of those

_MAY_CHANGE = {
    *("model.engine", "model.client_state"),
    *("data.root", "data.storage", "data.num_workers", "data.monitor_test", "data.eval_batch_size"),
    # Files; their contents are compared.
    *("data.partition.clients", "data.client_sampler.file", "data.devices.file"),
}
_LIMITS = ("limit_val_batches", "limit_test_batches")  # of the trainer: the part of a set that is evaluated
_EVALUATION_BATCH = "data.eval_batch_size"
_SCHEDULES = {"lr_scheduler": "server_optimizer", "client_lr_scheduler": "optimizer", "visit_lr_scheduler": "optimizer"}
_BUILT = ("net", *_SCHEDULES)  # like optimizers, described by the objects that they build
_COHORTS, _THERE, _SPEEDS = "data.cohorts", "who is there by data.client_sampler.file", "speeds in data.devices.file"
_HOLDERS = "who holds which samples"
_LAYERS = "a layer of model.net"
_SPLIT = (
    *("data.tasks.", "data.num_clients.", "data.seed.", "data.partition.", "data.public_size."),
    *("data.val_fraction.", "data.test_fraction.", f"{_HOLDERS}."),
)
_LONGEST = 60  # characters of a value in a message
# Of an optimizer and a schedule: their implementation and their progress, not their effect.
_HOW = {"params", "foreach", "fused", "capturable", "differentiable"}
_HOW_FAR = {"base_lrs", "last_epoch", "_last_lr", "_step_count", "_get_lr_called_within_step", "_is_initial"}


@dataclass
class RunSettings:
    """The settings of a run, once its net is built."""

    method: FederatedAlgorithm
    given: Mapping[str, Any]  # to the method's class, by argument
    of_config: Settings = field(default_factory=dict)  # of method and data, if there is a config
    of_fit: Settings = field(default_factory=dict)  # those present when the fit began

    def present(self, trainer: Trainer) -> Settings:
        """The settings of a trainer's run."""
        data = data_of(trainer)
        # As text: 1 is one batch, 1.0 is all.
        limits = {f"trainer.{name}": str(getattr(trainer, name)) for name in _LIMITS}
        settings: Settings = {"trainer.precision": trainer.precision, **limits, **self.of_method()}
        for key, value in _options(data):
            settings |= described(f"data.{key}", value)
        settings["data.clients_per_round"] = data.participation.size if data.cohorts is None else None
        settings |= {f"{name} of the samples": value for name, value in data.samples.input_record._asdict().items()}
        shards = data.shards
        settings[_HOLDERS] = digest(shards.train, shards.train_start, shards.validation, data.train_set.targets)
        settings = {**self.of_config, **settings, **_contents(data)}
        whole = set(limits.values()) == {"1.0"}
        may_change = _MAY_CHANGE if whole else _MAY_CHANGE - {_EVALUATION_BATCH}
        return {key: value for key, value in settings.items() if key not in may_change}

    def for_reports(self, trainer: Trainer) -> Settings:
        """Settings of the fit by which reports compare runs of different seeds, under the keys of a config."""
        method, data = self.method, data_of(trainer)
        settings = {key: value for key, value in self.of_fit.items() if key.startswith(("model", "data.", "trainer."))}
        for key in ("model.seed", "data.seed"):
            if settings[key] == method.seed:
                del settings[key]
        settings |= {"seed_everything": method.seed, "trainer.max_steps": trainer.max_steps}
        settings["model"] = f"{type(method).__module__}.{_name(type(method))}"
        settings["model.net.parameters"] = sum(weight.numel() for weight in method.net.parameters())
        settings["model.net.structure"] = zlib.crc32(self.of_fit[_LAYERS].encode())
        if type(method.tasks) is Learner:  # which does nothing
            settings["model.tasks"] = None
        if isinstance(data.partition, Fixed):  # of other partitions the options and the seed decide
            settings["data.partition.label_counts"] = digest(data.label_counts)
        return settings

    def of_method(self) -> Settings:
        """The settings of the method."""
        method = self.method
        settings: Settings = {"model": _name(type(method))}
        options = dict(_options(method))
        # A user's class can keep arguments under other names.
        options |= {name: value for name, value in self.given.items() if name not in options}
        for key, value in options.items():
            # A running engine holds the method, and with it itself.
            if key not in _BUILT and not _builds_optimizer(key) and f"model.{key}" not in _MAY_CHANGE:
                settings |= described(f"model.{key}", value)
        return settings | {"model.net": _name(type(method.net)), _LAYERS: repr(method.net)} | _optimizers(method)

    def check_evaluates(self, saved: Settings, trainer: Trainer) -> None:
        """Check that the net, as the command line gives it, and the tasks are those of the run that saved ``saved``.

        Where clients are evaluated with models of their own, their samples must be those of the run too. Where the global model
        is validated on other samples, a warning says so.

        Raises:
            ValueError: naming each key that differs, with both values.
        """
        present = self.present(trainer)

        def differing(*parts: str) -> dict[str, tuple[Any, Any]]:
            return _differing(saved, {key: value for key, value in present.items() if f"{key}.".startswith(parts)})

        asks_clients = self.method.keeps_models and trainer.state.fn != "predict"
        split = _SPLIT if data_of(trainer).tasks is not None or asks_clients else ()
        if others := differing(*(("model.net.",) if self.of_config else ()), *split):
            raise ValueError(
                f"ckpt_path is of a run with another net, other clients or other tasks: {_listed(others)}: use that run's"
            )
        if trainer.state.fn == "validate" and differing(f"{_HOLDERS}."):
            warnings.warn(
                "the validation samples are not those of the run of ckpt_path, which may have trained on them: "
                f"{_listed(differing(*_SPLIT))}",
                stacklevel=1,
            )

    def check_adapter(self, saved: Settings) -> None:
        """Check that an adapter scales its layers as in the run that saved ``saved``, which its weights do not show.

        Raises:
            ValueError: naming each option that differs.
        """
        present = {key: value for key, value in self.of_method().items() if f"{key}.".startswith("model.adapter.")}
        if others := _differing(saved, present):
            raise ValueError(f"ckpt_path is of a run with another adapter: {_listed(others)}: use that run's")

    def check_goes_on(self, checkpoint: dict[str, Any], trainer: Trainer) -> None:
        """Check that a fit of a trainer would continue the run that wrote a checkpoint.

        Keys that only one of the two has, such as a newer option of the package, are not compared.

        Raises:
            ValueError: naming each setting that differs.
        """
        check_whole(checkpoint)
        rounds = checkpoint["global_step"]
        if not any(watcher.only_looks for watcher in round_callbacks(trainer)):
            saved = checkpoint["federated"]["settings"]
            differing = _differing(*(_so_far(settings, rounds) for settings in (saved, self.present(trainer))))
            if {"model.seed", "data.seed"} <= differing.keys():
                differing = {"seed_everything": differing.pop("model.seed"), **differing}
                del differing["data.seed"]
            if differing:
                raise ValueError(
                    f"ckpt_path is of a run with other settings: {_listed(differing)}: use that run's, or start a new run from "
                    "its weights with model.initial_weights"
                )
        if rounds > trainer.max_steps:
            raise ValueError(
                f"trainer.max_steps is {trainer.max_steps}, but the run of ckpt_path has {counted(rounds, 'round')} already: "
                "raise it"
            )


def config_settings(key: str, value: Any) -> Settings:
    """A part of a config as settings: each class by its name, each option under its key of the command line.

    Args:
        key: key of the part, such as ``model``.
        value: plain containers, in which classes are ``class_path`` and ``init_args``.
    """
    if isinstance(value, Mapping):
        options = {**value, **value.get("init_args", {}), **value.get("dict_kwargs", {})}
        kind = options.pop("class_path", None)
        left_out = {"init_args", "dict_kwargs", *(_HOW if _builds_optimizer(key.rpartition(".")[2]) else ())}
        parts = {f"{key}.{name}": part for name, part in options.items() if name not in left_out}
        named = {} if kind is None else {key: kind.rpartition(".")[2]}
    elif isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        parts, named = {f"{key}.{number}": part for number, part in enumerate(value)}, {}
    else:
        plain = value is None or isinstance(value, bool | int | float | str | list)
        return {key: value if plain else str(value)}
    return named | {name: inner for part in parts.items() for name, inner in config_settings(*part).items()}


def _so_far(settings: Settings, rounds: int) -> Settings:
    """Settings with the cohorts, or the lines of a trace, of finished rounds only."""
    return {
        key: value[:rounds] if key in (_COHORTS, _THERE) and value is not None else value for key, value in settings.items()
    }


def _differing(saved: Settings, present: Settings) -> dict[str, tuple[Any, Any]]:
    """Both values of each key that differs, without layers and samples that differ by other keys."""
    shared = {key: (value, saved[key]) for key, value in present.items() if key in saved}
    # A value can be NaN.
    differing = {k: (here, there) for k, (here, there) in shared.items() if here != there and repr(here) != repr(there)}
    for key, cause in ((_LAYERS, "model.net"), (_HOLDERS, "data.")):
        if any(other.startswith(cause) for other in differing):
            differing.pop(key, None)
    return differing


def _listed(differing: Mapping[str, tuple[Any, Any]]) -> str:
    shown = {key: _shown(*pair) for key, pair in differing.items()}
    return "; ".join(f"{key} is {here}, {there} in the run" for key, (here, there) in shown.items())


def _shown(here: Any, there: Any) -> tuple[str, str]:
    """Two values in short; of long texts the first lines that differ."""
    if isinstance(here, str) and isinstance(there, str):
        lines = zip_longest(here.splitlines(), there.splitlines(), fillvalue="absent")
        here, there = next((pair for pair in lines if pair[0] != pair[1]), (here, there))
    return _shortened(here), _shortened(there)


def _shortened(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _contents(data: FederatedDataModule) -> Settings:
    """What is in the files of a trace, by round, and of devices."""
    contents, sampler = Settings(), data.participation.sampler
    if isinstance(sampler, Trace):
        rounds = (sampler.there(round, data.num_clients, data.seed) for round in range(1, (sampler.num_rounds or 0) + 1))
        contents[_THERE] = [digest(torch.from_numpy(there)) for there in rounds]
    if data.devices is not None and data.devices.speeds:
        contents[_SPEEDS] = digest(torch.tensor(data.devices.speeds, dtype=torch.float64))
    return contents


def _options(thing: Any) -> Iterator[tuple[str, Any]]:
    """The arguments of an object's class that it keeps as attributes of the same names."""
    for name in _arguments(type(thing)):
        if hasattr(thing, name) and name != "self":
            yield name, getattr(thing, name)


@functools.lru_cache
def _arguments(kind: type) -> dict[str, None]:
    """Names of the arguments of a class and of those that it derives from, in order."""
    kinds = (one for one in kind.__mro__ if one is not object)
    return dict.fromkeys(name for one in kinds for name in inspect.signature(one.__init__).parameters)


def described(key: str, value: Any) -> Settings:
    """A value as plain containers; objects by class and options, under the keys of the command line."""
    value = _plain(value)
    if value is None or isinstance(value, bool | int | float | str):
        return {key: value}
    if isinstance(value, Path):
        return {key: None}  # places of files can change
    if isinstance(value, Tensor):
        return {key: f"tensor {digest(value)}"}
    if isinstance(value, Mapping):
        return {name: part for child, inner in value.items() for name, part in described(f"{key}.{child}", inner).items()}
    if isinstance(value, Sequence):
        if all(part is None or isinstance(part, bool | int | float | str | Sequence) for part in value):
            return {key: [*value]}
        kinds = {key: [_name(type(part)) for part in value]}
        return kinds | {n: part for i, inner in enumerate(value) for n, part in described(f"{key}.{i}", inner).items()}
    if callable(value) and hasattr(value, "__qualname__"):
        return {key: _name(value)}
    options = dict(_options(value))
    if isinstance(value, Loss):  # and other plain values that it keeps
        options |= {name: kept for name, kept in vars(value).items() if isinstance(kept, bool | int | float | str | None)}
    parts = (described(f"{key}.{name}", option) for name, option in options.items())
    return {key: _name(type(value))} | {name: inner for part in parts for name, inner in part.items()}


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, which a checkpoint can hold, and tuples as lists, at any depth."""
    if isinstance(value, np.generic):
        return value.item()
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _optimizers(method: FederatedAlgorithm) -> Settings:
    """The optimizers and schedules, as built for the net's weights."""
    weights = [weight for weight in method.net.parameters() if weight.requires_grad]
    settings, options = {}, dict(_options(method))
    for key in filter(_builds_optimizer, options):
        optimizer: Optimizer = options[key](weights)
        groups = optimizer.param_groups
        settings |= {f"model.{key}": _name(type(optimizer)), f"model.{key}.param_groups": len(groups)}
        for number, group in enumerate(groups):
            prefix = f"model.{key}.{number}" if len(groups) > 1 else f"model.{key}"
            settings |= described(prefix, {name: value for name, value in group.items() if name not in _HOW})
    for name, of in _SCHEDULES.items():
        if (build := options.get(name)) is None:
            settings[f"model.{name}"] = None
            continue
        scheduler = build_schedule(f"model.{name}", build, options[of](weights))
        state = {key: value for key, value in scheduler.state_dict().items() if key not in _HOW_FAR}
        settings |= {f"model.{name}": _name(type(scheduler))} | described(f"model.{name}", state)
    return settings


def _builds_optimizer(key: str) -> bool:
    return key == "optimizer" or key.endswith("_optimizer")


def _name(named: Any) -> str:
    """The name of a class or a function, without its module: a script can be run or imported."""
    return named.__qualname__


def digest(*tensors: Tensor) -> str:
    """Eight hexadecimal digits that depend on all values of some tensors."""
    crc = 0
    for tensor in tensors:
        values = tensor.double() if tensor.is_floating_point() else tensor  # NumPy has no bfloat16
        crc = zlib.crc32(values.detach().cpu().numpy().tobytes(), crc)
    return f"{crc:08x}"
