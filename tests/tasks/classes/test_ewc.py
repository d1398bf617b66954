"""ServerEWC against a sum of Fisher information of samples, one after another."""

import pytest
import torch

from fl_lightning.tasks import ClassLearner, ClassStream, ServerEWC

PENALTY = 20.0


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_all_tasks_equal_the_equation(arriving, gamma):
    """``CE_new + lambda/2 sum_i F_i (w_i - theta_i)^2``; F = 0 for rows of the head that are new."""
    data, held, newest, anchor = arriving.ready_data(), {}, {}, {}

    def padded(value, like):
        return (
            torch.cat([value, value.new_zeros(len(like) - len(value), *value.shape[1:])]) if len(value) < len(like) else value
        )

    def objective(visit, weights, inputs, targets):
        terms = [
            (padded(held[name], weight) * (weight - padded(anchor[name], weight)) ** 2).sum()
            for name, weight in weights.items()
            if visit.position > 0
        ]
        return arriving.new_loss(visit, weights, inputs, targets) + PENALTY / 2 * sum(terms)

    def after_fit(visit, weights):
        if not visit.is_last_round:
            return
        (batch,) = data.client_batches().client_samples(visit.client)
        leaves = {name: weight.detach().requires_grad_() for name, weight in visit.received.items()}
        total = {name: torch.zeros_like(weight) for name, weight in leaves.items()}
        for i in range(len(batch.targets)):
            loss = arriving.new_loss(visit, leaves, batch.inputs[i : i + 1], batch.targets[i : i + 1])
            for name, gradient in zip(total, torch.autograd.grad(loss, list(leaves.values()))):
                total[name] += gradient**2 / len(batch.targets)
        newest[visit.client] = (len(batch.targets), total)

    def after_task(visit, weights):
        size = sum(count for count, _ in newest.values())
        for name, weight in weights.items():
            mean = sum(count * fisher[name] for count, fisher in newest.values()) / size
            held[name] = gamma * padded(held[name], weight) + mean if visit.position > 0 else mean
        anchor.update(weights)

    expected = arriving.plain(objective, data, after_task, after_fit)
    trained = arriving.train(ServerEWC, penalty=PENALTY, gamma=gamma)
    arriving.assert_same(trained.net, expected)
    free = arriving.train(ClassLearner)
    assert (trained.net.features[3].weight - free.net.features[3].weight).abs().max() > 1e-4


def test_without_a_penalty_it_is_fine_tuning(arriving):
    """Bit for bit."""
    arriving.assert_same(arriving.train(ServerEWC, penalty=0.0).net, arriving.train(ClassLearner).net, atol=0)


def test_rows_that_blurry_borders_bring_early_are_free(arriving):
    """Clients measure them, but new ones are drawn when their task begins."""
    trained = arriving.train(ServerEWC, arriving.new_data(ClassStream(num_tasks=3, blurry=0.3)), rounds=5)
    fisher = trained.server_states.tensors("task_fisher")
    for name in arriving.head:
        assert fisher[name].reshape(6, -1).any(dim=1).tolist() == [True] * 4 + [False] * 2


def test_what_is_sent(arriving):
    """The information goes up once a task; it and the anchor come down from the second task on."""
    free, held = arriving.train(ClassLearner).seen.rounds, arriving.train(ServerEWC).seen.rounds
    weights = 8 * sum(weight.numel() for weight in arriving.new_net().parameters()) * 3
    assert [b.bytes_up - a.bytes_up for a, b in zip(free, held)] == [0, weights] * 3
    assert [b.bytes_down - a.bytes_down for a, b in zip(free, held)] == [0, 0] + [2 * weights] * 4


def test_settings_out_of_range_are_refused(arriving):
    with pytest.raises(ValueError, match=r"^model.tasks.penalty is -1.0, must be at least 0: 0 is fine-tuning$"):
        ServerEWC(penalty=-1.0)
    with pytest.raises(ValueError, match=r"^model.tasks.gamma is 2.0, must be between 0 and 1: 1 is the sum over tasks$"):
        ServerEWC(gamma=2.0)
