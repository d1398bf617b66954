"""scikit-learn's digits against scikit-learn."""

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from fl_lightning.data import Digits


def test_digits_are_scikit_learns():
    """1,797 images 8x8 of 0 to 16, stretched to 0 to 255 and rounded; both parts together are all, with their labels."""
    dataset = Digits().load(Path("nowhere"))
    images, labels = load_digits(return_X_y=True)
    expected = sorted((np.rint(image / 16 * 255).astype(np.uint8).tobytes(), label) for image, label in zip(images, labels))
    parts = (dataset.train, dataset.test)
    actual = [(x.numpy().tobytes(), int(y)) for part in parts for x, y in zip(part.inputs, part.targets)]
    assert sorted(actual) == expected
    assert dataset.train.inputs.shape[1:] == (1, 8, 8)
    assert dataset.train.inputs.dtype == torch.uint8
    assert dataset.classes == tuple("0123456789")


def test_a_fifth_of_each_digit_is_test():
    """1,797 / 5 = 359.4: 360 for test; of each class a fifth, to one sample; the same ones every time."""
    dataset, again = Digits().load(Path()), Digits().load(Path())
    assert (len(dataset.train), len(dataset.test)) == (1437, 360)
    total = np.bincount(load_digits().target)
    assert abs(dataset.test.targets.bincount().numpy() - total / 5).max() <= 1
    assert torch.equal(dataset.test.inputs, again.test.inputs)
