"""APFL against its equations in a plain loop."""

import copy
import math

import pytest
import torch
from declared_by_tests import Cost

from fl_lightning import APFL, FedAvg

COSTS = {"APFL": Cost(client=(1, 0, 4), server=(1, 0, 0))}


def mixed(v, w, share):
    """A copy of v whose weights are ``share v + (1 - share) w``."""
    mixture = copy.deepcopy(v)
    with torch.no_grad():
        for m, a, b in zip(mixture.parameters(), v.parameters(), w.parameters()):
            m.copy_(share * a + (1 - share) * b)
    return mixture


def bounded(gradients, clip):
    """Scaled to a norm of at most ``clip``."""
    norm = float(sum((gradient**2).sum() for gradient in gradients)) ** 0.5
    return [gradient * min(1.0, clip / (norm + 1e-6)) for gradient in gradients]


def visit(tiny, net, personal, share, client, round, share_steps, clip=math.inf):
    """A client's copy w of ``net``, its personal net v, whose buffers are the mixture's, and its share after a visit."""
    w, v, rate = copy.deepcopy(net).train(), copy.deepcopy(personal).train(), tiny.rate(round)
    optimizer = tiny.optimizer(w.parameters())
    optimizer.param_groups[0]["lr"] = rate
    for step, (inputs, targets) in enumerate(tiny.batches(client, round)):
        mixture = mixed(v, w, share)
        at_mixture = torch.autograd.grad(tiny.losses(mixture(inputs), targets, client).mean(), list(mixture.parameters()))
        at_w = torch.autograd.grad(tiny.losses(w(inputs), targets, client).mean(), list(w.parameters()))
        at_mixture, at_w = bounded(at_mixture, clip), bounded(at_w, clip)
        slope = sum(((a - b).detach() * g).sum() for a, b, g in zip(v.parameters(), w.parameters(), at_mixture))
        with torch.no_grad():
            for a, g in zip(v.parameters(), at_mixture):
                a -= rate * share * g
            for a, m in zip(v.buffers(), mixture.buffers()):
                a.copy_(m)
        if share_steps == "step" or step == 0:
            share = float((share - rate * slope).clamp(0, 1))
        for weight, gradient in zip(w.parameters(), at_w):
            weight.grad = gradient
        optimizer.step()
    return w, v, share


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam tce"], indirect=True)
@pytest.mark.parametrize(("share_steps", "clip"), [("visit", None), ("step", None), ("step", 0.4)])
def test_rounds_follow_algorithm_1(tiny, share_steps, clip):
    """Three rounds: global model, personal weights, the mixture's running statistics, and shares; both gradients clipped."""
    method = tiny.train(APFL, share=0.6, share_steps=share_steps, clip_local_gradients=clip)
    net, personal, shares = tiny.new_net(), {}, {}
    for round, cohort in tiny.rounds:
        locals = {}
        for client in cohort:
            start, share = personal.get(client, tiny.new_net()), shares.get(client, 0.6)
            after = visit(tiny, net, start, share, client, round, share_steps, clip or math.inf)
            locals[client], personal[client], shares[client] = after
        net.load_state_dict(tiny.mean(locals))
    tiny.assert_same(method.net, net)
    shares = {client: torch.tensor(share, dtype=torch.float64) for client, share in shares.items()}
    tiny.assert_states(method, {k: {"model": v.state_dict(), "share": shares[k]} for k, v in personal.items()})
    assert shares[1] != 0.6
    tiny.assert_personal(method, 1, mixed(personal[1], net, shares[1]))
    tiny.assert_personal(method, 4, mixed(tiny.new_net(), net, 0.6))  # never took part: v and the share are those of the start


def test_with_share_0_clients_use_the_global_weights(tiny):
    """And personal models stay where they began; the global model is FedAvg's whatever the share is."""
    method, expected = tiny.train(APFL, share=0.0, share_steps="never"), tiny.train(FedAvg)
    tiny.assert_same(method.net, expected.net)
    start = dict(tiny.new_net().named_parameters())
    kept = method.stored.states.read(1).method["model"]
    tiny.assert_same({name: kept[name] for name in start}, start, atol=0)


def test_a_part_that_clients_keep_is_mixed_too(tiny):
    """With share 0 a client uses its own head on the global body, as in FedAvg with a personal head; else half of each."""
    net, heads = tiny.rounds_with_personal_parts(lambda name: name.startswith("classifier"))
    of_global, of_both = (
        tiny.train(APFL, share=share, share_steps="never", personal=("classifier.*",)) for share in (0.0, 0.5)
    )
    for client, head in heads.items():
        w, v = tiny.new_net(), tiny.new_net()
        w.load_state_dict({**net.state_dict(), **head})
        v.load_state_dict(of_both.stored.states.read(client).method["model"])
        tiny.assert_personal(of_both, client, mixed(v, w, 0.5))
        statistics = of_global.stored.states.read(client).method["model"]
        w.load_state_dict({**w.state_dict(), **{name: statistics[name] for name, _ in w.named_buffers()}})
        tiny.assert_personal(of_global, client, w)


def test_with_share_1_clients_train_alone(tiny):
    """Plain visits, one after another, from the initial net."""
    method, personal = tiny.train(APFL, share=1.0, share_steps="never"), {}
    for round, cohort in tiny.rounds:
        for client in cohort:
            personal[client] = tiny.visit(personal.get(client, tiny.new_net()), client, round)
    for client, net in personal.items():
        tiny.assert_personal(method, client, net)


def test_arguments_out_of_range_are_refused(tiny):
    with pytest.raises(ValueError, match="model.share is 1.5, must be between 0 and 1"):
        APFL(tiny.new_net(), share=1.5)
    with pytest.raises(ValueError, match="model.share_steps is 'always', must be one of visit, step, never"):
        APFL(tiny.new_net(), share_steps="always")
