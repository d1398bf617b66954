"""The quality of an attack: scores, a table, a picture and a file."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

from fl_lightning.attacks.inversion import Recovered
from fl_lightning.attacks.observed_update import Observation, PixelRange
from fl_lightning.state.atomic_files import atomic_write

_COLUMNS = 10  # images side by side
_SMALLEST_FOR_SSIM = 6  # pixels: its window of 11 reflects the border by 5


@dataclass(frozen=True)
class ImageScore:
    """One image, compared with the recovered one."""

    client: int
    label: str
    psnr: float  # decibels, infinite where both are the same
    ssim: float  # NaN for images too small for its window
    mse: float  # of pixels in [0, 1]


@dataclass(frozen=True)
class ClientScore:
    """The images of one client, in its order, compared with the recovered ones."""

    images: list[ImageScore]
    num_labels_right: int
    objectives: list[float]  # of all restarts
    pairs: Tensor  # (n, 2, channels, height, width), pixels: original and recovered


def score(observation: Observation, recovered: Recovered, pixel_range: PixelRange, classes: Sequence[str]) -> ClientScore:
    """Compare originals with recovered images, in the pairs with the smallest sum of squared differences.

    The attacker cannot know the order of the images: the update does not contain it.
    """
    originals, guesses = (pixel_range.pixels(part).clamp(0, 1).float().cpu() for part in (observation.inputs, recovered.inputs))
    differences = (originals[:, None] - guesses[None]).square().flatten(2).mean(dim=2)
    rows, columns = linear_sum_assignment(differences.numpy())
    guesses = guesses[torch.from_numpy(columns)]
    psnr = peak_signal_noise_ratio(guesses, originals, data_range=1.0, reduction="none", dim=(1, 2, 3))
    numbers = zip(psnr.tolist(), _ssim(guesses, originals), differences[rows, columns].tolist(), strict=True)
    labels = [classes[int(label)] for label in observation.targets]
    images = [ImageScore(observation.client, label, *values) for label, values in zip(labels, numbers, strict=True)]
    counts = [part.cpu().bincount(minlength=len(classes)) for part in (observation.targets, recovered.labels)]
    pairs = torch.stack([originals, guesses], dim=1)
    return ClientScore(images, int(torch.minimum(*counts).sum()), recovered.objectives, pairs)


def _ssim(guesses: Tensor, originals: Tensor) -> list[float]:
    """SSIM with the Gaussian window of Wang et al. (2004), one value an image."""
    if min(originals.shape[2:]) < _SMALLEST_FOR_SSIM:
        return [math.nan] * len(originals)
    values = structural_similarity_index_measure(guesses, originals, data_range=1.0, reduction="none")
    return values.reshape(-1).tolist()  # pyright: ignore[reportAttributeAccessIssue]


def write_scores(path: Path, scores: Sequence[ClientScore], facts: dict[str, Any]) -> None:
    """A JSON file with ``facts``, the means and every image; numbers that are not finite are null."""
    images = [image for client in scores for image in client.images]
    content = {
        **facts,
        **{name: _number(fmean(getattr(image, name) for image in images)) for name in ("psnr", "ssim", "mse")},
        "labels_right": sum(client.num_labels_right for client in scores),
        "num_images": len(images),
        "objectives": {client.images[0].client: [_number(value) for value in client.objectives] for client in scores},
        "images": [{k: _number(v) if isinstance(v, float) else v for k, v in asdict(image).items()} for image in images],
    }
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_picture(path: Path, scores: Sequence[ClientScore]) -> None:
    """A PNG with every original above its recovered image, ten side by side."""
    pairs = torch.cat([client.pairs for client in scores])
    images = [image for client in scores for image in client.images]
    columns, bands = min(len(pairs), _COLUMNS), -(-len(pairs) // _COLUMNS)
    figure = Figure(figsize=(max(1.5 * columns, 3.0), 3.6 * bands), layout="constrained")
    figure.suptitle("Original above, recovered below", fontsize=9)
    axes = figure.subplots(2 * bands, columns, squeeze=False)
    for single in axes.flat:
        single.set_axis_off()
    for position, (image, pair) in enumerate(zip(images, pairs, strict=True)):
        top, column = 2 * (position // columns), position % columns
        titles = (f"client {image.client}: {image.label}", f"{image.psnr:.1f} dB")
        for row, (pixels, title) in enumerate(zip(pair, titles, strict=True)):
            _show(axes[top + row, column], pixels, title)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png")


def _show(axes: Any, pixels: Tensor, title: str) -> None:  # Any: matplotlib gives its arrays of axes no type
    """An image (channels, height, width); with neither one nor three channels their mean."""
    shown = pixels.permute(1, 2, 0).numpy() if len(pixels) == 3 else pixels.mean(dim=0).numpy()
    axes.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_title(title, fontsize=8)


def print_table(scores: Sequence[ClientScore], title: str) -> None:
    """One line an image and their mean."""
    table = Table(title=title)
    for name in ("client", "label", "PSNR (dB)", "SSIM"):
        table.add_column(name, justify="left" if name == "label" else "right")
    images = [image for client in scores for image in client.images]
    for image in images:
        table.add_row(str(image.client), image.label, f"{image.psnr:.2f}", f"{image.ssim:.3f}")
    if len(images) > 1:
        table.add_section()
        table.add_row("mean", "", *(f"{fmean(getattr(one, name) for one in images):.3f}" for name in ("psnr", "ssim")))
    Console().print(table)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
