"""Data that a run refuses: inputs that its net cannot take, tasks that its method does not learn, too few cohorts.

A check raises a ValueError that names what does not fit, its value and the cure.
"""

import copy
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from inspect import signature
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.algorithm import FederatedAlgorithm, checked_cohort, who_draws
from fl_lightning.checks import ArgumentError, counted, first_line, in_code_of
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.participation import Participation
from fl_lightning.data.samples import Samples, are_whole, type_names
from fl_lightning.data.tasks import Tasks
from fl_lightning.data.token_ids import check_token_ids
from fl_lightning.losses import IGNORED, WeightedCrossEntropy
from fl_lightning.models import TransformersModel
from fl_lightning.models.adapters import adapted_layers
from fl_lightning.models.network import classifier_of, inputs_of, uses_class_layer
from fl_lightning.objectives import NextToken, Objective
from fl_lightning.protocol import Learner, Needs, NetInputs, evaluate_net
from fl_lightning.protocol.hooks import overridden


def check_objective(method: FederatedAlgorithm, data: FederatedDataModule, callbacks: Sequence[Callback]) -> None:
    """Refuse what needs one class for each sample, where samples have something else, or weights of other classes."""
    if data.objective.tells_classes:
        if isinstance(method.loss, WeightedCrossEntropy) and data.tasks is None:  # a head of a task can have fewer classes
            method.loss.check_classes(len(data.classes))
        return
    refused = {
        f"model is {type(method).__name__}": method.needs.data.classes,
        f"model.hostile is {method.hostile}": method.hostile is not None and method.hostile.flips_labels,
        **{f"callback {type(one).__name__}": getattr(one, "needs_classes", False) for one in callbacks},
    }
    if what := next((what for what, needs_classes in refused.items() if needs_classes), None):
        raise ValueError(
            f"{what}, which needs one class for each sample, but data.source has {data.objective!r}: use another, or leave "
            "it out"
        )


