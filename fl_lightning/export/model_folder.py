"""A trained net as a folder: its weights as safetensors, and a model card."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from fl_lightning.callbacks.forgetting_names import forgetting_name, forgetting_sign, is_lost_accuracy
from fl_lightning.checks.extras import needing_extra
from fl_lightning.data.scaling import InputRecord, recorded_inputs
from fl_lightning.functional.aggregation import State
from fl_lightning.models import TransformersModel
from fl_lightning.models.library_net import LibraryNet
from fl_lightning.models.network import SEEN, Network
from fl_lightning.module import FederatedModule, restore_weights
from fl_lightning.run.record_lines import RECORD_FILE, record_lines
from fl_lightning.run.saved_run import build_run, run_config
from fl_lightning.state.checkpoint import read_checkpoint

Weights = Literal["merged", "separate"]
_FILES: dict[Weights, tuple[str, ...]] = {
    "merged": ("model.safetensors",),
    "separate": ("trained.safetensors", "adapter_model.safetensors"),
}


def write_model_folder(ckpt_path: Path, folder: Path, weights: Weights) -> Path:
    """Write a checkpoint's global net and ``README.md``, a model card with what was trained, accuracy and forgetting.

    Args:
        ckpt_path: a checkpoint of a run, in the run's folder or with a copy of its ``config.yaml`` next to it.
        folder: made if it is missing.
        weights: ``merged``: all weights and buffers of the net, adapters added to the weights that they adapt; a net of
            timm or transformers by name as these libraries store it. ``separate``: those that were trained, and the buffers;
            with an adapter as peft stores it, and with those that
            the pretrained weights of transformers lack.

    Returns:
        The file with the weights.

    Raises:
        FileNotFoundError: if there is no checkpoint or no config.
        ValueError: if the checkpoint cannot be read, its clients keep separate models, or the folder has weights in the other
            form.
        OSError: if a file cannot be written.
    """
    with needing_extra("transformers", "export --weights"):
        import safetensors  # noqa: F401  # before anything is written
    other = next(
        (file for form, files in _FILES.items() if form != weights for file in files if (folder / file).exists()), None
    )
    if other is not None:  # a library that reads the folder would add the adapter to weights that have it
        raise ValueError(f"{folder} has {other}, of another --weights than {weights}: give another folder with --out")
    checkpoint, (run, config) = read_checkpoint(ckpt_path), run_config(ckpt_path)
    method = build_run(config, FederatedModule).model
    restore_weights(method, checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    inputs = recorded_inputs(checkpoint)
    classes = inputs.classes if inputs.outputs is None else []
    trained = sum(tensor.numel() for tensor in method.trained_weights(method.net).values())
    all_of = sum(tensor.numel() for tensor in method.net.parameters())
    card = _card(run, checkpoint, method, f"{trained:,} of {all_of:,} weights", weights)
    with TemporaryDirectory(dir=folder) as temporary:  # files that are there are replaced by whole ones
        written = Path(temporary)
        name = _write_merged(method, written, classes) if weights == "merged" else _write_trained(method, written)
        (written / "README.md").write_text(card, encoding="utf-8")
        for file in sorted(written.iterdir()):
            file.replace(folder / file.name)
    return folder / name


def _write_merged(method: FederatedModule, folder: Path, classes: Sequence[str]) -> str:
    net = method.net if method.adapter is None else method.adapter.merged(method.net)
    if isinstance(net, LibraryNet):
        net.save(folder, classes)
    else:
        _write(net.state_dict(), folder / "model.safetensors")
    return "model.safetensors"


def _write_trained(method: FederatedModule, folder: Path) -> str:
    net, trained, name = method.net, method.trained_names, _name_of(method)
    if isinstance(net, LibraryNet):
        trained |= net.drawn  # the library would draw others
        if adapted := min(net.drawn - net.state_dict().keys(), default=None):
            raise ValueError(
                f"model.adapter adapts {adapted.rpartition('.')[0]}, which the pretrained weights lack, and peft's format "
                "cannot hold both: export with --weights merged"
            )
    if method.adapter is None:
        weights = dict(net.named_parameters(remove_duplicate=False))
        kept = {id(weights[name]) for name in trained}
        frozen = {name for name, weight in weights.items() if id(weight) not in kept}  # by each name of a shared weight
        state = {name: tensor for name, tensor in net.state_dict().items() if name not in frozen}
        _write(state, folder / "trained.safetensors")
        return "trained.safetensors"
    if isinstance(net, LibraryNet):
        net, trained = net.whole(), {net.library_name(name) for name in trained}
    method.adapter.save(net, trained, folder, name)
    return "adapter_model.safetensors"


def _write(state: State, path: Path) -> None:
    from safetensors.torch import save_file

    # In memory of their own, as safetensors requires.
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in state.items()}, path)


def _scalars(run: Path, round: int) -> dict[str, float]:
    """What the run's record has of a round, by name."""
    path, scalars = run / RECORD_FILE, dict[str, float]()
    if path.is_file():
        with path.open("rb") as file, suppress(EOFError, ValueError):  # as far as it is whole
            for line in record_lines(file):
                scalars |= line.scalars if line.round == round else {}
    return scalars


