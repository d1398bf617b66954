"""FedWeIT whole, against its equations in a plain loop: clients, server, knowledge base, bytes and outputs."""

from types import SimpleNamespace

import pytest
import torch
from fedweit_loop import DECAY, DENSITY, L1, L2, LAYERS, Plain, authors_outputs, hard, weight
from pairs import Pair

from fl_lightning.data import Poisson
from fl_lightning.methods import FedProx
from fl_lightning.tasks import APD, FedWeIT, TaskLearner, WeightedTransfer, fedweit

# Client 2 first comes in round 2, and client 1 not in the first round of the second task. The third ends without client 1.
COHORTS = [[0, 1], [1, 2], [0, 2], [0, 1, 2], [0, 1, 2], [0, 2]]


class Even(WeightedTransfer):
    """Masks start so close to each other that clients come to choose other outputs than their neighbours."""

    def adapt_net(self, net):
        super().adapt_net(net)
        for mask in self.parts(net, "mask").values():
            mask.data.mul_(1e-3)


SETTINGS = {
    "recommended": {},
    "code": {"upload": "code"},
    "paper": {"upload": "paper"},
    "retroactive": {"retroactive": True},
    "A begins at B": {"adaptive_start": "base"},
    "part of the clients": {"cohorts": COHORTS},
    "the others train too": {"cohorts": COHORTS, "train_unsampled": True},
    "B not shared": {"share_base": False},
    "no mask": {"mask": False},
    "the mask has an l1 term": {"penalize_mask": True},
    "equation 2 as printed": {"upload": "paper", "retroactive": True, "penalize_mask": True},
    "no A": {"adaptive": False},
    "B is pulled": {"mu": 0.7, "cohorts": COHORTS, "train_unsampled": True},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_all_tasks_equal_the_equations(tiny, settings):
    """Everything at the end of three tasks, and every round's bytes: what is not 0, 8 bytes each."""
    settings = dict(settings)
    cohorts = settings.pop("cohorts", None)
    method = tiny.train(Even, tiny.new_data(cohorts=cohorts), l1=L1, l2=L2, decay=DECAY, density=DENSITY, **settings)
    masks = {layer: method.tasks.parts(method.net, "mask")[layer].detach() for layer in LAYERS if settings.get("mask", True)}
    masks = masks or {layer: torch.zeros(len(tiny.weights[f"{layer}.weight"])).double() for layer in LAYERS}
    plain = Plain(tiny, masks, cohorts, **settings)
    assert [(report.bytes_down, report.bytes_up) for report in method.seen.rounds] == plain.bytes
    tiny.assert_same({layer: method.net.get_parameter(weight(layer, "base")) for layer in LAYERS}, plain.G)
    tiny.assert_outputs(method, plain.outputs)
    entries = {(c, t): parts for c, tasks in method.tasks.knowledge_base.items() for t, parts in tasks.items()}
    assert entries.keys() == plain.kb.keys()
    for entry, parts in entries.items():
        tiny.assert_same({layer: dense(parts, layer, tiny) for layer in LAYERS}, plain.kb[entry])
    for c, me in enumerate(plain.clients):
        assert_client(tiny, method, c, me, settings)
    if settings.get("mask", True) and settings.get("share_base", True):
        assert len(plain.contributions) > 2  # entries that nobody sent, some sent, all sent
    tiny.assert_moved(
        {f"{layer}.weight": plain.clients[0].B[layer] for layer in LAYERS}, [f"{layer}.weight" for layer in LAYERS]
    )


def dense(parts, layer, tiny):
    return tiny.dense(parts[layer], tiny.weights[f"{layer}.weight"])


def assert_client(tiny, method, c, me, settings):
    """B, and of every task m, A, biases, head, attention and what it is paid to; and how many numbers that is."""
    state, size = method.stored.states.read(c), 0
    assert method.tasks.clocks.positions[c] == method.data.streams.num_tasks
    assert not any(name.endswith("0.adaptive") for name in state.weights)  # what was for training alone is gone
    assert not {"base", "earlier"} & state.method["tasks"].keys()
    for layer in LAYERS:
        tiny.assert_same({"B": state.weights[weight(layer, "base")]}, {"B": me.B[layer]})
        size += me.B[layer].numel()
    for t, task in me.tasks.items():
        assert task.over
        kept = state.tasks[t]
        tiny.assert_same({name: kept.tensors[name] for name in task.per_task}, task.per_task)
        size += sum(tensor.numel() for tensor in task.per_task.values())
        for layer in LAYERS:
            if settings.get("mask", True):
                tiny.assert_same({"m": kept.tensors[weight(layer, "mask")]}, {"m": task.m[layer]})
                size += len(task.m[layer])
            if not settings.get("adaptive", True):
                continue
            if settings.get("retroactive") and t < 2:
                tiny.assert_same({"A": state.weights[weight(layer, "earlier")][t]}, {"A": task.A[layer]})
            else:
                at_server = method.tasks.knowledge_base.get(c, {}).get(t)
                # The last task's A stays with the client: nothing was kept of it after the server had it.
                assert (layer in kept.sparse) == (at_server is None or t == max(me.tasks))
                A = dense(kept.sparse if at_server is None else at_server, layer, tiny)
                tiny.assert_same({"A": A}, {"A": hard(task.A[layer])})
            attention = kept.tensors[weight(layer, "attention")]
            size += int(hard(task.A[layer]).count_nonzero()) + len(attention)
            if task.known:
                tiny.assert_same({"alpha": attention[: len(task.known)]}, {"alpha": task.alpha[layer]})
        if settings.get("adaptive", True):
            assert [tuple(entry) for entry in kept.known.tolist()] == task.known
    assert method.tasks.model_values[c] == size


def test_stripped_of_its_parts_it_is_fedavg(tiny):
    """Without mask, A, attention and penalties: uniform FedAvg with biases and heads for each task, to rounding."""

    class BiasesOfTasks(TaskLearner):
        per_task = ("classifier.*", "*.bias")

    bare = {"num_foreign": 0, "adaptive": False, "mask": False, "l1": 0.0, "l2": 0.0, "decay": 0.0}
    weit, plain = tiny.train(FedWeIT, **bare), tiny.train(BiasesOfTasks)
    for layer in LAYERS:
        actual, expected = weit.net.get_parameter(weight(layer, "base")), plain.net.get_parameter(f"{layer}.weight")
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)
    tiny.assert_same({"accuracy": weit.tasks.task_accuracy}, {"accuracy": plain.tasks.task_accuracy}, atol=0)
    assert [report.bytes_up for report in weit.seen.rounds] == [report.bytes_up for report in plain.seen.rounds]


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_without_other_clients_tasks_it_is_fedprox_apd_that_sends_a_part(tiny, mu):
    """All outputs sent, and no pull on earlier tasks: APD with the same settings, to rounding, and as many bytes."""
    common = {"l1": L1, "l2": 0.0, "decay": DECAY, "retroactive": False, "adaptive_start": "initial", "mu": mu}
    weit, apd = tiny.train(FedWeIT, num_foreign=0, density=1.0, **common), tiny.train(Pair(FedProx, APD), **common)
    for layer in LAYERS:
        actual, expected = (method.net.get_parameter(weight(layer, "base")) for method in (weit, apd))
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)
    tiny.assert_same({"accuracy": weit.tasks.task_accuracy}, {"accuracy": apd.tasks.task_accuracy}, atol=0)
    assert [report.bytes_up for report in weit.seen.rounds] == [report.bytes_up for report in apd.seen.rounds]


