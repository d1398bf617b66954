"""A trained net as a folder: its weights as safetensors, and a model card."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from fl_lightning.checks.extras import needing_extra
from fl_lightning.functional.aggregation import State
from fl_lightning.module import FederatedModule, restore_weights
from fl_lightning.run.record_lines import RECORD_FILE, record_lines
from fl_lightning.run.saved_run import build_run, run_config
from fl_lightning.state.atomic_files import atomic_write
from fl_lightning.state.checkpoint import read_checkpoint

Weights = Literal["merged", "separate"]
_FILES: dict[Weights, str] = {"merged": "model.safetensors", "separate": "trained.safetensors"}


def write_model_folder(ckpt_path: Path, folder: Path, weights: Weights) -> Path:
    """Write a checkpoint's global net and ``README.md``, a model card with what was trained, accuracy and forgetting.

    Args:
        ckpt_path: a checkpoint of a run, in the run's folder or with a copy of its ``config.yaml`` next to it.
        folder: made if it is missing.
        weights: ``merged``: all weights and buffers of the net, adapters added to the weights that they adapt;
            ``separate``: those that were trained, and the buffers.

    Returns:
        The file with the weights.

    Raises:
        FileNotFoundError: if there is no checkpoint or no config.
        ValueError: if the checkpoint cannot be read, or its clients keep separate models.
        OSError: if a file cannot be written.
    """
    with needing_extra("transformers", "export --weights"):
        from safetensors.torch import save
    checkpoint, (run, config) = read_checkpoint(ckpt_path), run_config(ckpt_path)
    method = build_run(config, FederatedModule).model
    restore_weights(method, checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    state = method.net.state_dict()
    trained = sum(state[name].numel() for name in method.trained_names)
    all_of = sum(tensor.numel() for tensor in method.net.parameters())
    card = _card(run, checkpoint["global_step"], method, f"{trained:,} of {all_of:,} weights", weights)
    path = folder / _FILES[weights]
    with atomic_write(path) as temporary:
        temporary.write_bytes(save(_written(method, state, weights)))
    with atomic_write(folder / "README.md") as temporary:
        temporary.write_text(card, encoding="utf-8")
    return path


def _written(method: FederatedModule, state: State, weights: Weights) -> State:
    if weights == "separate":
        frozen = dict(method.net.named_parameters()).keys() - method.trained_names
        state = {name: tensor for name, tensor in state.items() if name not in frozen}
    elif method.adapter is not None:
        state = method.adapter.merged(method.net)
    # In memory of their own, as safetensors requires.
    return {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}


def _scalars(run: Path, round: int) -> dict[str, float]:
    """What the run's record has of a round, by name."""
    path, scalars = run / RECORD_FILE, dict[str, float]()
    if path.is_file():
        with path.open("rb") as file, suppress(EOFError):  # of a run that was killed while it wrote
            for line in record_lines(file):
                scalars |= line.scalars if line.round == round else {}
    return scalars


def _card(run: Path, round: int, method: FederatedModule, trained: str, weights: Weights) -> str:
    """The model card in Markdown; accuracies are those of the round, if it was evaluated."""
    path = run / "results.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    measured = _scalars(run, round)
    rows = [
        ("method", f"{type(method).__name__}, {method.loss!r}"),
        ("net", type(method.net).__name__),
        ("trained", trained),
        ("adapter", "none" if method.adapter is None else repr(method.adapter)),
        ("weights of round", str(round)),
    ]
    if origin := results.get("initial_weights"):
        rows.append(("began from", Path(origin["file"]).name))
    for part in ("test", "val"):
        if (accuracy := measured.get(f"{part}/accuracy")) is not None:
            rows.append((f"{part} accuracy", f"{accuracy:.4f}"))
    reference = results.get("reference", {})
    for name in (name for name in reference if name.endswith("/accuracy") and name in measured):
        old, before = measured[name], reference[f"{name}_before"]
        rows.append((f"accuracy on {name.split('/')[1]}", f"{old:.4f}, {before:.4f} before: forgetting {before - old:z.4f}"))
    table = "\n".join(f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in rows)
    merged = {
        "merged": f"`{_FILES['merged']}` has all weights of the net. With fl-lightning a run begins with it by "
        f"`--model.initial_weights {_FILES['merged']}`, without an adapter.",
        "separate": f"`{_FILES['separate']}` has only the trained weights and the buffers, by the names of the net with its "
        "adapter: load them over the initial weights with `load_state_dict(..., strict=False)`.",
    }
    return f"# {type(method.net).__name__} of a federation\n\n| | |\n| --- | --- |\n{table}\n\n{merged[weights]}\n"
