"""APD against its objective in a plain loop, parts and penalties written out task by task."""

from collections import OrderedDict

import pytest
import torch
from pairs import Pair
from torch import nn

from fl_lightning.methods import FedAvg, FedProx, LocalOnly
from fl_lightning.tasks import APD, FedWeIT
from fl_lightning.tasks.decomposition import Decomposition

L1, L2, DECAY, MU = 0.02, 3.0, 0.05, 0.3
LAYERS, MASK = ("conv", "hidden"), "parametrizations.weight.0.mask"


def over_outputs(mask, weight):
    """``sigmoid`` of a mask, (outputs,), times a weight (outputs, ...)."""
    return torch.stack([torch.sigmoid(m) * row for m, row in zip(mask, weight)])


def hard(adaptive):
    return torch.where(adaptive.abs() > L1, adaptive, 0.0)


def plain_apd(tiny, masks, retroactive, method, adaptive_start):
    """The server's B, every client's B and tasks (m, A, bias, head), and what it says of its test samples.

    ``CE + l1 sum_{j<=t} |A_j| + l2/2 sum_{j<t} ||theta_j - theta_j at the end of t-1||^2 + decay/2 (||A_t||^2 + ||m_t||^2)``,
    in the first task ``decay/2 ||B||^2`` too, for FedProx ``mu/2 ||B - B_received||^2``. A_j of earlier tasks, if fixed, are
    what the threshold left.
    """
    server = {layer: tiny.weights[f"{layer}.weight"] for layer in LAYERS}
    B, tasks, before = {c: dict(server) for c in range(3)}, {c: [] for c in range(3)}, {}
    outputs = {}
    per_task = ("conv.bias", "hidden.bias", *tiny.head)

    def theta(flat, layer, j):
        return over_outputs(flat[f"m{j}.{layer}"], flat[f"B.{layer}"]) + flat[f"A{j}.{layer}"]

    for round, t, _ in tiny.rounds():
        for c in range(3):
            if method.is_federated:
                B[c] = dict(server)
            if len(tasks[c]) == t:
                start = {f"m{t}.{layer}": tiny.drawn(f"{layer}.{MASK}", c, t, masks[layer]) for layer in LAYERS}
                begins = {"base": B[c], "initial": {layer: tiny.weights[f"{layer}.weight"] / 3 for layer in LAYERS}}
                start |= {f"A{t}.{layer}": begins[adaptive_start][layer] for layer in LAYERS}
                tasks[c].append(start | {name: tiny.weights[name] for name in per_task} | tiny.drawn_head(c, t))
                old = {f"B.{layer}": B[c][layer] for layer in LAYERS} | {k: v for task in tasks[c][:t] for k, v in task.items()}
                before[c] = {(layer, j): theta(old, layer, j) for layer in LAYERS for j in range(t)}
            received = {f"B.{layer}": B[c][layer] for layer in LAYERS}
            fixed = {k: v for task in tasks[c][:t] for k, v in task.items() if k not in per_task}
            trained = {**received, **tasks[c][t]}
            if retroactive:
                trained |= {k: fixed.pop(k) for k in list(fixed) if k.startswith("A")}

            def objective(w, inputs, targets, t=t, fixed=fixed, c=c, received=received):
                flat = {**w, **fixed}
                net = {name: w[name] for name in per_task} | {f"{layer}.weight": theta(flat, layer, t) for layer in LAYERS}
                value = tiny.loss(net, inputs, targets)
                for layer in LAYERS:
                    value = value + L1 * sum(flat[f"A{j}.{layer}"].abs().sum() for j in range(t + 1))
                    for j in range(t):
                        value = value + L2 / 2 * ((theta(flat, layer, j) - before[c][layer, j]) ** 2).sum()
                    value = value + DECAY / 2 * ((w[f"A{t}.{layer}"] ** 2).sum() + (w[f"m{t}.{layer}"] ** 2).sum())
                    value = value + (t == 0) * DECAY / 2 * (w[f"B.{layer}"] ** 2).sum()
                    if method.method is FedProx:
                        value = value + MU / 2 * ((w[f"B.{layer}"] - received[f"B.{layer}"]) ** 2).sum()
                return value

            after = tiny.fit(trained, c, round, objective)
            B[c] = {layer: after[f"B.{layer}"] for layer in LAYERS}
            for task in tasks[c]:
                task.update({name: after[name] for name in task if name in after and (task is tasks[c][t] or name[0] == "A")})
            for j, task in enumerate(tasks[c]):
                flat = {**after, **task, **{f"A{j}.{layer}": hard(task[f"A{j}.{layer}"]) for layer in LAYERS}}
                net = {name: task[name] for name in per_task} | {f"{layer}.weight": theta(flat, layer, j) for layer in LAYERS}
                outputs[c, round, j] = tiny.logits(net, tiny.samples(c, j, "test")[0])
            if round % tiny.rounds_per_task == 0 and not retroactive:
                tasks[c][t].update({f"A{t}.{layer}": hard(tasks[c][t][f"A{t}.{layer}"]) for layer in LAYERS})
        server = {layer: sum(B[c][layer] for c in range(3)) / 3 for layer in LAYERS}
    return server, B, tasks, outputs


