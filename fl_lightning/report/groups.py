"""Groups: runs that differ in nothing but the seed, and what to call them."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from fl_lightning.report.runs import Run
from fl_lightning.report.safe_text import one_line

RATE = "model.optimizer.lr"
_NAMED = ("model.loss", "model.tasks")  # always, as the method is, where a run has one
_RATES = (RATE, "model.server_optimizer.lr")  # named wherever they differ
# The federation and how long it learns: under each such condition methods are compared with each other.
_CONDITIONS = (
    "data.partition",
    "data.num_clients",
    "data.clients_per_round",
    "data.client_sampler",
    "trainer.max_steps",
    "model.local_steps",
    "model.local_epochs",
)
_NAMED_FIRST = ("model", *_NAMED, "model.net")  # in a label, as far as they set groups apart
# How a run is carried out and watched, which does not change what is learned.
_BOOKKEEPING = (
    "seed_everything",
    "trainer.",
    "callbacks.",
    "ckpt_path",
    "weights_only",
    "data.root",
    "data.num_workers",
    "data.storage",
    "data.eval_batch_size",
    "data.monitor_test",
    "model.engine",
    "model.client_state",
)
_KEPT = ("trainer.max_steps", "trainer.precision", "trainer.limit_val_batches", "trainer.limit_test_batches")  # of those
_CALLBACK = re.compile(r"trainer\.callbacks\.\d+")
_OF_LEARNING = {
    "WeightAveraging": "averaging",
    "EarlyStopping": "early_stopping",
}  # callbacks of Lightning that change the result
_NAMES = {RATE: "lr", "trainer.max_steps": "rounds", "model.server_optimizer.lr": "server lr"}
_PLAIN_LEARNERS = ("None", "TaskLearner", "ClassLearner")  # of tasks: they do nothing against forgetting
_LONGEST = 40  # characters of a value in a label


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in the seed, one a seed."""

    config: dict[str, Any]  # without seed and bookkeeping; hashable
    label_keys: tuple[str, ...]  # config keys that the label names: enough to set all groups apart
    runs: tuple[Run, ...]  # by seed; finished ones, unless there is none
    number: int = 1  # among the groups that would have the same label

    @property
    def finished(self) -> bool:
        """Whether its runs came to their end."""
        return self.runs[0].finished

    @property
    def seeds(self) -> tuple[int, ...]:
        """One a run, in the order of the runs."""
        return tuple(run.seed for run in self.runs)

    @property
    def label(self) -> str:
        """Class of the method, loss and all that sets the group apart: ``FedAvg, TruncatedCrossEntropy, lr 0.1, alpha 0.5``."""
        return self.label_without()

    @property
    def method(self) -> str:
        """The label without what belongs to the condition."""
        return self.label_without(*self.conditions)

    @property
    def named(self) -> str:
        """The method without its learning rate, which can differ from condition to condition."""
        return self.label_without(RATE, *self.conditions)

    @property
    def conditions(self) -> list[str]:
        """The label's keys that belong to the federation."""
        return [key for key in self.label_keys if is_condition(key)]

    @property
    def condition(self) -> str:
        """The part of the label on the federation and the length of learning: ``alpha 0.5``; empty if all groups share it."""
        return one_line(", ".join(self._in_label(key) for key in self.conditions if key in self.config))

    def label_without(self, *keys: str) -> str:
        """The label without the values of some config keys; with ``model`` among them without the method's class."""
        named = [key for key in self.label_keys if key not in keys and key != "model" and key in self.config]
        parts = [_class_name(self.config["model"])] * ("model" not in keys) + [*map(self._in_label, named)]
        return one_line(", ".join(parts)) + f" ({self.number})" * (self.number > 1)

    def setting(self, *without: str) -> frozenset[tuple[str, Hashable]]:
        """The config without some keys, to be compared with that of other groups."""
        return frozenset((key, value) for key, value in self.config.items() if key not in without)

    def _in_label(self, key: str) -> str:
        value = self.config[key]
        if isinstance(value, str) and (key in _NAMED or _class_name(value) != value):
            return _class_name(value)
        last = key.rsplit(".", 1)[-1]
        alone = [other.rsplit(".", 1)[-1] for other in self.label_keys].count(last) == 1
        name = _NAMES.get(key, last if alone else " ".join(key.split(".")[-2:]))
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        text = f"{value:g}" if isinstance(value, float) else PurePath(shown).name
        return f"{name.replace('_', ' ')} {text[:_LONGEST]}"


def is_condition(key: str) -> bool:
    """Whether a config key belongs to the federation rather than to the method."""
    return key.startswith(_CONDITIONS)


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """Groups in the order of their conditions, then their methods, and remarks on runs that were left out."""
    members: dict[frozenset, list[Run]] = defaultdict(list)
    for run in runs:
        members[frozenset(identity(run).items())].append(run)
    configs = [identity(together[0]) for together in members.values()]
    named = _label_keys(configs)
    groups, remarks = [], []
    for config, together in zip(configs, members.values(), strict=True):
        kept, said = _one_a_seed(together)
        groups.append(Group(config, named, tuple(kept)))
        remarks += said
    return _distinct(sorted(groups, key=_order)), remarks


def identity(run: Run) -> dict[str, Hashable]:
    """The config of the run's group; callbacks that average weights or end the fit have a short key."""
    kept = {key: value for key, value in run.config.items() if key in _KEPT or not key.startswith(_BOOKKEEPING)}
    for entry in filter(_CALLBACK.fullmatch, run.config):
        for kind, name in _OF_LEARNING.items():
            if str(run.config[entry]).endswith(kind):
                below = (key for key in run.config if f"{key}.".startswith(f"{entry}."))
                kept |= {f"{name}{key.removeprefix(entry)}": run.config[key] for key in below}
    return kept


