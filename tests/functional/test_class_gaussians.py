"""Moments of classes against numpy over all features at once, and features drawn from them."""

import numpy as np
import torch

from fl_lightning.functional.class_gaussians import class_moments, draw_features, pooled_moments
from fl_lightning.functional.random_streams import torch_stream

CLASSES, WIDTH = 5, 3


def features_of_clients():
    """Four clients: one with a single sample of class 3, one with none at all; class 4 is nowhere."""
    draws = np.random.Generator(np.random.Philox(7))
    labels = [[0, 1, 2, 0, 1, 2, 2], [1, 1, 1, 0], [3, 0, 2], []]
    return [(1000 + draws.normal(size=(len(part), WIDTH)) * [1, 10, 0.1], np.array(part, dtype=int)) for part in labels]


def moments(parts):
    return [class_moments(torch.tensor(rows), torch.tensor(targets), CLASSES) for rows, targets in parts]


def test_pooled_moments_are_those_of_all_features_at_once():
    """numpy.mean and numpy.cov over the features of all clients, in any order of the clients."""
    parts = features_of_clients()
    rows, targets = np.concatenate([part for part, _ in parts]), np.concatenate([part for _, part in parts])
    for order in (moments(parts), moments(parts)[::-1]):
        counts, means, covariances = pooled_moments(order)
        assert counts.tolist() == np.bincount(targets, minlength=CLASSES).tolist() == [4, 5, 4, 1, 0]
        for label in range(3):
            held = rows[targets == label]
            np.testing.assert_allclose(means[label], held.mean(axis=0), rtol=1e-13)
            np.testing.assert_allclose(covariances[label], np.cov(held.T), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(means[3], rows[targets == 3][0], rtol=1e-13)
        assert covariances[3:].count_nonzero() == means[4].count_nonzero() == 0


def test_pooled_moments_are_equations_3_and_4():
    """As printed: weighted means, and products of means taken off; of features near 0, where nothing cancels."""
    parts = [(rows - 1000, targets) for rows, targets in features_of_clients()]
    sent, pooled = moments(parts), pooled_moments(moments(parts))
    for label in range(3):
        held = [(int(part.counts[label]), part.means[label].numpy(), part.covariances[label].numpy()) for part in sent]
        total = sum(count for count, _, _ in held)
        mean = sum(count / total * mu for count, mu, _ in held)
        covariance = sum((count - 1) / (total - 1) * cov for count, _, cov in held if count > 0)
        covariance = covariance + sum(count / (total - 1) * np.outer(mu, mu) for count, mu, _ in held)
        covariance = covariance - total / (total - 1) * np.outer(mean, mean)
        np.testing.assert_allclose(pooled.means[label], mean, rtol=1e-12)
        np.testing.assert_allclose(pooled.covariances[label], covariance, rtol=1e-12, atol=1e-13)


def test_drawn_features_have_the_moments():
    """Of 200,000 draws, to five standard errors; a class with one sample gives that sample, one without gives none."""
    pooled, count = pooled_moments(moments(features_of_clients())), 200_000
    features, targets = draw_features(pooled, count, torch_stream(3, -1, -1, "test"))
    assert targets.bincount().tolist() == [count] * 4
    for label in range(3):
        rows, deviations = features[targets == label], pooled.covariances[label].diagonal().sqrt()
        bound = 5 * deviations / count**0.5
        assert ((rows.mean(dim=0) - pooled.means[label]).abs() < bound).all()
        errors = (torch.cov(rows.T) - pooled.covariances[label]).abs()
        assert (errors < 5 * 1.5 * torch.outer(deviations, deviations) / count**0.5).all()
    assert torch.equal(features[targets == 3], pooled.means[3].expand(count, -1))


def test_draws_have_an_address():
    """The same stream gives the same features, another seed others."""
    pooled = pooled_moments(moments(features_of_clients()))
    first, same, other = (draw_features(pooled, 5, torch_stream(seed, -1, -1, "test"))[0] for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
