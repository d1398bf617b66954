"""Replay against a plain loop that keeps its memories itself, and what is remembered."""

import numpy as np
import pytest
import torch
from torch import nn

from fl_lightning.data import IID
from fl_lightning.functional.random_streams import numpy_stream, stream_seed
from fl_lightning.tasks import GLFC, MFCL, ClassLearner, ClassStream, ICaRL, Replay

MEMORY, REPLAYED = 8, 3  # of 7 in a batch


def test_all_tasks_equal_a_plain_loop(arriving, splitmix64):
    """The mean over a batch and three remembered samples, cross entropy among all classes seen."""
    data = arriving.ready_data()
    inputs, labels = data.samples.preparation.for_evaluation(data.train_set.inputs), data.train_set.targets
    memories, met = {}, {}

    def objective(visit, weights, batch, targets):
        if visit.position > 0:
            memory, key = memories[visit.client], stream_seed(0, visit.round, visit.client, "samples remembered")
            positions = [(splitmix64(key, visit.step * REPLAYED + i) >> 1) % len(memory) for i in range(REPLAYED)]
            chosen = [memory[position] for position in positions]
            batch, targets = torch.cat([batch, inputs[chosen]]), torch.cat([targets, labels[chosen]])
        return arriving.seen_loss(visit, weights, batch, targets)

    def after_fit(visit, weights):
        if not visit.is_last_round:
            return
        held = data.present_shards.train_indices(visit.client)
        rng = numpy_stream(0, visit.position, visit.client, "what is remembered")
        memory = memories.setdefault(visit.client, [])
        for index in held[rng.permutation(len(held))].tolist():
            k = met.get(visit.client, 0)
            if k < MEMORY:
                memory.append(index)
            else:
                slot = int(rng.integers(0, k + 1))
                if slot < MEMORY:
                    memory[slot] = index
            met[visit.client] = k + 1

    expected = arriving.plain(objective, data, after_fit=after_fit)
    trained = arriving.train(Replay, memory=MEMORY)
    arriving.assert_same(trained.net, expected)
    for client in range(3):
        assert trained.stored.states.read(client).method["tasks"]["memory"].tolist() == memories[client]


@pytest.mark.parametrize("learner", [Replay, ICaRL, GLFC, MFCL])
def test_dropout_of_remembered_samples_does_not_depend_on_padding(arriving, learner):
    """In a padded batch they would be in other rows, with other masks."""

    def dropping():
        net = arriving.new_net()
        net.features.append(nn.Dropout(0.3))
        return net

    settings = {} if learner is MFCL else {"memory": MEMORY}

    def trained(engine):
        data = arriving.new_data(partition=IID(), batch_size=None)  # of each task 17, 17 and 16 samples
        return arriving.train(learner, data, dropping(), engine=engine, **settings)

    one, other = trained("sequential"), trained("vectorized")
    arriving.assert_same(other.net, one.net)
    assert not torch.equal(one.net.classifier.weight, arriving.train(learner, **settings).net.classifier.weight)


def test_without_memory_it_is_fine_tuning(arriving):
    """Bit for bit; and nothing more is sent with one."""
    plain = arriving.train(ClassLearner, softmax_over="seen")
    arriving.assert_same(arriving.train(Replay, memory=0).net, plain.net, atol=0)
    full = arriving.train(Replay, memory=MEMORY)
    for kind in ("bytes_down", "bytes_up"):
        assert [getattr(r, kind) for r in full.seen.rounds] == [getattr(r, kind) for r in plain.seen.rounds]


@pytest.mark.parametrize("selection", ["balanced", "herding"])
def test_memories_are_balanced(arriving, selection):
    """m divided by the classes met, of each the first ones of what there was before."""
    data = arriving.ready_data()
    after = [
        arriving.train(Replay, memory=6, selection=selection, rounds=rounds).stored.states for rounds in (2, 4, 6)
    ]  # fmt: skip
    for client in range(3):
        memories = [states.read(client).method["tasks"]["memory"].tolist() for states in after]
        former = {}
        for position, memory in enumerate(memories):
            by_class = {}
            for index in memory:
                by_class.setdefault(int(data.train_set.targets[index]), []).append(index)
            rows = [client * 3 + seen for seen in range(position + 1)]
            met = data.shards.train_label_counts[rows].sum(dim=0)
            quota = 6 // int((met > 0).sum())
            assert {label: len(kept) for label, kept in by_class.items()} == {
                label: min(quota, int(count)) for label, count in enumerate(met) if count > 0
            }
            for label, kept in former.items():
                assert by_class[label] == kept[: len(by_class[label])]
            former = by_class


def test_a_client_remembers_at_its_last_visit_of_a_task(arriving):
    """Client 2 takes part in round 1 of task 0 alone; client 0 not in the last round of task 2."""
    data = arriving.new_data(cohorts=arriving.cohorts)
    trained = arriving.train(Replay, data, memory=MEMORY)
    for client in range(3):
        met = data.shards.train_label_counts[3 * client : 3 * client + 3].sum(dim=0)
        assert torch.equal(trained.stored.states.read(client).method["tasks"]["met"], met)