def _one_a_seed(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """Finished runs if there are any, of each seed that with the most measures, then the newest, and remarks on the others."""
    finished = [run for run in runs if run.finished]
    kept: dict[int, Run] = {}
    for run in sorted(finished or runs, key=lambda run: (_num_measures(run), run.log.last_time)):
        kept[run.seed] = run
    remarks = []
    for run, other in ((run, kept[run.seed]) for run in finished or runs):
        if other is not run:
            why = "measures more forgetting" if _num_measures(other) > _num_measures(run) else "is newer"
            remarks.append(f"{run.folder}: left out, {other.folder} has the same seed, learns the same and {why}")
    for run in runs:
        if not run.finished:
            use = "left out, others of its settings are finished" if finished else "only its curve is drawn"
            rounds = f"{run.log.last_round} of {run.config.get('trainer.max_steps')} rounds"
            if run.log.last_round > run.last_evaluated > 0:
                rounds += f", evaluated after {run.last_evaluated}"
            remarks.append(f"{run.folder}: not finished, {rounds}; {use}")
    return [kept[seed] for seed in sorted(kept)], remarks


def _num_measures(run: Run) -> int:
    """Measures of forgetting that a run logged; settings of callbacks, which leave some out, do not tell groups apart."""
    return sum(name.startswith("forgetting/") for name in run.log.scalars)


def _label_keys(configs: list[dict[str, Hashable]]) -> tuple[str, ...]:
    """Loss and learner, and keys that set groups apart, the most telling first; one that tells nothing new is left out.

    Rates and what belongs to the federation are always named where they differ: two methods at unlike rates, or on unlike
    data, differ in more than the method.
    """
    named = [key for key in _NAMED if any(config.get(key) for config in configs)]
    for key in sorted((key for key in differing_keys(configs) if key not in named), key=_rank):
        apart, before = (len({tuple(map(one.get, keys)) for one in configs}) for keys in ([*named, key], named))
        if apart > before or key in _RATES or (key.startswith("data.") and is_condition(key)):
            named.append(key)
    return tuple(sorted(named, key=is_condition))


def _rank(key: str) -> tuple[int, bool, bool]:
    position = _NAMED_FIRST.index(key) if key in _NAMED_FIRST else len(_NAMED_FIRST)
    return position, not is_condition(key), key != RATE


def differing_keys(configs: Sequence[dict[str, Hashable]]) -> list[str]:
    """Keys in which configs differ, in their order.

    A key counts if every config has it and they differ, or if configs differ in it whose objects around it are of the same
    classes: the temperature of FedNTD does not count against FedAvg, which has none.
    """
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if _differ(key, configs)]


def _differ(key: str, configs: Sequence[dict[str, Hashable]]) -> bool:
    values = {config.get(key) for config in configs}
    if len(values) == 1:
        return False
    if all(key in config for config in configs):
        return True
    parts = key.split(".")
    around = [".".join(parts[:length]) for length in range(1, len(parts))]
    alike: dict[tuple, set] = defaultdict(set)
    for config in configs:
        alike[tuple(config.get(outer) for outer in around)].add(config.get(key))
    return any(len(values) > 1 for values in alike.values())


def _order(group: Group) -> list[tuple]:
    """Conditions first, numbers by size, what is not set before all."""
    keys = sorted(group.label_keys, key=lambda key: not is_condition(key))
    return [_sortable(group.config.get(key)) for key in keys]


def _sortable(value: Any) -> tuple:
    if value is None:
        return (0, 0, "")
    return (1, value, "") if isinstance(value, int | float) else (2, 0, _class_name(str(value)))


def _distinct(groups: list[Group]) -> list[Group]:
    """The groups, those of an earlier one's label numbered: classes of one name from two modules, long values."""
    seen: Counter[str] = Counter()
    for i, group in enumerate(groups):
        seen[group.label] += 1
        groups[i] = replace(group, number=seen[group.label])
    return groups


def _class_name(value: Any) -> str:
    """``FedAvg`` of the import path ``fl_lightning.FedAvg``; anything but a class as it is."""
    return re.sub(r"^[\w.]+\.(?=[A-Z]\w*$)", "", str(value))


def find_group(groups: Iterable[Group], label: str) -> Group:
    """The group of a label.

    Raises:
        ValueError: listing the labels, if there is none.
    """
    by_label = {group.label: group for group in groups}
    if label not in by_label:
        raise ValueError(f"--baseline is {label}, must be one of: {'; '.join(by_label)}")
    return by_label[label]


def default_baseline(groups: Collection[Group], score: dict[str, float]) -> Group:
    """FedAvg with cross entropy and without additions, such as a robust rule or server momentum, else FedAvg, else any.

    Of several the one with the highest score under the first condition.
    """
    conditions = list(dict.fromkeys(group.condition for group in groups))

    def rank(group: Group) -> tuple:
        loss = _class_name(group.config.get("model.loss", "CrossEntropy"))
        method = _class_name(group.config["model"])
        tasks = _class_name(group.config.get("model.tasks")) not in _PLAIN_LEARNERS
        added = any(group.config.get(f"model.{key}") is not None for key in ("aggregation", "hostile", "privacy"))
        added |= _class_name(group.config.get("model.server_optimizer", "SGD")) != "SGD"
        added |= bool(group.config.get("model.server_optimizer.momentum"))
        plain = (method != "FedAvg", not method.startswith("FedAvg"), loss != "CrossEntropy", tasks, added)
        return *plain, conditions.index(group.condition), -score[group.label]

    return min(groups, key=rank)