def test_all_earlier_tasks_may_be_known(tiny):
    """``knowledge: all`` limited to 3 of 4 in the third task: drawn by the seed, none of its tasks, none twice."""
    method = tiny.train(FedWeIT, knowledge="all", num_foreign=3)
    for c in range(3):
        known_in = {t: task.known for t, task in method.stored.states.read(c).tasks.items()}
        others = [[other, t] for other in range(3) if other != c for t in range(2)]
        assert known_in[0].shape == (0, 2)
        assert known_in[1].tolist() == [entry for entry in others if entry[1] == 0]
        known = known_in[2].tolist()
        assert len(known) == 3
        assert all(entry in others for entry in known)
        assert len(set(map(tuple, known))) == 3
        attention = method.stored.states.read(c).tasks[1].tensors[weight("conv", "attention")]
        assert attention[2] == 0.5 != attention[0]  # begins at 1 over the two that there are; the third entry is not trained
    again = tiny.train(FedWeIT, knowledge="all", num_foreign=3)
    for c in range(3):
        tiny.assert_same_state(again.stored.states.read(c), method.stored.states.read(c))


@pytest.mark.parametrize("share_base", [True, False])
def test_clients_begin_with_the_bases_of_initial_weights(tiny, tmp_path, share_base):
    """Client 2, which comes in round 2, after B is averaged, too."""
    before = {name: tensor + 1 for name, tensor in tiny.train(FedWeIT, rounds=1).net.state_dict().items()}
    torch.save(before, tmp_path / "net.pt")
    data, settings = tiny.new_data(cohorts=COHORTS), {"share_base": share_base, "initial_weights": str(tmp_path / "net.pt")}
    method = tiny.train(FedWeIT, data, rounds=2, **settings)
    for layer, base in method.server_states.tensors("initial").items():
        assert torch.equal(base, before[weight(layer, "base")])


