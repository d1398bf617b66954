"""Save the figures of a run as PNG files: ``python studies/figures.py RUN_FOLDER OUT_FOLDER``."""

import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def save_figures(run: Path, out: Path) -> list[Path]:
    """Write every figure of a run's event files as ``<name>_<round>.png``; returns the paths."""
    events = EventAccumulator(str(run), size_guidance={"images": 0}).Reload()
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name in events.Tags()["images"]:
        for event in events.Images(name):
            path = out / f"{name.replace('/', '_')}_{event.step}.png"
            path.write_bytes(event.encoded_image_string)
            written.append(path)
    return written


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python studies/figures.py RUN_FOLDER OUT_FOLDER")
    for written_path in save_figures(Path(sys.argv[1]), Path(sys.argv[2])):
        print(written_path)
