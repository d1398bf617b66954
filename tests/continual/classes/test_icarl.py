"""ICaRL: its parts are those of replay and distillation; here are its class means."""

import torch

from fl_lightning.continual import ICaRL, Replay


def test_class_means_are_those_of_all_memories(arriving):
    """Features of unit length under the model before the last round, summed over the clients one sample after another."""
    trained = arriving.train(ICaRL, memory=12)
    before = trained.seen.weights[-2]
    data = arriving.ready_data()
    inputs, labels = data.samples.preparation.for_evaluation(data.train_set.inputs), data.train_set.targets
    total, count = torch.zeros(6, 3, dtype=torch.float64), torch.zeros(6)
    for client in range(3):
        for index in trained.client_states.read(client).method["memory"].tolist():
            feature = arriving.features(before, inputs[index : index + 1])[0]
            total[labels[index]] += feature / feature.norm()
            count[labels[index]] += 1
    assert (count > 0).all()
    mean = total / total.norm(dim=1, keepdim=True)
    torch.testing.assert_close(trained.server_state("class_means")["mean"], mean, atol=1e-9, rtol=0)
    tests = trained.data.evaluation.test_inputs()
    features = arriving.features(dict(trained.net.named_parameters()), torch.cat([*tests.split(100)]))
    features = features / features.norm(dim=1, keepdim=True)
    nearest = [int(torch.stack([(feature - m).norm() for m in mean]).argmin()) for feature in features]
    assert trained.nearest_mean_logits(tests).argmax(dim=1).tolist() == nearest


def test_without_distillation_it_is_replay_by_herding(arriving):
    """Bit for bit."""
    plain = arriving.train(Replay, memory=12, selection="herding")
    arriving.assert_same(arriving.train(ICaRL, memory=12, distillation=0.0).net, plain.net, atol=0)


def test_classes_without_a_mean_are_never_nearest(arriving):
    trained = arriving.train(ICaRL, memory=12, rounds=2)
    logits = trained.nearest_mean_logits(trained.data.evaluation.test_inputs())
    assert logits.isfinite().all(dim=0).tolist() == [True, True, False, False, False, False]
