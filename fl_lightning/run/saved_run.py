"""A run, rebuilt from its files on disk."""

from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser

from fl_lightning.state.strict_yaml import load_yaml


def run_config(ckpt_path: Path) -> tuple[Path, dict[str, Any]]:
    """The config of the run that wrote a checkpoint, and its folder: next to the checkpoint or above ``checkpoints``.

    Raises:
        FileNotFoundError: if there is no config.
        ValueError: if the file there is not a config.
    """
    folder = ckpt_path.resolve().parent
    candidates = [folder / "config.yaml", folder.parent / "config.yaml"]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"ckpt_path is {ckpt_path}, but there is neither {candidates[0]} nor {candidates[1]}, which would name the "
            "method: copy config.yaml there from the folder of the run, or, if it was run in Python, use load_from_checkpoint "
            "of its method with net=... and its other arguments"
        )
    try:
        stored = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{path} is not the config of a run ({why}): take it from the folder of the run") from error
    if not isinstance(stored, dict) or not {"model", "data"} <= stored.keys():
        raise ValueError(f"{path} is not the config of a run, which has model and data: take it from the folder of the run")
    return path.parent, stored


def build_run(
    config: dict[str, Any], method: type[LightningModule], data: type[LightningDataModule] | None = None
) -> Namespace:
    """``model`` and, if requested, ``data`` of a run's config; nothing is loaded.

    Args:
        config: the result of :func:`run_config`.
        method: base class of the model.
        data: class of the data module; None: without data.
    """
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_argument("--seed_everything", type=int, default=0)
    parser.add_lightning_class_args(method, "model", subclass_mode=True)
    seeded = ["model.init_args.seed"]
    if data is not None:
        parser.add_lightning_class_args(data, "data")
        seeded.append("data.seed")
    for name in seeded:
        parser.link_arguments("seed_everything", name)
    wanted = ("seed_everything", "model", *(["data"] if data is not None else []))
    parsed = parser.parse_object({name: config[name] for name in wanted if name in config})
    return parser.instantiate(parsed)  # pyright: ignore[reportReturnType]
