"""Robust rules and hostile clients in the rounds of methods: against plain loops, under every engine, over a stop."""

from functools import partial

import pytest
import torch
from torch import nn

from fl_lightning import SCAFFOLD, FedAvg, FedNova, FedProx
from fl_lightning.methods import MOON, FedACG, FedCM, FedCurv, FedDF, FedDyn, FedExP, FedGMA, FedVARP, Flashback, MoFedSAM
from fl_lightning.privacy import UserLevelDP
from fl_lightning.protocol import Gathered, Needs, RoundReport, Visit
from fl_lightning.robustness import (
    ALIE,
    IPM,
    RFA,
    CenteredClipping,
    CoordinateMedian,
    Krum,
    LabelFlip,
    ModelReplacement,
    SignFlip,
    TrimmedMean,
)
from fl_lightning.run.lost_rounds import LostRounds
from fl_lightning.tasks import ICaRL, ServerEWC

ALL = [[0, 1, 2, 3], [0, 1, 2, 3]]
RULES = [CoordinateMedian(), TrimmedMean(1), Krum(0), Krum(0, kept=2), RFA(), CenteredClipping(0.3, 2)]
SEED = 3  # of the draw of hostile clients


def flat(states: list[dict], names: list[str]) -> torch.Tensor:
    return torch.stack([torch.cat([state[name].detach().double().flatten() for name in names]) for state in states])


def state_of(net: nn.Module) -> dict:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def apart(vector: torch.Tensor, like: dict, names: list[str]) -> dict:
    parts = vector.split([like[name].numel() for name in names])
    return {name: part.view(like[name].shape) for name, part in zip(names, parts, strict=True)}


@pytest.mark.parametrize("tiny", ["sgd", "momentum tce"], indirect=True)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_rounds_equal_the_rule_on_whole_vectors(tiny, rule):
    """``w <- w + rule(w^1 - w, ..., w^4 - w)``, each client's weights as one vector. Statistics of BatchNorm follow."""
    data = tiny.new_data(cohorts=ALL)
    method, net = tiny.train(FedAvg, data, aggregation=rule), tiny.new_net()
    weights = [name for name, _ in net.named_parameters()]
    for round, cohort in enumerate(ALL, start=1):
        locals = [state_of(tiny.visit(net, client, round)) for client in cohort]
        old = state_of(net)
        changes = flat(locals, weights) - flat([old], weights)
        change = rule.combine({"w": changes}, ["w"])["w"]
        net.load_state_dict({**old, **apart(flat([old], weights)[0] + change, old, weights)}, strict=True)
        # Buffers: the same factors, or each entry by itself.
        buffers = [name for name, _ in net.named_buffers()]
        both = rule.combine({"w": changes, "b": flat(locals, buffers) - flat([old], buffers)}, ["w"])
        for name, value in apart(flat([old], buffers)[0] + both["b"], old, buffers).items():
            buffer = net.get_buffer(name)
            buffer.copy_(value if buffer.is_floating_point() else value.add(1e-9).floor())
    tiny.assert_same(method.net, net)


@pytest.mark.parametrize("hostile", [SignFlip(0.4, 3.0), ALIE(0.4), IPM(0.4)], ids=repr)
@pytest.mark.parametrize("weighting", ["n_weighted", "uniform"])
def test_hostile_clients_in_the_mean(tiny, hostile, weighting):
    """Two of four clients send what the attack makes of all changes; the mean has the weights of FedAvg."""
    data = tiny.new_data(cohorts=ALL)
    method, net = tiny.train(FedAvg, data, hostile=hostile, server_weighting=weighting, seed=SEED), tiny.new_net()
    named = hostile.clients(5, SEED)
    assert set(named) < set(ALL[0])
    for round, cohort in enumerate(ALL, start=1):
        locals = {client: tiny.visit(net, client, round) for client in cohort}
        new, old = tiny.mean(locals, uniform=weighting == "uniform"), state_of(net)
        n = [tiny.shard_sizes[client] if weighting == "n_weighted" else 1 for client in cohort]
        for name, weight in net.named_parameters():
            moved = {client: local.get_parameter(name).detach() - weight.detach() for client, local in locals.items()}
            own = torch.stack([moved[c].flatten() for c in named])
            honest = torch.stack([moved[c].flatten() for c in cohort if c not in named])
            sent = dict(zip(named, hostile.changes(own, honest).view(2, *weight.shape), strict=True))
            new[name] = old[name] + sum(k * {**moved, **sent}[c] for k, c in zip(n, cohort, strict=True)) / sum(n)
        net.load_state_dict(new)
    tiny.assert_same(method.net, net)


