"""A net with stored weights: all of a run's state, or the start of a new run."""

import warnings
from typing import Any

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import check_file
from fl_lightning.data.scaling import InputRecord, check_same_inputs, recorded_inputs
from fl_lightning.functional.aggregation import State
from fl_lightning.models import TransformersModel
from fl_lightning.models.library_net import LibraryNet
from fl_lightning.models.network import PERSONAL_HEAD, SEEN
from fl_lightning.models.torchvision_model import check_finite_values, check_no_wrapper, read_state_dict
from fl_lightning.state.checkpoint import read_checkpoint, weights_of_net

_KEY = "model.initial_weights"


def take_initial_weights(method: FederatedAlgorithm, path: str, given: InputRecord) -> dict[str, Any]:
    """Give a method's net the weights and buffers in a file: of the global net in a checkpoint, and nothing else of its run,
    or a net's plain state dict, also as safetensors. A net of timm or transformers by name takes these libraries' files too.

    Warns if the inputs are not normalised like those that the net of a checkpoint was trained on.

    Args:
        method: its net is changed.
        given: inputs of the run.

    Returns:
        ``file`` and ``round`` of the weights; None for the round of plain weights.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is neither, or of another net.
    """
    holder = f"{_KEY} is {path}, which"
    stored, round = stored_weights(path, given)
    check_no_wrapper(stored, method.net.state_dict(), holder)
    if isinstance(method.net, LibraryNet):
        stored = method.net.our_names(stored)
    if method.adapter is not None:
        stored = method.adapter.begin_with(stored, method.net.state_dict())
    stored = method.tasks.with_server_parts(method.begin_with(stored))
    present = method.net.state_dict()
    stored = {name: tensor for name, tensor in stored.items() if name in present or not name.startswith(f"{PERSONAL_HEAD}.")}
    if SEEN in stored and SEEN not in present:
        raise ValueError(
            f"{holder} holds a net of arriving classes with a class layer in the order of arrival, but data.tasks is null: "
            "give weights of a net without tasks, or set data.tasks and model.tasks"
        )
    cure = "give weights of this net"
    if isinstance(method.net, TransformersModel):
        cure = f"{cure}, or load all but the class layer by --model.net transformers.FOLDER"
    check_same_net(stored, present, holder, cure)
    method.net.load_state_dict(stored)
    return {"file": path, "round": round}


def stored_weights(path: str, given: InputRecord, key: str = _KEY) -> tuple[State, int | None]:
    """The weights and buffers of a net in a file, and the round that they come from; None of plain weights.

    Args:
        given: inputs of the run, as in :func:`take_initial_weights`.
        key: the option that names the file.

    Raises:
        FileNotFoundError, ValueError: as :func:`take_initial_weights`.
    """
    check_file(key, path, "give a checkpoint of a run, or a net's state dict")
    try:
        return read_state_dict(path, key), None
    except ValueError:
        if path.endswith(".safetensors"):
            raise
    checkpoint = read_checkpoint(path, key, or_else="save a net's state_dict() by itself with torch.save")
    try:
        check_same_inputs(recorded_inputs(checkpoint), given, key)
    except ValueError as error:  # a net may be meant for other data
        warnings.warn(str(error), stacklevel=1)
    return weights_of_net(checkpoint), checkpoint["global_step"]


def check_same_net(stored: State, present: State, holder: str, cure: str) -> None:
    """A one-line error instead of the many lines of ``load_state_dict``.

    Args:
        stored, present: tensors by name, from a file and in the net.
        holder: the beginning of the message: the option and the file, such as ``ckpt_path is last.ckpt, which``.
        cure: what to do if they differ.

    Raises:
        ValueError: naming the first weight or buffer that is missing, has another shape, or is not finite.
    """
    for name in sorted(stored.keys() | present.keys()):
        there, here = (tuple(state[name].shape) if name in state else "missing" for state in (stored, present))
        if there != here:
            raise ValueError(f"{holder} holds another net: {name} is {there} there and {here} here: {cure}")
    check_finite_values(stored, present, f"{holder} holds a net where", "give an older checkpoint, or other weights")