@pytest.mark.parametrize("retroactive", [True, False], ids=["retroactive", "fixed"])
@pytest.mark.parametrize(
    ("method", "adaptive_start"),
    [(LocalOnly, "base"), (FedAvg, "base"), (FedProx, "base"), (FedProx, "initial")],
)
def test_all_tasks_equal_the_objective(tiny, method, retroactive, adaptive_start):
    """B, all parts of all tasks, outputs with the hard threshold, and the size of the models without zeros."""
    settings = {"mu": MU} if method is FedProx else {}
    settings |= {"retroactive": retroactive, "adaptive_start": adaptive_start}
    method = Pair(method, APD)
    trained = tiny.train(method, l1=L1, l2=L2, decay=DECAY, **settings)
    weight = "{}.parametrizations.weight.{}".format
    masks = {layer: trained.net.get_parameter(weight(layer, "0.mask")).detach() for layer in LAYERS}
    server, B, tasks, outputs = plain_apd(tiny, masks, retroactive, method, adaptive_start)
    if method.is_federated:
        tiny.assert_same({layer: trained.net.get_parameter(weight(layer, "original")) for layer in LAYERS}, server)
    tiny.assert_outputs(trained, outputs)
    for c in range(3):
        state, size = trained.stored.states.read(c), 0
        for layer in LAYERS:
            tiny.assert_same({"B": state.weights[weight(layer, "original")]}, {"B": B[c][layer]})
            size += B[c][layer].numel()
            for j, task in enumerate(tasks[c]):
                tensors = state.tasks[j].tensors
                kept = {"m": tensors[weight(layer, "0.mask")], "bias": tensors[f"{layer}.bias"]}
                tiny.assert_same(kept, {"m": task[f"m{j}.{layer}"], "bias": task[f"{layer}.bias"]})
                adaptive = task[f"A{j}.{layer}"]
                if retroactive and j < 2:
                    tiny.assert_same({"A": state.weights[weight(layer, "0.earlier")][j]}, {"A": adaptive})
                else:
                    tiny.assert_same({"A": tiny.dense(state.tasks[j].sparse[layer], adaptive)}, {"A": hard(adaptive)})
                size += int(hard(adaptive).count_nonzero()) + len(task[f"m{j}.{layer}"]) + len(task[f"{layer}.bias"])
        for j, task in enumerate(tasks[c]):
            tiny.assert_same({n: state.tasks[j].tensors[n] for n in tiny.head}, {n: task[n] for n in tiny.head})
            size += sum(task[n].numel() for n in tiny.head)
        assert trained.tasks.model_values[c] == size
    zeros = sum(int((hard(task[f"A{j}.conv"]) == 0).sum()) for j, task in enumerate(tasks[0]))
    assert 5 < zeros < 3 * 32  # the threshold bites, and leaves something
    sent = 8 * sum(B[0][layer].numel() for layer in LAYERS) * method.is_federated
    assert all(report.bytes_up == report.bytes_down == 3 * sent for report in trained.seen.rounds)


def test_a_task_that_was_never_learned_holds_nothing_back(tiny):
    """Client 2 first comes in the second task: however large l2 is, it trains as without it, bit for bit. Client 0 does not."""
    data = tiny.new_data(cohorts=[[0, 1], [0, 1], [0, 1, 2]])
    free, bound = (tiny.train(APD, data, l2=l2) for l2 in (0.0, 100.0))
    tiny.assert_same_state(bound.stored.states.read(2), free.stored.states.read(2))
    one, other = (trained.stored.states.read(0).weights["conv.parametrizations.weight.original"] for trained in (bound, free))
    assert (one - other).abs().max() > 1e-3


