"""scikit-learn's handwritten digits."""

from pathlib import Path

import numpy as np
import torch

from fl_lightning.data.samples import Dataset, Samples
from fl_lightning.data.sources.source import Source


class Digits(Source):
    """scikit-learn's handwritten digits: 1,797 grey images of 8x8, ten classes, part of the library, no network.

    A fifth of each class, chosen once and for all, is the test set.
    """

    def load(self, root: Path) -> Dataset:
        # Importing scikit-learn takes long, and other sources do not need it.
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        images, labels = load_digits(return_X_y=True)
        # Stored values are 0 to 16; uint8 images reach from 0 to 255.
        pixels = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        train_x, test_x, train_y, test_y = train_test_split(pixels, labels, test_size=0.2, stratify=labels, random_state=0)
        train, test = ((torch.from_numpy(x), torch.from_numpy(y).long()) for x, y in ((train_x, train_y), (test_x, test_y)))
        return Dataset(Samples(*train), Samples(*test), tuple(str(digit) for digit in range(10)))
