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


def draws(augment, count, seed=0):
    """Integers uniform over [0, 2^63), as many an image as the augmentation takes."""
    return torch.randint(0, 2**63 - 1, (count, augment.num_draws), generator=torch.Generator().manual_seed(seed))


def changed(augment, images, seed=0):
    return augment(images, draws(augment, len(images), seed))


@pytest.mark.parametrize("padding", [1, 2])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_random_crop_is_a_naive_crop_at_some_place(padding, dtype):
    """Each image equals the pixel-by-pixel crop at exactly one place, in all channels, and places differ between images."""
    images = distinct_pixels(30, 3, 5, 6, dtype)
    crops = changed(RandomCrop(padding), images)
    assert crops.shape == images.shape
    assert crops.dtype == images.dtype
    offsets = [offsets_of(image, crop, padding) for image, crop in zip(images, crops, strict=True)]
    assert all(len(places) == 1 for places in offsets)
    assert len({places[0] for places in offsets}) > 3


def test_random_crop_takes_every_place_equally_often():
    """padding 1 has 9 places; of 1,800 images each is cut 200 times, sd 13.3, within 5 sd; corners included."""
    image = distinct_pixels(1, 1, 3, 4)
    naive = {naive_crop(image[0], 1, top, left).numpy().tobytes(): (top, left) for top in range(3) for left in range(3)}
    crops = changed(RandomCrop(1), image.expand(1800, -1, -1, -1))
    counts = Counter(naive[crop.contiguous().numpy().tobytes()] for crop in crops)
    assert len(counts) == 9
    assert all(abs(count - 200) < 67 for count in counts.values()), counts


def test_random_crop_pads_four_pixels_unless_told_otherwise():
    """A shift by 4 occurs among many images, none by more: at least 28 of 32 rows keep their pixels."""
    images = torch.ones(500, 1, 32, 32, dtype=torch.uint8)
    rows_kept = changed(RandomCrop(), images)[:, 0].amax(dim=2).sum(dim=1)
    assert rows_kept.min().item() == 28
    assert rows_kept.max().item() == 32


def test_random_flip_mirrors_whole_images_half_of_the_time():
    """Each image is as it was or has its columns reversed in every row and channel; of 1,000 images 500 +- 79 (5 sd)."""
    image = distinct_pixels(1, 2, 3, 4)[0]
    mirrored = torch.empty_like(image)
    for column in range(4):
        mirrored[:, :, column] = image[:, :, 3 - column]
    flipped = changed(RandomHorizontalFlip(), image.expand(1000, -1, -1, -1))
    assert flipped.dtype == image.dtype
    as_it_was = sum(torch.equal(one, image) for one in flipped)
    assert as_it_was + sum(torch.equal(one, mirrored) for one in flipped) == 1000
    assert abs(as_it_was - 500) < 79


@pytest.mark.parametrize("augment", [RandomCrop(2), RandomHorizontalFlip()])
class TestBoth:
    def test_draws_alone_decide(self, augment):
        """Same draws, same images, whatever the global generator did; other draws, other images."""
        images = distinct_pixels(64, 3, 8, 8)
        first = changed(augment, images, seed=1)
        torch.manual_seed(5)
        assert torch.equal(changed(augment, images, seed=1), first)
        assert not torch.equal(changed(augment, images, seed=2), first)

    def test_an_image_depends_on_its_own_draws_alone(self, augment):
        """One by one and in another order: the same as in a batch."""
        images, own = distinct_pixels(16, 3, 8, 8), draws(augment, 16)
        together = augment(images, own)
        alone = torch.cat([augment(images[i : i + 1], own[i : i + 1]) for i in range(16)])
        assert torch.equal(alone, together)
        assert torch.equal(augment(images.flip(0), own.flip(0)).flip(0), together)

    def test_global_generator_and_arguments_are_left_alone(self, augment):
        """No draw from the global generator, no write to the batch or the draws."""
        images, own = distinct_pixels(16, 3, 8, 8), draws(augment, 16)
        before, state = (images.clone(), own.clone()), torch.get_rng_state()
        augment(images, own)
        assert torch.equal(images, before[0])
        assert torch.equal(own, before[1])
        assert torch.equal(torch.get_rng_state(), state)

    def test_batches_of_one_and_none(self, augment):
        """The shape is kept for a single image and for an empty batch."""
        for count in (1, 0):
            images = distinct_pixels(1, 3, 8, 8)[:count]
            assert changed(augment, images).shape == (count, 3, 8, 8)


def test_a_crop_is_cut_where_its_draws_say():
    """Padding 2 has 5 places each way: draws of 14 and 2^63 - 1 are the places 4 and 2, as 2^63 - 1 is 2 modulo 5."""
    image = distinct_pixels(1, 2, 5, 6)
    crop = RandomCrop(2)(image, torch.tensor([[14, 2**63 - 1]]))
    assert torch.equal(crop[0], naive_crop(image[0], 2, 4, 2))


def test_odd_draws_mirror():
    """2^63 - 1 is odd, 0 is even."""
    images = distinct_pixels(2, 1, 2, 2)
    flipped = RandomHorizontalFlip()(images, torch.tensor([[2**63 - 1], [0]]))
    assert flipped[0, 0].tolist() == [row[::-1] for row in images[0, 0].tolist()]
    assert torch.equal(flipped[1], images[1])


@pytest.mark.parametrize("padding", [0, -1])
def test_padding_below_one_is_named(padding):
    """Key, value, range and cure."""
    with pytest.raises(ValueError, match=rf"RandomCrop.padding is {padding}, must be at least 1: leave RandomCrop out"):
        RandomCrop(padding)
