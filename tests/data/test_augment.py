"""Random crops and flips against loops over single images, and where their randomness comes from."""

from collections import Counter

import pytest
import torch

from fl_lightning.data import RandomCrop, RandomHorizontalFlip


def distinct_pixels(count, channels, height, width, dtype=torch.uint8):
    """Images whose pixels are all different and none black, so that a crop tells where it was cut."""
    pixels = torch.arange(1, channels * height * width + 1).reshape(channels, height, width)
    return torch.stack([(pixels + 3 * i) % 251 + 1 for i in range(count)]).to(dtype)


def naive_crop(image, padding, top, left):
    """Pixel by pixel: the source pixel where there is one, black where the window reaches beyond the image."""
    _, height, width = image.shape
    cut = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            y, x = row + top - padding, column + left - padding
            if 0 <= y < height and 0 <= x < width:
                cut[:, row, column] = image[:, y, x]
    return cut


def offsets_of(image, crop, padding):
    """All places from which the crop may have been cut."""
    places = range(2 * padding + 1)
    return [(top, left) for top in places for left in places if torch.equal(naive_crop(image, padding, top, left), crop)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("padding", [1, 2])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_random_crop_is_a_naive_crop_at_some_place(padding, dtype):
    """Each image equals the pixel-by-pixel crop at exactly one place, in all channels, and places differ between images."""
    images = distinct_pixels(30, 3, 5, 6, dtype)
    crops = RandomCrop(padding)(images, generator())
    assert crops.shape == images.shape
    assert crops.dtype == images.dtype
    offsets = [offsets_of(image, crop, padding) for image, crop in zip(images, crops, strict=True)]
    assert all(len(places) == 1 for places in offsets)
    assert len({places[0] for places in offsets}) > 3


def test_random_crop_takes_every_place_equally_often():
    """padding 1 has 9 places; of 1,800 images each is cut 200 times, sd 13.3, within 5 sd; corners included."""
    image = distinct_pixels(1, 1, 3, 4)
    naive = {naive_crop(image[0], 1, top, left).numpy().tobytes(): (top, left) for top in range(3) for left in range(3)}
    crops = RandomCrop(1)(image.expand(1800, -1, -1, -1), generator())
    counts = Counter(naive[crop.contiguous().numpy().tobytes()] for crop in crops)
    assert len(counts) == 9
    assert all(abs(count - 200) < 67 for count in counts.values()), counts


def test_random_crop_pads_four_pixels_unless_told_otherwise():
    """A shift by 4 occurs among many images, none by more: at least 28 of 32 rows keep their pixels."""
    images = torch.ones(500, 1, 32, 32, dtype=torch.uint8)
    rows_kept = RandomCrop()(images, generator())[:, 0].amax(dim=2).sum(dim=1)
    assert rows_kept.min().item() == 28
    assert rows_kept.max().item() == 32


def test_random_flip_mirrors_whole_images_half_of_the_time():
    """Each image is as it was or has its columns reversed in every row and channel; of 1,000 images 500 +- 79 (5 sd)."""
    image = distinct_pixels(1, 2, 3, 4)[0]
    mirrored = torch.empty_like(image)
    for column in range(4):
        mirrored[:, :, column] = image[:, :, 3 - column]
    flipped = RandomHorizontalFlip()(image.expand(1000, -1, -1, -1), generator())
    assert flipped.dtype == image.dtype
    as_it_was = sum(torch.equal(one, image) for one in flipped)
    assert as_it_was + sum(torch.equal(one, mirrored) for one in flipped) == 1000
    assert abs(as_it_was - 500) < 79


@pytest.mark.parametrize("augment", [RandomCrop(2), RandomHorizontalFlip()])
class TestBoth:
    def test_generator_alone_decides(self, augment):
        """Same seed, same images, whatever the global generator did; another seed or the next call, other images."""
        images = distinct_pixels(64, 3, 8, 8)
        first = augment(images, generator(1))
        torch.manual_seed(5)
        same = generator(1)
        assert torch.equal(augment(images, same), first)
        assert not torch.equal(augment(images, same), first)
        assert not torch.equal(augment(images, generator(2)), first)

    def test_global_generator_and_images_are_left_alone(self, augment):
        """No draw from the global generator, no write to the batch."""
        images = distinct_pixels(16, 3, 8, 8)
        copy, state = images.clone(), torch.get_rng_state()
        augment(images, generator())
        assert torch.equal(images, copy)
        assert torch.equal(torch.get_rng_state(), state)

    def test_batches_of_one_and_none(self, augment):
        """The shape is kept for a single image and for an empty batch."""
        for count in (1, 0):
            images = distinct_pixels(1, 3, 8, 8)[:count]
            assert augment(images, generator()).shape == (count, 3, 8, 8)


@pytest.mark.parametrize("padding", [0, -1])
def test_padding_below_one_is_named(padding):
    """Key, value, range and cure."""
    with pytest.raises(ValueError, match=rf"RandomCrop.padding is {padding}, must be at least 1: leave RandomCrop out"):
        RandomCrop(padding)