def test_a_model_has_its_size_without_the_clients_state(tiny):
    """As a resumed run rehearses it on several processes: the knowledge base holds tasks that the client seems not to have."""
    method = tiny.train(FedWeIT)
    assert method.tasks.knowledge_base[0].keys() == {0, 1, 2}
    assert method.tasks.num_values(method.net, SimpleNamespace(index=0, tasks={})) > 0


def test_the_limit_of_knowledge_is_a_cohort_without_oneself(tiny):
    """One number of attention for each other client that can be in a cohort; by name the largest cohort counts."""
    coins = {"clients_per_round": 1, "client_sampler": Poisson()}
    sizes = (({"clients_per_round": 3}, 2), ({"clients_per_round": 1}, 1), ({"cohorts": [[0], [0, 1]]}, 2), (coins, 2))
    for settings, most in sizes:
        method = tiny.train(FedWeIT, tiny.new_data(**settings), rounds=1)
        assert method.net.get_parameter(weight("conv", "attention")).shape == (most,)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([0.1, -0.9, 0.3, 0.5, -0.7, 0.2, 0.8, 0.4, -0.6, 1.0], 6),  # all but .1, .2, .3 and the fourth, .4
        ([0.2, -0.2, 0.2, 0.2, 0.2, 0.5, -0.6, 0.7, 0.8, 0.9], 5),  # the fourth is one of five that are equal
        ([0.1, 0.2, 0.3, 0.4, -0.4, 0.4, 0.5], 4),  # of 7 the third is the threshold
        ([0.3] * 10, 0),
        ([0.3], 0),
        ([0.3, -0.4], 1),
    ],
)
def test_the_codes_upload_is_the_authors_rule(mask, expected):
    """How many of these masks' outputs are sent at .3, by hand, and which, by the authors' line in plain Python."""
    sent = fedweit._larger_than_share(torch.tensor(mask), 0.3)
    assert int(sent.sum()) == expected
    assert sent.double().tolist() == authors_outputs(torch.tensor(mask).tolist(), 0.3)


def test_the_codes_upload_for_any_size_and_share():
    """Every layer of 1 to 40 outputs at six shares, masks of one decimal, so that many are equal."""
    draws = torch.Generator().manual_seed(0)
    for size in range(1, 41):
        mask = torch.randint(-9, 10, (size,), generator=draws) / 10
        for share in (0.1, 0.29, 0.3, 0.5, 0.7, 0.99):
            assert fedweit._larger_than_share(mask, share).double().tolist() == authors_outputs(mask.tolist(), share)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"density": 0.0}, "model.density is 0.0, must be above 0 and at most 1: the paper uses 0.3"),
        ({"density": 1.1}, "model.density is 1.1, must be above 0 and at most 1: the paper uses 0.3"),
        (
            {"density": 1.0, "upload": "code"},
            "model.density is 1.0, with which model.upload code sends no output: lower it, the code uses 0.3",
        ),
        ({"upload": "all"}, "model.upload is 'all', must be one of recommended, code, paper"),
        ({"knowledge": "none"}, "model.tasks.knowledge is 'none', must be one of last, all"),
        ({"num_foreign": -1}, "model.tasks.num_foreign is -1, must be at least 0: 0 uses no tasks of other clients"),
    ],
)
def test_settings_out_of_range_are_refused(tiny, settings, message):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError) as error:
        Pair(FedWeIT, WeightedTransfer)(tiny.new_net(), **settings)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (
            {"server_optimizer": lambda weights: torch.optim.SGD(weights, lr=0.5)},
            "server_optimizer is SGD with other settings than the default's",
        ),
        (
            {"server_optimizer": lambda weights: torch.optim.SGD(weights, lr=1.0, momentum=0.9)},
            "server_optimizer is SGD with other settings than the default's",
        ),
        (
            {"server_optimizer": lambda weights: torch.optim.Adam(weights, lr=1.0)},
            "server_optimizer is Adam with other settings than the default's",
        ),
        (
            {"lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)},
            "lr_scheduler is ExponentialLR",
        ),
    ],
)
def test_a_server_that_does_not_replace_the_base_is_refused(tiny, settings, found):
    """Clients would take what is left of B that nobody sent, not 0 then, for a value."""
    with pytest.raises(ValueError) as error:
        tiny.train(FedWeIT, rounds=1, **settings)
    assert str(error.value) == (
        f"model.{found}, but FedWeIT's server replaces B, in which 0 stands for what was not sent: leave it out"
    )


def test_it_is_refused_without_a_trainer_too(tiny):
    """A schedule is, with every method; any other server's optimizer before the first round."""
    with pytest.raises(ValueError, match=r"^model.server_optimizer is Adam with other settings than the default's, but Fed"):
        FedWeIT(tiny.new_net(), server_optimizer=torch.optim.Adam).join(tiny.data)
