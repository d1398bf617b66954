"""Table and picture of a privacy study of ``studies/run.py``: ``python studies/privacy_results.py OUT PICTURE.png``."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

_MOST = 100.0  # dB, for images that were recovered bit for bit, whose PSNR is infinite


@dataclass(frozen=True)
class Outcome:
    """Of one run: test accuracy after the last round, and how well its clients' images were recovered, means over images."""

    name: str
    accuracy: float
    psnr: float  # dB
    ssim: float


def read(out: Path) -> list[Outcome]:
    """Runs that were attacked, the worst recovered first."""
    return sorted(map(_outcome, out.glob("seed_*/*/version_*/attack/attack.json")), key=lambda outcome: outcome.psnr)


def _outcome(file: Path) -> Outcome:
    run = file.parent.parent
    images = json.loads(file.read_text())["images"]
    results = json.loads((run / "results.json").read_text())
    name = f"{run.parent.name} {results['privacy'].get('defence', '')}".strip()
    psnr = mean(_MOST if image["psnr"] is None else min(image["psnr"], _MOST) for image in images)
    return Outcome(name, results["test_accuracy"]["last"], psnr, mean(image["ssim"] for image in images))


def table(outcomes: list[Outcome]) -> str:
    """Markdown."""
    lines = ["| run | test accuracy | PSNR, dB | SSIM |", "| --- " * 4 + "|"]
    lines += [f"| {one.name} | {one.accuracy:.3f} | {one.psnr:.1f} | {one.ssim:.2f} |" for one in outcomes]
    return "\n".join(lines)


def draw(outcomes: list[Outcome]) -> Figure:
    """Accuracy over PSNR: the upper left corner is what a defence aims at."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for number, one in enumerate(outcomes):
        axes.plot(one.psnr, one.accuracy, marker="os^Dv"[number // 10 % 5], color=f"C{number % 10}", ls="", label=one.name)
    axes.set(xlabel="PSNR of recovered images, dB (lower: better protected)", ylabel="test accuracy")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def show(out: Path, picture: Path) -> None:
    """Print the table of all attacked runs under ``out``, and draw their picture."""
    found = read(out)
    print(table(found))
    draw(found).savefig(picture, dpi=110)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python studies/privacy_results.py OUT PICTURE.png")
    show(Path(sys.argv[1]), Path(sys.argv[2]))
