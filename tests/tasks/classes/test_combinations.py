"""All methods on classes that arrive: every engine, several processes, resumed runs and clients that are not finite."""

import pytest
import torch
from class_names import embeddings_of
from pairs import Pair, paired

from fl_lightning.functional.random_streams import torch_stream
from fl_lightning.methods import SCAFFOLD, FedACG, FedCurv, FedProx
from fl_lightning.protocol import predict_in_batches
from fl_lightning.tasks import (
    GLFC,
    LANDER,
    MFCL,
    TARGET,
    ClassLearner,
    ICaRL,
    LwF,
    Replay,
    ServerEWC,
)

SYNTHESIS = {"warm_up": 1, "kept_rounds": 1, "synthesis_batch": 4, "generated": 3, "student_steps": 2, "student_rate": 0.01}
METHODS = {
    ClassLearner: {},
    Pair(FedProx, ClassLearner): {"mu": 0.3},
    Pair(SCAFFOLD, ClassLearner): {},
    Pair(FedCurv, ClassLearner): {"penalty": 0.5},
    LwF: {},
    Replay: {"memory": 8},
    ServerEWC: {},
    ICaRL: {"memory": 8},
    GLFC: {"memory": 8},
    MFCL: {"generator_steps": 2, "generator_batch": 4, "generated": 2, "noise": 3},
    TARGET: SYNTHESIS,
    LANDER: {**SYNTHESIS, "embeddings": embeddings_of("abcdef"), "generator_steps": 3},
    Pair(FedACG, LwF): {"mu": 0.3},
}
methods = pytest.mark.parametrize(
    "method",
    [pytest.param(method, marks=pytest.mark.slow if method is GLFC else ()) for method in METHODS],  # its parts are ICaRL's
    ids=lambda method: str(paired(method)),
)


@methods
@pytest.mark.one_in(3)
def test_engines_agree(arriving, method):
    one, many = (arriving.train(method, engine=engine, **METHODS[method]) for engine in ("sequential", "vectorized"))
    arriving.assert_same(many.net, one.net, atol=1e-10)


@methods
@pytest.mark.one_in(3)
def test_resumed_runs_end_as_those_that_were_never_stopped(arriving, method, tmp_path):
    """In the midst of a task, and between two: bit for bit."""
    whole = arriving.train(method, arriving.new_data(cohorts=arriving.cohorts), checkpoints=tmp_path, **METHODS[method])
    for rounds in (3, 4):
        data, ckpt_path = arriving.new_data(cohorts=arriving.cohorts), tmp_path / f"step={rounds}.ckpt"
        resumed = arriving.train(method, data, ckpt_path=ckpt_path, **METHODS[method])
        state, expected = resumed.state_dict(), whole.state_dict()
        assert state.keys() == expected.keys()
        assert [name for name, tensor in expected.items() if not torch.equal(state[name], tensor)] == []


@methods
@pytest.mark.one_in(3)
def test_a_client_that_is_not_finite_is_left_out(arriving, method):
    """Its shard might as well not have been: the others go on as if it took no part."""
    poisoned = arriving.train(method, poisoned=1, **METHODS[method])
    healthy = arriving.train(method, arriving.new_data(cohorts=[[0, 2]] * 6), **METHODS[method])
    assert all(report.nonfinite == [1] for report in poisoned.seen.rounds)
    arriving.assert_same(poisoned.net, healthy.net, atol=1e-12)


@pytest.mark.slow
@methods
def test_two_processes_are_one(arriving, method, tmp_path):
    arriving.train(method, rounds=5, num_processes=2, checkpoints=tmp_path, **METHODS[method])
    one = arriving.train(method, rounds=5, **METHODS[method])
    state = torch.load(tmp_path / "step=5.ckpt", weights_only=True)["state_dict"]
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(state[name], tensor, atol=1e-9, rtol=0, msg=name)


@methods
@pytest.mark.one_in(3)
def test_a_checkpoint_is_a_net_for_use_elsewhere(arriving, method, tmp_path):
    """Without data, and silent on classes that it has not seen."""
    trained = arriving.train(method, rounds=4, checkpoints=tmp_path, **METHODS[method])
    pair = paired(method)
    arguments = pair.arguments(METHODS[method])
    loaded = pair.method.load_from_checkpoint(tmp_path / "step=4.ckpt", net=arriving.new_net(), **arguments)
    inputs = torch.randn(3, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits = loaded.net(inputs)
    expected = predict_in_batches(trained.net, trained.data.eval_batch_size, inputs)
    torch.testing.assert_close(logits, expected, atol=1e-12, rtol=0)
    assert logits.isfinite().all(dim=0).tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize(("learner", "kept"), [(LwF, "teacher"), (ServerEWC, "task_anchor")])
def test_what_is_kept_of_a_task_is_the_global_model_at_its_end(arriving, learner, kept):
    """Not the point ahead of it from which FedACG's clients start the next task; bit for bit."""
    trained = arriving.train(Pair(FedACG, learner), rounds=3)
    end, held = trained.seen.weights[1], trained.server_states.tensors(kept)
    assert {name: held[name].tolist() for name in end} == {name: weight.tolist() for name, weight in end.items()}


@pytest.mark.parametrize(("learner", "kinds"), [(LwF, ["teacher"]), (MFCL, ["teacher"]), (LANDER, ["teacher", "best_model"])])
def test_what_is_kept_of_a_task_lacks_frozen_weights(arriving, learner, kinds):
    """Clients have them, under each engine."""
    nets = [arriving.new_net(), arriving.new_net()]
    for net in nets:
        net.features[0].requires_grad_(False)
    engines = zip(nets, ("sequential", "vectorized"), strict=True)
    one, many = (arriving.train(learner, net=net, engine=engine, **METHODS[learner]) for net, engine in engines)
    arriving.assert_same(many.net, one.net, atol=1e-10)
    for kind in kinds:
        kept = one.server_states.tensors(kind).keys()
        assert kept == {name for name in one.net.state_dict() if not name.startswith("features.0.")}


def test_rows_drawn_for_a_task_outlast_a_lost_round(arriving):
    """Client 1 has infinite samples and the first round of task 2 to itself: FedACG steps back to the drawn rows."""
    data = arriving.new_data(cohorts=[[0, 1, 2], [0, 1, 2], [1]])
    trained = arriving.train(Pair(FedACG, ClassLearner), data, rounds=3, poisoned=1)
    assert trained.seen.rounds[2].lost
    _, before, after = trained.seen.weights
    drawn = torch.rand(2, 3, generator=torch_stream(0, 1, -1, "rows of the head"), dtype=torch.float64)
    before["classifier.weight"][2:4], before["classifier.bias"][2:4] = (2 * drawn - 1) / 3**0.5, 0.0
    arriving.assert_same(after, before, atol=1e-15)


class Broken(torch.optim.SGD):
    """Whose every step is undone."""

    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            weight.data.fill_(float("nan"))


@methods
@pytest.mark.one_in(3)
def test_a_round_that_is_undone_counts(arriving, method):
    """The clock ticks on, and the task ends in its round."""
    with pytest.warns(UserWarning, match="and was undone"):
        trained = arriving.train(method, server_optimizer=lambda weights: Broken(weights, lr=1.0), **METHODS[method])
    assert (trained.tasks.task, trained.tasks.is_over) == (2, True)
    assert all(weight.isfinite().all() for weight in trained.net.parameters())