def test_a_client_that_has_chosen_is_not_visited_again(arriving, tmp_path):
    """Client 2 has its last visit of the first task in round 1; in round 2, on resume, it would offer its samples twice."""
    arriving.train(Replay, arriving.new_data(cohorts=arriving.cohorts[:2]), rounds=1, memory=MEMORY, checkpoints=tmp_path)
    again = arriving.new_data(cohorts=[[0, 1, 2]] * 3)
    with pytest.raises(ValueError, match=r"^data.cohorts names client 2 in round 2, but .* name it from its next task on"):
        arriving.train(Replay, again, rounds=3, memory=MEMORY, ckpt_path=tmp_path / "step=1.ckpt")


def herded(arriving, trained) -> list[list[int]]:
    """Each client's memory by a loop over tasks of two rounds, classes and choices."""
    data, memories = trained.data, []
    inputs, labels = data.samples.preparation.for_evaluation(data.train_set.inputs), data.train_set.targets
    for client in range(3):
        memory, met = {}, {}
        for position in range(3):
            weights = trained.seen.weights[2 * position]  # received in the second round
            row = data.shards.train_indices(3 * client + position).tolist()
            new = {c: [i for i in row if labels[i] == c and i not in met.get(c, [])] for c in labels[row].unique().tolist()}
            quota = MEMORY // len({*met, *new})
            memory = {c: kept[:quota] if not new.get(c) else kept for c, kept in memory.items()}
            for c in (c for c in new if new[c]):
                before, unit, chosen = len(met.get(c, [])), {}, []
                num_old = min(max(round(quota * before / (before + len(new[c]))), quota - len(new[c])), len(memory.get(c, [])))
                for i in sorted(new[c]):
                    feature = arriving.features(weights, inputs[i : i + 1])[0]
                    unit[i] = feature / feature.norm()
                mean = sum(unit.values()) / len(unit)
                for k in range(1, min(quota - num_old, len(unit)) + 1):
                    gaps = {i: (mean - (sum(unit[j] for j in chosen) + unit[i]) / k).norm() for i in unit if i not in chosen}
                    chosen.append(min(gaps, key=lambda i: round(float(gaps[i]), 12)))  # features on one axis are equally near
                places = [((k + 0.5) / num_old, i) for k, i in enumerate(memory.get(c, [])[:num_old])]
                places += [((k + 0.5) / len(chosen), i) for k, i in enumerate(chosen)]
                memory[c] = [i for _, i in sorted(places)]
                met[c] = met.get(c, []) + new[c]
        memories.append([i for c in sorted(memory) for i in memory[c]])
    return memories


def kept_by(trained) -> list[list[int]]:
    return [trained.stored.states.read(client).method["tasks"]["memory"].tolist() for client in range(3)]


STREAMS = {
    "domains": None,
    "blurry": ClassStream(num_tasks=3, blurry=0.3),
    "cumulative": ClassStream(num_tasks=3, cumulative=True),
}


def again(arriving, stream, method=Replay, selection="herding", **settings):
    """Replay on a stream whose later tasks have samples of earlier classes."""
    if method is Replay:
        settings |= {"selection": selection}
    data = arriving.domains(3) if stream == "domains" else arriving.new_data(STREAMS[stream])
    net = arriving.new_net(2 if stream == "domains" else 6)
    return arriving.train(method, data, net, memory=MEMORY, softmax_over="seen", **settings)


@pytest.mark.parametrize("method", [Replay, ICaRL, GLFC])
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.one_in(3)
def test_herding_takes_later_samples_of_a_class(arriving, stream, method):
    """As many of the earlier and the later ones as there were; the later ones herded to their mean."""
    trained = again(arriving, stream, method)
    assert kept_by(trained) == herded(arriving, trained)


@pytest.mark.parametrize("selection", ["reservoir", "balanced", "herding"])
def test_every_domain_is_remembered(arriving, selection):
    """Four samples of each of two classes, of three domains, at each of three clients; each sample once."""
    trained = again(arriving, "domains", selection=selection)
    assert {len(set(kept)) for kept in kept_by(trained)} == {MEMORY}
    rows = {i: row % 3 for row in range(9) for i in trained.data.shards.train_indices(row).tolist()}
    counts = torch.tensor([rows[i] for kept in kept_by(trained) for i in kept]).bincount(minlength=3)
    assert counts.min() >= 3


@pytest.mark.parametrize("selection", ["balanced", "herding"])
def test_a_blurry_border_fills_every_quota(arriving, selection):
    """Of each class 30 by the classes that a client has met, or all that it has met of it, in whichever task they came."""
    stream = ClassStream(num_tasks=3, blurry=0.1)
    trained = arriving.train(Replay, arriving.new_data(stream), memory=30, selection=selection)
    targets, met = trained.data.train_set.targets, trained.data.shards.train_label_counts.reshape(3, 3, 6).sum(dim=1)
    counts = torch.stack([targets[kept].bincount(minlength=6) for kept in kept_by(trained)])
    quotas = 30 // (met > 0).sum(dim=1, keepdim=True)
    assert torch.equal(counts, met.minimum(quotas))
    assert (met < quotas).any()
    assert (met > quotas).any()