def _card(run: Path, checkpoint: dict[str, Any], method: FederatedModule, trained: str, weights: Weights) -> str:
    """The model card in Markdown; accuracies are those of the checkpoint's round, if it was evaluated."""
    round, inputs = checkpoint["global_step"], recorded_inputs(checkpoint)
    path = run / "results.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    measured = _scalars(run, round)
    rows = [
        ("method", f"{type(method).__name__}, {results.get('loss', repr(method.loss))}"),  # by default that of the data
        ("net", " ".join(filter(None, (type(method.net).__name__, _name_of(method))))),
        *([("inputs", _scaled(inputs))] if inputs.mean is not None else []),
        *([("classes", ", ".join(inputs.classes))] if inputs.outputs is None else []),
        *_learned(method, inputs.classes),
        ("trained", trained),
        ("adapter", "none" if method.adapter is None else repr(method.adapter)),
        ("weights of round", str(round)),
    ]
    if origin := checkpoint["federated"]["began_from"]:
        rows.append(("began from", Path(origin["file"]).name))
    for part in ("test", "val"):
        # Of a method with personal models `accuracy` is theirs; the folder has the global net.
        if (accuracy := measured.get(f"{part}/global_accuracy", measured.get(f"{part}/accuracy"))) is not None:
            rows.append((f"{part} accuracy", f"{accuracy:.4f}"))
    reference = results.get("reference", {})
    for name in (name for name in reference if name.endswith("/accuracy") and name in measured):
        shown, before = f"{measured[name]:.4f}", reference.get(f"{name}_before")
        if before is not None:
            shown += f", {before:.4f} before: forgetting {before - measured[name]:z.4f}"
        rows.append((f"accuracy on {name.split('/')[1]}", shown))
    for name in sorted(name for name in measured if name.startswith("forgetting/")):
        sense = ", positive is forgetting" if is_lost_accuracy(name) else ""
        rows.append((forgetting_name(name), f"{forgetting_sign(name) * measured[name]:z.4f}{sense}"))
    table = "\n".join(f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in rows)
    return f"# {type(method.net).__name__} of a federation\n\n| | |\n| --- | --- |\n{table}\n\n{_usage(method, weights)}\n"


def _learned(method: FederatedModule, classes: Sequence[str]) -> list[tuple[str, str]]:
    """A row that names the classes learned so far, if others are still to arrive: only the run's own net excludes those."""
    seen = dict(method.net.named_buffers()).get(SEEN)
    if seen is None or int(seen) >= len(classes):
        return []
    learned = ", ".join(classes[: int(seen)])
    return [("classes learned", f"{int(seen)} of {len(classes)}: {learned}; ignore the outputs for the others")]


def _scaled(inputs: InputRecord) -> str:
    """How the net's inputs are made of stored ones."""
    mean, std = ([f"{value:.4g}" for value in of or ()] for of in (inputs.mean, inputs.std))
    unit = "pixels / 255" if inputs.dtype == "uint8" else "values"
    return f"{unit}, less {', '.join(mean)}, over {', '.join(std)}"


def _name_of(method: FederatedModule) -> str | None:
    """The name of the net in its library, if it was given by name."""
    return method.net.name if isinstance(method.net, Network) else None


def _usage(method: FederatedModule, weights: Weights) -> str:
    if weights == "merged":
        with_library = f"`{method.net.reading}` reads this folder. " if isinstance(method.net, LibraryNet) else ""
        return (
            f"`model.safetensors` has all weights of the net. {with_library}With fl-lightning a run begins with it by "
            "`--model.initial_weights model.safetensors`, without an adapter."
        )
    if method.adapter is not None:
        named = f", {name}," if (name := _name_of(method)) else ""
        replaced = (
            " Where the class layer was replaced, load that net with `num_labels` and `ignore_mismatched_sizes=True`."
            if isinstance(method.net, TransformersModel)
            else ""
        )
        return (
            f"`adapter_model.safetensors` has only the trained weights. Add them to the initial net{named} with "
            f"`peft.PeftModel.from_pretrained(net, FOLDER)`.{replaced}"
        )
    return (
        "`trained.safetensors` has only the trained weights and the buffers, by the names of the net: load them over the "
        "initial weights with `load_state_dict(..., strict=False)`."
    )
