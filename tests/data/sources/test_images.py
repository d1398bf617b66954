"""Images brought to one size, against a loop over pixels."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from fl_lightning.data import HuggingFace, ImageFolder, TorchvisionDataset
from fl_lightning.data.sources.images import decode, mode_of


def scaled_middle(pixels, size):
    """The middle square of an image (h, w), scaled: each new pixel is a weighted mean of the old ones around its centre.

    Weights fall linearly to 0 at a distance of one new pixel, but at least one old one: bilinear with antialiasing.
    """
    height, width = pixels.shape
    side = min(height, width)
    scale = side / size
    reach = max(scale, 1.0)

    def weights(i, length):
        centre = (length - side) / 2 + (i + 0.5) * scale
        values = np.array([max(0.0, 1 - abs(pixel + 0.5 - centre) / reach) for pixel in range(length)])
        return values / values.sum()

    rows, columns = (np.stack([weights(i, length) for i in range(size)]) for length in (height, width))
    return rows @ pixels.astype(np.float64) @ columns.T


@pytest.mark.parametrize("shape", [(16, 16), (12, 20), (23, 9), (5, 8), (7, 7)])
def test_size_is_the_scaled_middle(tmp_path, shape):
    """Larger, smaller and equal images, tall and wide, grey: within rounding of the loop; 7x7 stays bit for bit."""
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / "1.png")
    actual = ImageFolder(size=7).load(tmp_path).train.inputs[0, 0].numpy()
    assert actual.shape == (7, 7)
    assert abs(actual - scaled_middle(pixels, 7)).max() <= 1.0 + 1e-9
    if shape == (7, 7):
        assert (actual == pixels).all()


def test_images_of_any_size_have_one_size_then(tmp_path):
    """Colour images of three shapes; channel by channel as the loop."""
    images = [
        np.random.default_rng(i).integers(0, 256, (*shape, 3), dtype=np.uint8)
        for i, shape in enumerate([(9, 14), (30, 11), (4, 4)])
    ]
    for part in ("train", "test"):
        (tmp_path / part / "a").mkdir(parents=True)
        for i, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / part / "a" / f"{i}.png")
    dataset = ImageFolder(size=6).load(tmp_path)
    for samples in (dataset.train, dataset.test):
        assert samples.inputs.shape == (3, 3, 6, 6)
        for image, actual in zip(images, samples.inputs.numpy()):
            expected = np.stack([scaled_middle(image[..., channel], 6) for channel in range(3)])
            assert abs(actual - expected).max() <= 1.0 + 1e-9
    assert ImageFolder(size=5).load(tmp_path).train.inputs.shape == (3, 3, 5, 5)  # another size is another cache entry


def test_a_constant_image_stays_constant_to_its_border(tmp_path):
    """No black comes in from outside."""
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((13, 17), 200, dtype=np.uint8)).save(tmp_path / "a" / "1.png")
    for size in (4, 13, 29):
        assert (ImageFolder(size=size).load(tmp_path).train.inputs == 200).all()


@pytest.mark.parametrize("size", [0, -3])
@pytest.mark.parametrize(
    "source", [ImageFolder, lambda size: TorchvisionDataset("GTSRB", size=size), lambda size: HuggingFace("x", size=size)]
)
def test_size_below_one_is_named(source, size):
    """Before anything is read."""
    with pytest.raises(ValueError, match=rf"data\.source\.size is {size}, must be at least 1: height and width in pixels"):
        source(size=size)


def test_the_loop_itself():
    """By hand: a row 0, 8, 16, 24 halved has weights 3, 3, 1 of 7 at the border and 1, 3, 3 at the other, so 40/7 and 128/7."""
    row = np.tile(np.array([0.0, 8.0, 16.0, 24.0]), (4, 1))
    assert [round(float(value), 6) for value in scaled_middle(row, 2)[0]] == [round(40 / 7, 6), round(128 / 7, 6)]
    assert math.isclose(scaled_middle(row, 2).mean(), 12.0)


@pytest.mark.parametrize("label", ["cat", 1.5, None, [0, 1], torch.zeros(40)])
def test_labels_that_are_no_whole_numbers_are_named(tmp_path, label):
    """Not cut off, not turned into numbers: the sample, its label and the cure."""
    image = Image.new("L", (2, 2))
    with pytest.raises(
        ValueError, match=r"^data\.source X: sample 1 has the label .*, must be the number of its class"
    ) as caught:
        decode(lambda i: (image, label if i == 1 else 0), 3, "data.source X: sample {}".format, None, "L", tmp_path / "x")
    assert len(str(caught.value)) < 150
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("label", [2, np.uint8(2), torch.tensor(2), True])
def test_labels_of_any_kind_of_whole_number(tmp_path, label):
    """Python's, NumPy's, torch's and a yes or no."""
    image = Image.new("L", (2, 2))
    assert decode(lambda i: (image, label), 2, str, None, "L", tmp_path / "x").targets.tolist() == [int(label)] * 2


@pytest.mark.parametrize("thing", [None, np.zeros((2, 2), dtype=np.uint8), torch.zeros(2, 2), "1.png"])
def test_what_is_no_image_is_named(tmp_path, thing):
    """As the first sample, which decides between grey and colour, and as a later one."""
    with pytest.raises(
        ValueError, match=rf"^sample 1 is not an image but of type {type(thing).__name__}: choose a set of images"
    ):
        decode(lambda i: (thing if i == 1 else Image.new("L", (2, 2)), 0), 3, "sample {}".format, None, "L", tmp_path / "x")
    with pytest.raises(ValueError, match=r"^sample 0 is not an image"):
        mode_of(thing, "sample 0")


def test_samples_are_in_order_whatever_thread_reads_them(tmp_path):
    """200 images, each filled with its number."""
    samples = decode(lambda i: (Image.new("L", (2, 1), i), i % 7), 200, str, None, "L", tmp_path / "x")
    assert samples.inputs.tolist() == [[[[i, i]]] for i in range(200)]
    assert samples.targets.tolist() == [i % 7 for i in range(200)]