def check_outputs(net: nn.Module, data: FederatedDataModule, class_layer: str | None) -> None:
    """Check that there are several classes, and that the net takes the data and has one output per class.

    Args:
        class_layer: the layer that a user has named, which must give the outputs; None: one that is found by its name must be
            the last with weights, if anything relies on it.
    """
    objective, num_classes, weight = data.objective, len(data.classes), next(net.parameters())
    if weight.dtype == torch.float16:
        raise ValueError(
            "model.net has weights in float16, in which small updates are lost: give net.float(), or net.bfloat16()"
        )
    if num_classes == 1 and objective.tells_classes:
        raise ValueError(
            f"data.source has the single class {data.classes[0]!r}, so there is nothing to distinguish: check data.root "
            "and the labels, or name all classes"
        )
    if isinstance(objective, NextToken) and isinstance(net, TransformersModel) and not net.causal:
        raise ValueError(
            f"model.net.causal is false, with which the net is a classifier, but data.source has {objective!r}: set it to true"
        )
    inputs = data.first_inputs(2)  # some nets take one at a time only
    _check_names(net, inputs)
    placed = tree_map(lambda part: part.to(weight.device, weight.dtype if part.is_floating_point() else None), inputs)
    samples = data.samples.dataset
    check_token_ids("data.source", net, data.preparation, (samples.train, samples.test))
    made: list[Any] = []
    started: list[nn.Module] = []
    layer = net.get_submodule(class_layer or "")
    watched = net.modules() if class_layer is None and uses_class_layer(net) else ()
    hooks = [
        one.register_forward_pre_hook(lambda layer, arguments: started.append(layer))
        for one in watched
        if next(one.parameters(recurse=False), None) is not None
    ]
    hook = layer.register_forward_hook(lambda layer, arguments, output: made.append(output))
    try:
        outputs: object = evaluate_net(net, lambda net: net(placed))
    except torch.OutOfMemoryError:  # no error of the net
        raise
    except Exception as error:  # of any net
        if sizes := re.search(r"image size \((\d+)\*(\d+)\) doesn't match model \((\d+)\*(\d+)\)", str(error)):
            height, width, *wanted = map(int, sizes.groups())
            raise ValueError(
                f"model.net takes images of {wanted[0]}x{wanted[1]}, the data gives {height}x{width}: add "
                "fl_lightning.data.Resize to data.augment, or build the net for this size"
            ) from error
        raise _misfit(net, data, inputs, error) from error
    finally:
        for one in (hook, *hooks):
            one.remove()
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"model.net gives {type(outputs).__name__}, must be logits (samples, classes), an object with logits or a tuple "
            "that begins with them: wrap it in a net whose forward returns the tensor"
        )
    _check_adapters(net, placed)
    if started and started[-1] not in {*classifier_of(net).modules()}:
        names = {one: name for name, one in net.named_modules()}
        raise ValueError(
            f"model.net {type(net).__name__} has the layer {names[started[-1]]} after {names[classifier_of(net)]}, which is "
            f"taken for its class layer by the name: set model.class_layer, such as to {names[started[-1]]}"
        )
    if class_layer and not any(isinstance(one, Tensor) and outputs.shape[-1] in one.shape[1:] for one in made):
        raise ValueError(
            f"model.class_layer is {class_layer!r}, which does not give the outputs of model.net, of shape "
            f"{tuple(outputs.shape[1:])}: name the last layer of the net"
        )
    if not objective.tells_classes:
        wanted = objective.output_shape(data.samples.dataset.train.targets[:2], num_classes)
        if outputs.shape != wanted:
            raise ValueError(
                f"model.net gives outputs of shape {tuple(outputs.shape[1:])}, must be {wanted[1:]} for {objective!r}: build "
                "it with that many outputs"
            )
        _check_shift(samples.train, objective)
        return
    if outputs.ndim > 2:
        raise ValueError(
            f"model.net gives outputs of shape {tuple(outputs.shape[1:])}, must be (classes,): segmentation is not "
            "supported, and for sequences the net must return one row per sample"
        )
    if outputs.shape != (len(tree_leaves(inputs)[0]), num_classes):
        raise ValueError(
            f"model.net gives outputs of shape {tuple(outputs.shape[1:])}, the data has {num_classes} classes: "
            "build it with that many outputs"
        )
    if num_classes > 1 and bool((outputs >= 0).all() & ((outputs.sum(dim=1) - 1).abs() < 1e-3).all()):
        said = "model.net gives outputs that sum to 1, as after a softmax, but losses take logits: leave its softmax out"
        warnings.warn(said, stacklevel=1)