@pytest.mark.parametrize("method", [FedAvg, partial(FedCurv, penalty=1.0), partial(SCAFFOLD, option="I")])
def test_label_flip_trains_on_other_labels(tiny, method):
    """A run on data with the flipped labels gives the same bits. The loss reads the flipped counts, too, and hooks that go
    through a client's samples see the flipped labels."""
    data, hostile = tiny.new_data(), LabelFlip(0.4)
    flipped, named = tiny.new_data(), hostile.clients(5, 0)
    flipped.setup()
    for client in named:
        rows = flipped.present_shards.train_indices(client)
        flipped.train_set.targets[rows] = 3 - flipped.train_set.targets[rows]
        for counts in (flipped.label_counts, flipped.train_label_counts):
            counts[client] = counts[client].flip(0)
    tiny.assert_same(tiny.train(method, data, hostile=hostile).net, tiny.train(method, flipped).net, atol=0)


@pytest.mark.parametrize("engine", ["vectorized", "captured"])
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (FedAvg, {"hostile": LabelFlip(0.4)}),
        (FedAvg, {"aggregation": RFA(), "hostile": ALIE(0.4)}),
        (MOON, {"aggregation": Krum(0)}),
    ],
    ids=repr,
)
def test_every_engine_gives_the_same(tiny, engine, method, settings):
    nets = [tiny.train(method, tiny.new_data(cohorts=ALL), engine=one, **settings).net for one in ("sequential", engine)]
    tiny.assert_same(*nets)


@pytest.mark.parametrize("method", [FedProx, FedACG, MOON])
def test_methods_that_send_weights_combine(tiny, method):
    trained = tiny.train(method, tiny.new_data(cohorts=ALL), aggregation=CoordinateMedian(), hostile=SignFlip())
    assert trained.reports[-1].num_updates == 4
    assert all(weight.isfinite().all() for weight in trained.net.parameters())


def test_bytes_are_those_of_fedavg(tiny):
    """A weight in the mean is a number of samples, which does not count."""
    plain, ruled = (tiny.train(FedAvg, **settings) for settings in ({}, {"aggregation": CoordinateMedian()}))
    assert [report.bytes_up for report in ruled.reports] == [report.bytes_up for report in plain.reports]


def test_a_round_with_too_few_updates_is_lost(tiny):
    """One client of three diverges: two updates are too few for a rule that needs three, and the model stays."""
    with pytest.warns(UserWarning, match="round 1 is lost: 2 clients sent a finite update, fewer than model.aggregation needs"):
        method = tiny.train_any("FedAvg", cohorts=[[0, 1, 3]], poisoned=1, aggregation=TrimmedMean(1))
    tiny.assert_same(method.net, tiny.new_net(), atol=0)


def test_too_few_updates_are_named_where_others_weigh_nothing(tiny):
    """All three are finite, but only two weigh more than 0, and the rule needs three."""

    class OneWeighsNothing(FedAvg):
        def update_weight(self, client):
            return float(client.index != 1)

    said = "round 1 is lost: 3 clients sent a finite update, some of weight 0, fewer than model.aggregation needs"
    with pytest.warns(UserWarning, match=said):
        tiny.train(OneWeighsNothing, tiny.new_data(cohorts=[[0, 1, 3]]), aggregation=TrimmedMean(1))


def test_a_cohort_of_the_method_is_too_small_for_a_rule(tiny):
    """Before round 1; clients that do not send are no help."""

    class Halved(FedAvg):
        def cohort(self, round):
            return [Visit(client, sends=client < 2) for client in self.sampled_clients(round)]

    with pytest.raises(ValueError, match=r"needs 3 clients in a round, but Halved.cohort gives 2: have more clients"):
        tiny.train(Halved, tiny.new_data(cohorts=[[0, 1, 3]]), aggregation=TrimmedMean(1))