@pytest.mark.parametrize("method", [Pair(LocalOnly, APD), APD, FedWeIT])
def test_a_norm_is_of_each_task(tiny, method):
    """Gain, bias and running statistics: a task is done with those that it ended with, written out; none is sent."""
    layers = {"flat": nn.Flatten(), "body": nn.Linear(18, 3), "norm": nn.BatchNorm1d(3), "classifier": nn.Linear(3, 2)}
    trained = tiny.train(method, net=nn.Sequential(OrderedDict(layers)).double(), retroactive=False, l1=L1)
    assert trained.net.norm.running_mean.count_nonzero() == 0 == (trained.net.norm.weight != 1).sum()
    for c in range(3):
        state = trained.stored.states.read(c)
        per_task = state.tasks[0].tensors
        base = state.weights["body.parametrizations.weight.original"]
        kept = state.tasks[0].sparse if method is not FedWeIT else trained.tasks.knowledge_base[c][0]
        adaptive = tiny.dense(kept["body"], base)
        theta = over_outputs(per_task["body.parametrizations.weight.0.mask"], base) + adaptive
        hidden = tiny.samples(c, 0, "test")[0].flatten(1) @ theta.T + per_task["body.bias"]
        hidden = (hidden - per_task["norm.running_mean"]) / (per_task["norm.running_var"] + 1e-5).sqrt()
        hidden = hidden * per_task["norm.weight"] + per_task["norm.bias"]
        expected = hidden @ per_task["classifier.weight"].T + per_task["classifier.bias"]
        torch.testing.assert_close(trained.outputs[c, 6, 0], expected, atol=1e-9, rtol=0)
        assert (per_task["norm.running_mean"] - state.tasks[2].tensors["norm.running_mean"]).abs().max() > 1e-3


@pytest.mark.parametrize("method", [APD, FedWeIT])
def test_what_is_called_as_a_part_is_none(tiny, method):
    """A buffer called ``mask`` of another layer keeps its values and their order in every task; masks are drawn anew."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.arange(1.0, 4.0, dtype=torch.float64))

        def forward(self, hidden):
            return hidden * self.mask

    layers = {"flat": nn.Flatten(), "body": nn.Linear(18, 3), "scale": Masked(), "classifier": nn.Linear(3, 2)}
    trained = tiny.train(method, net=nn.Sequential(OrderedDict(layers)).double())
    for c in range(3):
        tasks = trained.stored.states.read(c).tasks.values()
        assert all(task.tensors["scale.mask"].tolist() == [1, 2, 3] for task in tasks)
        assert len({tuple(task.tensors[f"body.{MASK}"].tolist()) for task in tasks}) == 3


@pytest.mark.parametrize("method", [APD, FedWeIT])
def test_weights_are_composed_once_for_all_parts_of_an_evaluation(tiny, method, monkeypatch):
    """One sample a part: no more often than all samples in one."""
    composed, forward = [], Decomposition.forward

    def counted(self, base):
        composed[-1] += not torch.is_grad_enabled()
        return forward(self, base)

    monkeypatch.setattr(Decomposition, "forward", counted)
    for eval_batch_size in (1, 100):
        composed.append(0)
        tiny.train(method, tiny.new_data(eval_batch_size=eval_batch_size), rounds=3)
    assert composed[0] == composed[1] > 0


@pytest.mark.parametrize("method", [APD, FedWeIT])
def test_what_serves_training_alone_goes_with_the_task(tiny, method):
    """A in full and B as the task began: there in the midst of the second task, not at its end."""
    dense = "conv.parametrizations.weight.0.adaptive"
    for rounds, is_there in ((3, True), (4, False)):
        state = tiny.train(method, rounds=rounds).stored.states.read(0)
        assert (dense in state.weights) == ("conv" in state.method["tasks"].get("base", {})) == is_there


@pytest.mark.parametrize("name", ["l1", "l2", "decay"])
def test_settings_out_of_range_are_refused(tiny, name):
    """One line with the key, the value and what is allowed."""
    for value in (-1.0, float("nan")):
        with pytest.raises(ValueError, match=rf"^model.tasks.{name} is {value}, must be at least 0: 0 leaves the term out$"):
            APD(**{name: value})


def test_a_start_of_another_name_is_refused(tiny):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError, match=r"^model.tasks.adaptive_start is 'zero', must be one of base, initial$"):
        APD(adaptive_start="zero")