def check_loss(method: FederatedAlgorithm, data: FederatedDataModule) -> None:
    """Refuse a loss in which samples of a batch see each other: engines pad and split batches.

    Raises:
        ArgumentError: if the loss of a sample is another one without the others.
    """
    train = data.samples.dataset.train
    if method.needs.other_samples or type(method.tasks) is not Learner or len(train) < 2:
        return
    last = len(train) - 1
    targets = torch.stack([train.targets[place] for place in (0, last // 3, 2 * last // 3, last)])
    shape = data.objective.output_shape(targets, len(data.classes))
    draws = torch.Generator("cpu").manual_seed(0)
    outputs = torch.randn(shape, generator=draws, dtype=torch.float32, device="cpu").to(targets.device)
    counts = data.label_counts[0].to(targets.device)
    with torch.no_grad(), in_code_of("model.loss", method.loss):
        together, again = (method.loss(outputs, targets, counts) for _ in range(2))
        alone = method.loss(outputs[:1], targets[:1], counts)
    if not isinstance(together, Tensor) or not isinstance(alone, Tensor) or together.shape != (4,) or alone.shape != (1,):
        return  # a local step says it
    if torch.equal(together, again) and not torch.allclose(together[:1], alone, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ArgumentError(
            "model.loss",
            f"is {type(method.loss).__name__}, which gives a sample {float(together[0]):.4g} in a batch and "
            f"{float(alone[0]):.4g} by itself: compute each value from its own sample, or override client_loss in a method "
            "with needs = Needs(other_samples=True)",
        )


def _check_shift(samples: Samples, objective: Objective) -> None:
    """Refuse texts as targets of themselves, as the labels of transformers are, which its nets shift."""
    ids = samples.inputs.get("input_ids") if isinstance(samples.inputs, dict) else samples.inputs
    if not isinstance(objective, NextToken) or not isinstance(ids, Tensor) or ids.ndim != 2:
        return
    tokens = samples.targets[:, : ids.shape[1]]
    counted = tokens != IGNORED
    if tokens.shape != ids.shape or (tokens != ids)[counted].any():
        return
    if (tokens[:, :-1] != ids[:, 1:])[counted[:, :-1]].any():  # else each text repeats one token
        raise ValueError(
            "data.source gives the inputs as targets, as DataCollatorForLanguageModeling does, but NextToken takes the token "
            "that follows each place: give labels[:, 1:], and the inputs without their last place"
        )


def check_gives_outputs(layer: nn.Module, net: nn.Module, inputs: NetInputs, user: str, cure: str) -> None:
    """Refuse a net that changes the outputs of its last layer, which something calls by itself.

    Outputs of minus infinity, of classes that have not arrived, are not compared.

    Args:
        inputs: of a few samples, where the net is.
        user: what calls the layer, for the error.
        cure: another way out than a net that ends with the layer.
    """
    outputs, alone = evaluate_net(net, lambda net: (net(inputs), layer(inputs_of(layer, net, inputs))))
    arrived = outputs > float("-inf")
    if alone.shape != outputs.shape or not torch.allclose(alone[arrived], outputs[arrived]):
        raise ValueError(
            f"{user}, but {type(net).__name__} changes its outputs: let the net return them as they are, or {cure}"
        )


def _misfit(net: nn.Module, data: FederatedDataModule, inputs: NetInputs, error: Exception) -> ValueError:
    """The line for inputs with which a net fails."""
    length, longest = _length_of_ids(inputs), _positions_of(net)
    if length is not None and longest is not None and length > longest:
        return ValueError(
            f"model.net takes at most {longest} tokens a sample, the data gives {length}: shorten the texts, or choose "
            "a net with more positions"
        )
    reason, given = first_line(error), f"of shape {data.input_shape}"
    if isinstance(error, LookupError | AttributeError):  # their texts name only what is missing
        reason = f"{type(error).__name__}: {reason}"
    if data.samples.inputs_are_whole:
        given = f"{given} and type {type_names(inputs)}"
    cure = "choose one that fits the data"
    if "no padding token" in reason:
        cure = "give its configuration the tokenizer's pad_token_id, as in model.net.options {pad_token_id: 0}"
    elif "scalar types: Long, Int" in reason:
        cure = "give token ids as whole numbers"
    elif isinstance(inputs, dict) and isinstance(error, TypeError | KeyError | AttributeError):
        cure = f"its forward gets {', '.join(inputs)} as keyword arguments: give it these, or {cure}"
    elif isinstance(error, IndexError):  # of a table, in which whole numbers are looked up
        cure = f"{cure}, with embeddings for all tokens and positions"
    elif data.samples.inputs_are_whole and not isinstance(inputs, dict):
        cure = f"{cure}, or give floats"
    return ValueError(f"model.net cannot take inputs {given} ({reason}): {cure}")


def _length_of_ids(inputs: NetInputs) -> int | None:
    """Tokens of a sample, if its inputs are token ids."""
    ids = inputs.get("input_ids") if isinstance(inputs, dict) else inputs
    return ids.shape[1] if isinstance(ids, Tensor) and are_whole(ids) and ids.ndim == 2 else None


def _positions_of(net: nn.Module) -> int | None:
    """The longest text that a net of transformers takes, if its configuration tells it."""
    config = next((layer.config for layer in net.modules() if hasattr(layer, "config")), None)
    return getattr(config, "max_position_embeddings", None)


def _check_adapters(net: nn.Module, inputs: NetInputs) -> None:
    """Refuse adapters of layers that a net does not call but reads the weights of, as torchvision's Swin and timm's BEiT do."""
    if not any("lora_" in name for name, _ in net.named_parameters()):
        return
    layers = adapted_layers(net)
    called: set[str] = set()
    hooks = [layer.register_forward_hook(lambda *_, name=name: called.add(name)) for name, layer in layers.items()]
    evaluate_net(net, lambda net: net(inputs))
    for hook in hooks:
        hook.remove()
    present = dict(net.named_parameters())
    names = [f"{name}.base_layer.weight" for name in layers if name not in called]
    weights = {name: present[name].detach().requires_grad_() for name in names if name in present}
    if not weights:
        return

    @torch.enable_grad()
    def read_gradients(net: nn.Module) -> Sequence[Tensor | None]:
        return torch.autograd.grad(functional_call(net, weights, (inputs,)).sum(), [*weights.values()], allow_unused=True)

    gradients = evaluate_net(net, read_gradients)
    if read := next((name for name, gradient in zip(weights, gradients, strict=True) if gradient is not None), None):
        raise ValueError(
            f"model.adapter adapts {read.removesuffix('.base_layer.weight')}, but model.net reads its weight past the adapter: "
            "name other layers as model.adapter.target_modules"
        )


def _check_names(net: nn.Module, inputs: NetInputs) -> None:
    """Refuse names that a net of transformers would ignore."""
    called = next((layer for layer in net.modules() if hasattr(layer, "config")), None)
    if called is None or not isinstance(inputs, dict):
        return
    taken = [name for name, one in signature(called.forward).parameters.items() if one.kind is not one.VAR_KEYWORD]
    if "labels" in inputs:
        raise ValueError(
            f"data.source gives 'labels' among the inputs, from which model.net {type(called).__name__} computes its own loss: "
            "give them as targets only"
        )
    for name in inputs:
        if name not in taken:
            raise ValueError(
                f"data.source gives {name!r}, which model.net {type(called).__name__} does not take: it takes "
                f"{', '.join(taken)}"
            )


def check_validates(data: FederatedDataModule) -> None:
    """Refuse to validate the global model if there are no validation samples for it."""
    if not data.has_validation:
        said, cure = f"data.tasks is {data.tasks!r}", "a fit logs how clients' models do, as tasks/accuracy"
        if data.val_fraction == 0:
            said, cure = "data.val_fraction is 0", "set it to that of the fit"
        raise ValueError(f"{said}, so there are no validation samples for the global model: {cure}")


def check_tasks(method: FederatedAlgorithm, tasks: Tasks) -> None:
    """Refuse tasks that a method, with its learner, does not learn."""
    if tasks.global_model and method.hostile is not None and method.hostile.flips_labels:
        raise ValueError(
            f"model.hostile is {method.hostile}, which flips classes, but with data.tasks {tasks} samples arrive in tasks: use "
            "SignFlip, ALIE or IPM"
        )
    needs = method.needs.data
    if needs.arriving_classes if tasks.global_model else needs.task_streams:
        return
    cure = "ClassLearner or ServerEWC" if tasks.global_model else "TaskLearner or EWC"
    cure = f"set model.tasks, such as to {cure}, or data.tasks to null"
    learns = "other" if needs.arriving_classes or needs.task_streams else "no"
    if method.tasks.needs == Needs():
        raise ValueError(f"data.tasks is {tasks}, but {type(method).__name__} learns {learns} tasks: {cure}")
    raise ValueError(
        f"model.tasks is {type(method.tasks).__name__}, which learns {learns} tasks, but data.tasks is {tasks}: {cure}"
    )


def check_cohorts(participation: Participation, rounds: int) -> None:
    """Refuse a fit with more rounds than cohorts."""
    named = participation.num_rounds
    if named is not None and rounds > named:
        raise ValueError(
            f"trainer.max_steps is {rounds}, but {participation.said_by} names {counted(named, 'round')}: lower it"
        )


def check_aggregation(method: FederatedAlgorithm, data: FederatedDataModule, rounds: int) -> None:
    """Refuse a rule that needs more updates than a cohort has clients; where clients may be away, than the largest has."""
    aggregation = method.aggregation
    if aggregation is None:
        return
    if data.participation.sampler.may_be_empty:
        size = data.participation.largest
    else:
        last = 1 if data.participation.num_rounds is None else rounds
        size = min(_num_senders(method, data, round) for round in range(1, last + 1))
    size = size if data.devices is None else data.devices.awaited(size, data.participation.size)
    if size < aggregation.least:
        raise ValueError(
            f"model.aggregation is {aggregation}, which needs {aggregation.least} clients in a round, but "
            f"{who_draws(method)} gives {size}: have more clients in a round, or lower the numbers "
            "of model.aggregation"
        )


def _num_senders(method: FederatedAlgorithm, data: FederatedDataModule, round: int) -> int:
    """By the method's own ``cohort`` if it has one; else of all clients, whether they have joined or not."""
    if overridden(method, FederatedAlgorithm.cohort):
        return sum(visit.sends for visit in checked_cohort(method, round))
    return len(data.cohort(round))


def check_groups(method: FederatedAlgorithm, *names: str) -> None:
    """Refuse a local optimizer with groups of weights that differ in a setting, for a method that counts with one value."""
    groups = method.optimizer([*method.trained_weights(method.net).values()]).param_groups
    for name in names:
        values = [*dict.fromkeys(group[name] for group in groups if name in group)]
        if len(values) > 1:
            raise ValueError(
                f"model.optimizer has groups with {name} {' and '.join(map(str, values))}, but {type(method).__name__} counts "
                "with one value for all weights: give all the same, or use FedAvg"
            )


def check_batches_of_one(method: FederatedAlgorithm, data: FederatedDataModule, rounds: int) -> None:
    """Refuse clients' batches of one sample, in any task, if the net, for example one with BatchNorm, cannot take one.

    Args:
        method: of that net; its ``micro_batch_size`` cuts batches into parts.
    """
    clients: Iterable[int] = range(data.num_clients)
    if data.participation.num_rounds is not None:
        clients = {client for round in range(1, rounds + 1) for client in data.cohort(round)}
    lonely = next(_batches_of_one(method, clients, data), None) if _has_batch_norm(method.net) else None
    if lonely is not None:
        part = "" if method.micro_batch_size is None else f" and model.micro_batch_size {method.micro_batch_size}"
        _check_one(method.net, data, f"data.batch_size is {data.batch_size}{part}, which gives {lonely} a batch of one sample")


def check_public_batches(net: nn.Module, data: FederatedDataModule, count: int, size: int) -> None:
    """Refuse a last distillation batch of one sample, as :func:`check_batches_of_one`.

    Args:
        count: public samples in an epoch.
        size: of a batch.
    """
    if count % size == 1 and _has_batch_norm(net):
        what = f"model.distillation_batch_size is {size}, which leaves a batch of one of {count} public samples"
        _check_one(net, data, what)


def _has_batch_norm(net: nn.Module) -> bool:
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in net.modules())


def _check_one(net: nn.Module, data: FederatedDataModule, what: str) -> None:
    try:
        copy.deepcopy(net).train()(data.first_inputs(1))
    except ValueError as error:
        cure = "choose another batch size, or a net without it"
        raise ValueError(f"{what}, but BatchNorm in model.net needs more: {cure}") from error


def _batches_of_one(method: FederatedAlgorithm, clients: Iterable[int], data: FederatedDataModule) -> Iterator[str]:
    """Names of the clients that have one, or one as a part of a batch, with its task."""

    def is_alone(client: int) -> bool:
        sizes = data.batch_sizes.of_visit(client, method.num_local_steps(client))
        return any((size - 1) % (method.micro_batch_size or size) == 0 for size in sizes)

    for position in data.present_shards.at_each_position():
        task = f" in task {position + 1}" if data.tasks is not None else ""
        holding = (client for client in clients if data.num_train(client) > 0)  # others join later
        yield from (f"client {client}{task}" for client in filter(is_alone, holding))