@pytest.mark.parametrize("selection", ["reservoir", "balanced", "herding"])
def test_where_a_client_keeps_its_samples_each_is_offered_once(arriving, selection):
    trained = again(arriving, "cumulative", selection=selection)
    for client, kept in enumerate(kept_by(trained)):
        assert len(set(kept)) == len(kept)
        met = trained.data.shards.train_label_counts[3 * client + 2]  # the last row has all
        assert torch.equal(trained.stored.states.read(client).method["tasks"]["met"], met)


def test_balanced_memories_are_uniform_samples_of_each_class(arriving):
    """Of four samples, then five, then none while the quota shrinks from three to one: each of nine as often."""
    trained = arriving.train(Replay, memory=6, selection="balanced", rounds=1)
    trained.tasks.memory, trained.data.class_streams.dataset.train.targets[:] = 3, torch.arange(150) // 9
    rng, counts, runs = np.random.default_rng(0), np.zeros(9), 3000
    for _ in range(runs):
        first = trained.tasks._balanced([], [0] * 6, rng.permutation(4).tolist(), None, rng)
        second = trained.tasks._balanced(first, [4] + [0] * 5, rng.permutation([4, 5, 6, 7, 8]).tolist(), None, rng)
        assert len(set(second)) == 3
        third = trained.tasks._balanced(second, [9] + [0] * 5, [9, 18], None, rng)
        assert third[1:] == [9, 18]
        counts[third[0]] += 1
    assert np.abs(counts / runs - 1 / 9).max() < 5 * (8 / 81 / runs) ** 0.5


@pytest.mark.parametrize("selection", ["balanced", "herding"])
@pytest.mark.parametrize("stream", ["domains", "blurry"])
@pytest.mark.one_in(2)
def test_memories_do_not_depend_on_how_a_run_is_run(arriving, stream, selection, tmp_path):
    """Side by side, and in two parts: in the midst of a task, and between two."""
    one = again(arriving, stream, selection=selection, checkpoints=tmp_path)
    assert kept_by(again(arriving, stream, selection=selection, engine="vectorized")) == kept_by(one)
    for rounds in (3, 4):
        resumed = again(arriving, stream, selection=selection, ckpt_path=tmp_path / f"step={rounds}.ckpt")
        assert kept_by(resumed) == kept_by(one)
        arriving.assert_same(resumed.net, one.net, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["domains", "blurry"])
def test_two_processes_are_one(arriving, stream, tmp_path):
    """Weights depend on what is remembered, and so do class means."""
    again(arriving, stream, ICaRL, num_processes=2, checkpoints=tmp_path)
    one = again(arriving, stream, ICaRL)
    state = torch.load(tmp_path / "step=6.ckpt", weights_only=True)["state_dict"]
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(state[name], tensor, atol=1e-9, rtol=0, msg=name)


def test_a_last_visit_that_is_not_finite_leaves_the_memory_as_it_was(arriving):
    """Client 1's samples of the second task are infinite: it remembers those of the first and the third."""
    data = arriving.new_data()
    data.setup()
    data.train_set.inputs[data.shards.train_indices(4)] = float("inf")
    trained = arriving.train(Replay, data, memory=MEMORY)
    met = data.shards.train_label_counts[[3, 5]].sum(dim=0)
    assert torch.equal(trained.stored.states.read(1).method["tasks"]["met"], met)


def test_a_memory_smaller_than_the_classes_that_a_client_meets_is_refused(arriving):
    """Six classes; a reservoir can have any size."""
    for method, settings in ((Replay, {"selection": "balanced"}), (ICaRL, {}), (GLFC, {})):
        with pytest.raises(ValueError) as error:
            arriving.train(method, memory=5, **settings)
        assert str(error.value) == (
            "model.tasks.memory is 5, which is divided by the classes that a client meets, up to 6: set it to 6 or more, or to "
            "0 for fine-tuning"
        )
        arriving.train(method, memory=6, rounds=1, **settings)
    arriving.train(Replay, memory=1)


def test_settings_that_do_not_fit_are_refused(arriving):
    most = int(arriving.ready_data().shards.train_label_counts.sum(dim=1).reshape(3, 3).sum(dim=1).max())
    for settings, message in (
        ({"memory": -1}, "model.tasks.memory is -1, must be at least 0: 0 is fine-tuning"),
        ({"memory": 1000}, f"model.tasks.memory is 1000, but no client has more than {most} training samples: lower it"),
        ({"replayed": 0}, "model.tasks.replayed is 0, must be at least 1: null is half of data.batch_size"),
        ({"selection": "best"}, "model.tasks.selection is 'best', must be one of reservoir, balanced, herding"),
        (
            {"softmax_over": "new"},
            "model.tasks.softmax_over is new, but remembered samples are of old classes: set it to seen",
        ),
    ):
        with pytest.raises(ValueError) as error:
            arriving.train(Replay, **{"memory": 5, **settings})
        assert str(error.value) == message