def test_clients_that_never_send_are_no_reason_of_a_rule():
    """Two of four send, and neither is finite: without a rule none is named."""
    report = RoundReport(1, [0, 1, 2, 3], [0.0] * 4, 0, [0, 1], 0, 0, [torch.nan] * 4, lost=True)
    with pytest.warns(UserWarning, match=r"is lost: fewer than half of the clients sent a finite update \(clients 0, 1\)"):
        LostRounds().add(report, senders=[0, 1])
    weightless = RoundReport(1, [0, 1, 2], [0.0] * 3, 0, [0], 0, 0, [torch.nan, 1.0, 2.0], lost=True)
    with pytest.warns(UserWarning, match="is lost: all clients with a finite update had weight 0$"):
        LostRounds().add(weightless, senders=[0, 1, 2])
    few = RoundReport(1, [0, 1, 2], [0.0] * 3, 0, [], 0, 0, [1.0, 2.0, 0.0], lost=True)
    with pytest.warns(UserWarning, match="is lost: 2 clients sent a finite update, fewer than model.aggregation needs$"):
        LostRounds(least=3).add(few, senders=[0, 1])


class Gathers(FedAvg):
    """Its server reads a second model of each client."""

    def client_result(self, net, client):
        return {**super().client_result(net, client), "second": Gathered(dict(client.received_state))}


class ReadsEach(FedAvg):
    """Its server reads the weights of each client."""

    needs = Needs(each_upload=True)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        *(
            (
                ReadsEach,
                {key: value},
                f"model.{key} is {type(value).__name__}, but ReadsEach reads the weights that each client sends, which it does "
                "not change: use a method that needs only their mean, such as FedAvg",
            )
            for key, value in (("aggregation", CoordinateMedian()), ("hostile", SignFlip()))
        ),
        *(
            (
                method,
                {"aggregation": CoordinateMedian()},
                f"model.aggregation is CoordinateMedian, but the server of {method.__name__} also uses each client's {name}, "
                "which the rule does not protect: use a method that needs only the mean of the weights, such as "
                "FedAvg, FedProx or MOON",
            )
            for method, name in (
                (SCAFFOLD, "variate"),
                (Gathers, "second"),
                (FedDyn, "moved"),
                (FedDF, "outputs on public samples"),
            )
        ),
        *(
            (
                FedAvg,
                {"aggregation": CoordinateMedian(), "tasks": learner()},
                f"model.aggregation is CoordinateMedian, but {learner.__name__} in model.tasks also sends what it does not "
                "protect: use a learner that sends nothing of its own, such as LwF or EWC",
            )
            for learner in (ServerEWC, ICaRL)
        ),
        (FedNova, {"hostile": SignFlip()}, "model.hostile is SignFlip, but FedNova sends no weights: use LabelFlip or another"),
        *(
            (
                method,
                {"hostile": hostile},
                f"model.hostile is {type(hostile).__name__}, but {method.__name__} computes {derived} from the weights before "
                "they are attacked: use LabelFlip, or a method such as FedAvg, FedProx or MOON",
            )
            for method, hostile, derived in (
                (FedCM, SignFlip(), "direction"),
                (MoFedSAM, ALIE(), "direction"),
                (FedDyn, IPM(), "moved"),
                (FedExP, ModelReplacement(), "squared_norm"),
                (FedGMA, SignFlip(), "sign"),
                (FedVARP, SignFlip(), "before, news"),
                (FedCurv, SignFlip(), "anchor"),
                (FedDF, SignFlip(), "outputs on public samples"),
                (Flashback, ALIE(), "outputs on public samples"),
            )
        ),
        (
            FedAvg,
            {"aggregation": Krum(1)},
            "model.aggregation is Krum(hostile=1, kept=1), which needs 5 clients in a round, but data.cohorts gives 2: have "
            "more clients in a round, or lower the numbers of model.aggregation",
        ),
        (
            FedAvg,
            {"aggregation": RFA(), "privacy": UserLevelDP(1.0), "server_weighting": "uniform"},
            "model.privacy is UserLevelDP, which bounds a sum of changes, but model.aggregation is RFA(iterations=100, nu=",
        ),
        (FedAvg, {"aggregation": SignFlip()}, "model.aggregation is SignFlip(fraction=0.2, scale=1.0), must be one of"),
        (FedAvg, {"hostile": "SignFlip"}, "model.hostile is 'SignFlip', must be one of fl_lightning.robustness: such as"),
    ],
)
def test_what_does_not_combine_is_refused(tiny, method, settings, message):
    """Before round 1, by name."""
    with pytest.raises(ValueError) as error:
        tiny.train(method, tiny.new_data(public_size=20 if method in (FedDF, Flashback) else 0), norm=False, **settings)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
