"""What a study is: settings that are fixed before its first run, and the claim that they are to test."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fl_lightning.sweep.points import Choices, Point, grid
from fl_lightning.sweep.settings import Settings, parse_settings

SWEEP = "sweep"  # the key of a sweep's name, next to those that the sweeps vary
PSNR, SSIM = "attack/psnr", "attack/ssim"  # of the images that an attack recovered, means


@dataclass(frozen=True)
class Sweep:
    """A grid of runs that share a config."""

    name: str  # what sets it apart in the study; its folder
    arguments: str  # of `fl-lightning sweep` as they are typed, without `--out`, `--jobs` and where the data is

    @cached_property
    def settings(self) -> Settings:
        """What the arguments ask for."""
        return parse_settings(shlex.split(self.arguments))

    @property
    def points(self) -> list[Point]:
        """What the grid varies, without the seeds."""
        return grid([axis for axis in self.settings.axes if isinstance(axis, Choices)])


@dataclass(frozen=True)
class Study:
    """Sweeps, and what is read from them."""

    name: str  # on the command line, and of the folder in docs/results
    title: str  # of its page
    claim: str  # what the runs are to show
    paper: str  # what the paper says and measures
    sweeps: tuple[Sweep, ...]  # what is run
    measures: Mapping[str, str]  # scalars of the results file, each with the heading of its column; the first is compared
    # Keys of the sweeps with the values of the runs that others are compared with; `SWEEP` is the sweep's name.
    baseline: Mapping[str, str] = field(default_factory=dict)
    # More comparisons, each of runs, by keys, with those that have other values of keys and are the same otherwise.
    further: tuple[tuple[Mapping[str, str], Mapping[str, str]], ...] = ()
    # A key, such as the rate: mean final validation accuracy chooses its value before runs are compared.
    chosen: str | None = None
    # The measures that the claim names, to be tested; empty for the first and all of forgetting.
    claimed: tuple[str, ...] = ()
    # Measures that are compared with another one of the same runs, where the claim is of the same models.
    within: Mapping[str, str] = field(default_factory=dict)
    attack: str = ""  # options of `fl-lightning attack`, which then follows every run; empty for none
    # The dataset, such as `cifar100`, where `data.source` of the config does not name it but reads a folder.
    images: str = ""
    pretraining: Sweep | None = None  # a sweep of one run, which goes first; all runs of `sweeps` begin with its final weights
    files: Mapping[str, str] = field(default_factory=dict)  # what the working folder must have, each with where it comes from
    remark: str = ""  # what the runs do not show, or was written after them; the claim stays as it was

    @property
    def comparisons(self) -> tuple[tuple[Mapping[str, str], Mapping[str, str]], ...]:
        """Which runs are compared with which: all with the baseline, then the further ones."""
        return (*([({}, self.baseline)] if self.baseline else []), *self.further)

    @property
    def tested(self) -> tuple[str, ...]:
        """The measures whose differences are tested."""
        first, *others = self.measures
        return self.claimed or (first, *(scalar for scalar in others if "forgetting" in scalar))

    @property
    def keys(self) -> list[str]:
        """What is varied, by any of the sweeps."""
        return list(dict.fromkeys(axis.key for sweep in self.sweeps for axis in sweep.settings.axes))

    @property
    def total(self) -> int:
        """Runs of all sweeps."""
        return sum(len(sweep.points) * len(sweep.settings.seeds) for sweep in self.sweeps)
