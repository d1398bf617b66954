"""Changes to images against loops over single images, and where their randomness comes from."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from fl_lightning.data import (
    CenterCrop,
    Cutout,
    Grayscale,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToRGB,
    from_arrays,
)


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
    """All offsets from which the crop may have been cut."""
    positions = range(2 * padding + 1)
    return [(top, left) for top in positions for left in positions if torch.equal(naive_crop(image, padding, top, left), crop)]


def draws(augment, count, seed=0):
    """Integers uniform over [0, 2^63), as many an image as the augmentation takes."""
    return torch.randint(0, 2**63 - 1, (count, augment.num_draws), generator=torch.Generator().manual_seed(seed))


def changed(augment, images, seed=0):
    return augment(images, draws(augment, len(images), seed))


@pytest.mark.parametrize("padding", [1, 2])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_random_crop_is_a_naive_crop_at_some_offset(padding, dtype):
    """Each image equals the pixel-by-pixel crop at exactly one offset, in all channels, and offsets differ between images."""
    images = distinct_pixels(30, 3, 5, 6, dtype)
    crops = changed(RandomCrop(padding), images)
    assert crops.shape == images.shape
    assert crops.dtype == images.dtype
    offsets = [offsets_of(image, crop, padding) for image, crop in zip(images, crops, strict=True)]
    assert all(len(positions) == 1 for positions in offsets)
    assert len({positions[0] for positions in offsets}) > 3


def test_random_crop_takes_every_offset_equally_often():
    """padding 1 has 9 offsets; of 1,800 images each is cut 200 times, sd 13.3, within 5 sd; corners included."""
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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_cutout_covers_a_square_pixel_by_pixel(dtype):
    """Size 3 in images of 5x4: rows and columns within one of the middle, over the edge too; colour .2, .4 in two channels."""
    images = distinct_pixels(40, 2, 5, 4, dtype)
    taken = draws(Cutout(3), 40)
    covered = Cutout(3, fill=[0.2, 0.4])(images, taken)
    assert covered.dtype == dtype
    colour = [51, 102] if dtype == torch.uint8 else [0.2, 0.4]
    expected, black = images.clone(), images.clone()
    for image, (down, right) in enumerate(taken.tolist()):
        for row in range(5):
            for column in range(4):
                if abs(row - down % 5) <= 1 and abs(column - right % 4) <= 1:
                    expected[image, :, row, column] = torch.tensor(colour).to(dtype)
                    black[image, :, row, column] = 0
    assert torch.equal(covered, expected)
    assert torch.equal(Cutout(3)(images, taken), black)
    assert torch.equal(Cutout(3).evaluate(images), images)


def test_an_even_cutout_is_of_its_size():
    """Size 2 with its middle at row 2, column 2 of 4: rows and columns 1 and 2."""
    covered = Cutout(2)(torch.ones(1, 1, 4, 4), torch.tensor([[2, 2]]))
    assert covered[0, 0].tolist() == [[1, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]]


def test_a_cutout_of_other_channels_is_refused():
    with pytest.raises(ValueError) as error:
        changed(Cutout(2, fill=[0.1, 0.2]), torch.ones(1, 3, 4, 4))
    assert str(error.value) == ("data.augment Cutout.fill has 2 numbers, but the images have 3 channels: give one for each")


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


def repr_of(augment):
    return f"{type(augment).__name__}({', '.join(map(str, vars(augment).values()))})"


@pytest.mark.parametrize(
    "augment", [RandomCrop(2), RandomHorizontalFlip(), RandomCrop(1, size=5), RandomResizedCrop(6)], ids=repr_of
)
class TestAll:
    def test_draws_alone_decide(self, augment):
        """Same draws, same images, whatever the global generator did; other draws, other images."""
        images = distinct_pixels(64, 3, 8, 8)
        first = changed(augment, images, seed=1)
        torch.manual_seed(5)
        assert torch.equal(changed(augment, images, seed=1), first)
        assert not torch.equal(changed(augment, images, seed=2), first)

    def test_an_image_depends_on_its_draws_alone(self, augment):
        """One by one and in another order: the same as in a batch."""
        images, drawn = distinct_pixels(16, 3, 8, 8), draws(augment, 16)
        together = augment(images, drawn)
        alone = torch.cat([augment(images[i : i + 1], drawn[i : i + 1]) for i in range(16)])
        assert torch.equal(alone, together)
        assert torch.equal(augment(images.flip(0), drawn.flip(0)).flip(0), together)

    def test_global_generator_and_arguments_are_left_alone(self, augment):
        """No draw from the global generator, no write to the batch or the draws."""
        images, drawn = distinct_pixels(16, 3, 8, 8), draws(augment, 16)
        before, state = (images.clone(), drawn.clone()), torch.get_rng_state()
        augment(images, drawn)
        assert torch.equal(images, before[0])
        assert torch.equal(drawn, before[1])
        assert torch.equal(torch.get_rng_state(), state)

    def test_a_batch_of_one(self, augment):
        """It has the shape of evaluation, and the dtype of the stored images."""
        for dtype in (torch.uint8, torch.float32):
            images = distinct_pixels(1, 3, 8, 8, dtype)
            actual = changed(augment, images)
            assert actual.shape == augment.evaluate(images).shape
            assert actual.dtype == dtype


def test_a_crop_is_cut_where_its_draws_say():
    """Padding 2 has 5 offsets along each axis: draws of 14 and 2^63 - 1 are the offsets 4 and 2, as 2^63 - 1 is 2 modulo 5."""
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


# Random crops of a size


def windows(image, padding, size):
    """Every part of the padded image, cut pixel by pixel: offset -> part."""
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    padded[:, padding : padding + height, padding : padding + width] = image
    return {
        (top, left): padded[:, top : top + size, left : left + size]
        for top in range(height + 2 * padding - size + 1)
        for left in range(width + 2 * padding - size + 1)
    }


@pytest.mark.parametrize("padding", [0, 1])
def test_random_crop_of_a_size_takes_every_window_equally_often(padding):
    """Parts of 4x4 out of 6x7: with padding 1, 5 * 6 = 30 offsets, without 3 * 4 = 12; 120 images each, 5 sd are 55."""
    image = distinct_pixels(1, 2, 6, 7)[0]
    positions = {part.numpy().tobytes(): position for position, part in windows(image, padding, 4).items()}
    assert len(positions) == (30 if padding else 12)
    crops = changed(RandomCrop(padding, size=4), image.expand(120 * len(positions), -1, -1, -1))
    assert crops.shape[1:] == (2, 4, 4)
    counts = Counter(positions[crop.contiguous().numpy().tobytes()] for crop in crops)
    assert counts.keys() == set(positions.values())
    assert all(abs(count - 120) < 55 for count in counts.values()), counts


def test_random_crop_of_a_size_evaluates_the_middle():
    """Rows 1 to 4 of 6 and columns 2 to 5 of 8; a part larger than the image has black around it."""
    image = distinct_pixels(2, 3, 6, 8)
    assert torch.equal(RandomCrop(2, size=4).evaluate(image), image[:, :, 1:5, 2:6])
    small = distinct_pixels(1, 1, 4, 4)
    evaluated = RandomCrop(2, size=6).evaluate(small)
    assert torch.equal(evaluated[:, :, 1:5, 1:5], small)
    assert evaluated.sum() == small.sum()


def test_random_crop_of_long_images():
    """3x9 with padding 1: 3 * 3 offsets, as for a square; the longer side is not compared with the shorter."""
    image = distinct_pixels(1, 1, 3, 9)[0]
    parts = {naive_crop(image, 1, top, left).numpy().tobytes() for top in range(3) for left in range(3)}
    crops = changed(RandomCrop(1), image.expand(300, -1, -1, -1))
    assert {crop.contiguous().numpy().tobytes() for crop in crops} == parts


def test_random_crop_larger_than_the_padded_image_is_named():
    """Size, image and padding, in training and, through the shape that the net is built for, before it."""
    augment, images = RandomCrop(1, size=9), distinct_pixels(1, 1, 6, 8)
    message = r"data\.augment RandomCrop\.size is 9, larger than the images of 6x8 with their padding of 1: put a Resize before"
    for call in (lambda: changed(augment, images), lambda: augment.evaluate(images)):
        with pytest.raises(ValueError, match=message):
            call()


# Random parts, scaled


def coordinates(count, height, width):
    """Images that encode where a pixel lies: channel 0 is x, channel 1 is y, of its centre."""
    x, y = torch.arange(width) + 0.5, torch.arange(height) + 0.5
    return torch.stack([x.expand(height, width), y[:, None].expand(height, width)]).expand(count, -1, -1, -1)


def recovered(line, length, size):
    """Beginning and length of the part along one side, from what was sampled there.

    Bilinear samples of a ramp are the coordinates where they were taken, but for the outer half pixel, which has no neighbour.
    """
    line = line.double().numpy()
    inner = np.flatnonzero((line > 0.5 + 1e-3) & (line < length - 0.5 - 1e-3))
    assert len(inner) >= 2
    step, offset = np.polyfit(inner + 0.5, line[inner], 1)
    expected = np.clip(offset + step * (np.arange(size) + 0.5), 0.5, length - 0.5)
    np.testing.assert_allclose(line, expected, atol=2e-3)
    return offset, step * size


def boxes(augment, height, width, count, seed=0):
    """(count, 4): left, top, width and height of the parts that were cut."""
    parts, found = changed(augment, coordinates(count, height, width), seed), []
    for part in parts:
        torch.testing.assert_close(part[0], part[0, :1].expand_as(part[0]), atol=1e-3, rtol=0)  # x is the same in all rows
        torch.testing.assert_close(part[1], part[1, :, :1].expand_as(part[1]), atol=1e-3, rtol=0)
        (left, wide), (top, tall) = (
            recovered(line, length, augment.size) for line, length in ((part[0, 0], width), (part[1, :, 0], height))
        )
        found.append((left, top, wide, tall))
    return np.array(found)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 40), (50, 20)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.3, 0.3), (1.0, 1.0)])
def test_random_part_lies_in_the_image_and_has_its_area_and_ratio(height, width, scale):
    """For each of 150 parts: inside; area within scale and width to height within 3/4 and 4/3, unless a side was cut."""
    found = boxes(RandomResizedCrop(16, scale), height, width, 150)
    left, top, wide, tall = found.T
    tolerance = 0.02
    assert (left > -tolerance).all()
    assert (top > -tolerance).all()
    assert (left + wide < width + tolerance).all()
    assert (top + tall < height + tolerance).all()
    area = wide * tall / (height * width)
    cut = (wide > width - tolerance) | (tall > height - tolerance)
    assert (area < scale[1] + 1e-3).all()
    assert (area[~cut] > scale[0] - 1e-3).all()
    assert ((wide / tall)[~cut] > 3 / 4 - 1e-2).all()
    assert ((wide / tall)[~cut] < 4 / 3 + 1e-2).all()
    assert cut.all() if scale == (1.0, 1.0) else (~cut).any()


def test_random_part_is_uniform_in_area_log_ratio_and_position():
    """Kolmogorov and Smirnov on 1,500 parts of 64x64 with a fifth to half of the area, none of them cut."""
    left, top, wide, tall = boxes(RandomResizedCrop(16, (0.2, 0.5)), 64, 64, 1500).T
    log_ratio = np.log(wide / tall)
    for name, values in {
        "area": (wide * tall / 64**2 - 0.2) / 0.3,
        "ratio": log_ratio / (2 * math.log(4 / 3)) + 0.5,
        "left": left / (64 - wide),
        "top": top / (64 - tall),
    }.items():
        assert stats.kstest(values, "uniform").pvalue > 1e-3, name
    independent = np.corrcoef([wide * tall, log_ratio, left / (64 - wide), top / (64 - tall)])
    assert abs(independent - np.eye(4)).max() < 5 / math.sqrt(1500)


MIDDLE, LAST = 2**62, 2**63 - 1


@pytest.mark.parametrize(
    ("top", "left", "rows", "columns"),
    [
        (0, 0, slice(0, 32), slice(0, 32)),
        (LAST, 0, slice(32, 64), slice(0, 32)),
        (0, LAST, slice(0, 32), slice(32, 64)),
        (MIDDLE, MIDDLE, slice(16, 48), slice(16, 48)),
    ],
)
def test_random_part_is_cut_where_its_draws_say(top, left, rows, columns):
    """A quarter of 64x64 at ratio 1 is 32x32: as it is where that is the size, the mean of 2x2 pixels at half of it."""
    image = torch.randint(0, 256, (1, 3, 64, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    drawn = torch.tensor([[123, MIDDLE, top, left]])
    part = image[:, :, rows, columns]
    assert torch.equal(RandomResizedCrop(32, (0.25, 0.25))(image, drawn), part)
    halved = RandomResizedCrop(16, (0.25, 0.25))(image.double(), drawn)
    assert halved.dtype == torch.float64
    means = part.double().reshape(1, 3, 16, 2, 16, 2).mean(dim=(3, 5))
    torch.testing.assert_close(halved, means, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("draw", "wide_to_tall"), [(0, 3 / 4), (MIDDLE, 1.0), (LAST, 4 / 3)])
def test_ratio_is_width_to_height(draw, wide_to_tall):
    """The second draw, from tall to wide; the first gives the area, a tenth to a half."""
    for first, area in ((0, 0.1), (MIDDLE, 0.3), (LAST, 0.5)):
        augment = RandomResizedCrop(16, (0.1, 0.5))
        part = augment(coordinates(1, 60, 60), torch.tensor([[first, draw, MIDDLE, MIDDLE]]))[0]
        (_, wide), (_, tall) = recovered(part[0, 0], 60, 16), recovered(part[1, :, 0], 60, 16)
        assert wide / tall == pytest.approx(wide_to_tall, rel=1e-3)
        assert wide * tall / 3600 == pytest.approx(area, rel=1e-3)


def test_random_part_of_white_is_white():
    """Nothing black comes in at the border, whatever is cut, smaller or larger."""
    images = torch.full((50, 1, 9, 13), 255, dtype=torch.uint8)
    for size in (5, 20):
        assert (changed(RandomResizedCrop(size), images) == 255).all()


def antialiased(image, rows, columns):
    """An image (channels, h, w) scaled: each new pixel is a mean of old ones with weights that fall linearly to 0 at a

    distance of one new pixel, but at least one old one.
    """

    def weights(old, new):
        scale = old / new
        reach = max(scale, 1.0)
        table = torch.tensor(
            [[max(0.0, 1 - abs(j + 0.5 - (i + 0.5) * scale) / reach) for j in range(old)] for i in range(new)]
        ).double()
        return table / table.sum(dim=1, keepdim=True)

    return weights(image.shape[1], rows) @ image.double() @ weights(image.shape[2], columns).T


def random_images(count, *shape):
    return torch.randint(0, 256, (count, *shape), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.mark.parametrize(("height", "width"), [(16, 16), (12, 20), (21, 9), (4, 6)])
def test_random_part_evaluates_the_scaled_middle_square(height, width):
    """The middle square, cut out and scaled to 7x7, within rounding."""
    images, side = random_images(3, 3, height, width), min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    evaluated = RandomResizedCrop(7).evaluate(images)
    assert evaluated.dtype == torch.uint8
    for image, actual in zip(images, evaluated, strict=True):
        expected = antialiased(image[:, top : top + side, left : left + side], 7, 7)
        torch.testing.assert_close(actual.double(), expected, atol=1.01, rtol=0)


# Without chance


@pytest.mark.parametrize(
    ("height", "width", "size", "rows", "columns"),
    [(12, 20, 6, 6, 10), (20, 12, 6, 10, 6), (7, 10, 5, 5, 7), (4, 4, 9, 9, 9), (8, 8, 8, 8, 8)],
)
def test_resize_scales_the_shorter_side(height, width, size, rows, columns):
    """The longer side keeps the proportion, rounded down; each image as the loop has it, the same in training."""
    images = random_images(3, 3, height, width)
    actual = Resize(size).evaluate(images)
    assert actual.shape == (3, 3, rows, columns)
    for image, one in zip(images, actual, strict=True):
        torch.testing.assert_close(one.double(), antialiased(image, rows, columns), atol=1.01, rtol=0)
    if (height, width) == (rows, columns):
        assert torch.equal(actual, images)


def test_center_crop_keeps_the_middle():
    """Of 6x8, rows 1 to 4 and columns 2 to 5; of 5 rows one of the two middles; smaller images have black around them."""
    images = distinct_pixels(2, 3, 6, 8)
    assert torch.equal(CenterCrop(4).evaluate(images), images[:, :, 1:5, 2:6])
    odd = distinct_pixels(1, 1, 5, 5)
    assert any(torch.equal(CenterCrop(4).evaluate(odd), odd[:, :, i : i + 4, i : i + 4]) for i in (0, 1))
    larger = CenterCrop(10).evaluate(images)
    assert torch.equal(larger[:, :, 2:8, 1:9], images)
    assert larger.sum() == images.sum()


def test_pad_adds_black_on_all_sides():
    """28 to 32 with 2."""
    images = distinct_pixels(3, 1, 28, 28)
    padded = Pad(2).evaluate(images)
    assert padded.shape == (3, 1, 32, 32)
    assert torch.equal(padded[:, :, 2:30, 2:30], images)
    assert padded.sum() == images.sum()


def test_to_rgb_repeats_grey_and_leaves_colour():
    """Two channels are neither."""
    grey, colour = random_images(2, 1, 3, 4), random_images(2, 3, 3, 4)
    assert all(torch.equal(ToRGB().evaluate(grey)[:, channel], grey[:, 0]) for channel in range(3))
    assert torch.equal(ToRGB().evaluate(colour), colour)
    with pytest.raises(ValueError, match=r"data\.augment ToRGB: the images have 2 channels, must be 1 or 3"):
        ToRGB().evaluate(random_images(2, 2, 3, 4))


def test_grayscale_is_that_of_television():
    """.299 red + .587 green + .114 blue (ITU-R 601), to one grey value; grey stays; four channels are neither."""
    images = random_images(4, 3, 5, 6)
    expected = (images.double() * torch.tensor([0.299, 0.587, 0.114]).double()[None, :, None, None]).sum(1, keepdim=True)
    actual = Grayscale().evaluate(images)
    assert actual.shape == (4, 1, 5, 6)
    torch.testing.assert_close(actual.double(), expected, atol=0.501, rtol=0)
    torch.testing.assert_close(Grayscale().evaluate(images.float()).double(), expected, atol=1e-3, rtol=0)
    assert (Grayscale().evaluate(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)) == 255).all()
    assert torch.equal(Grayscale().evaluate(images[:, :1]), images[:, :1])
    with pytest.raises(ValueError, match=r"data\.augment Grayscale: the images have 4 channels, must be 1 or 3"):
        Grayscale().evaluate(random_images(2, 4, 3, 4))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("augment", [Resize(5), CenterCrop(4), Pad(1), ToRGB(), Grayscale()], ids=repr_of)
def test_no_chance_no_difference(augment, dtype):
    """Training images are those of evaluation, take no draws, keep their dtype; arguments and generator are left alone."""
    images = random_images(3, 3, 6, 8).to(dtype)
    before, state = images.clone(), torch.get_rng_state()
    assert augment.num_draws == 0
    actual = augment(images, draws(augment, 3))
    assert torch.equal(actual, augment.evaluate(images))
    assert actual.dtype == dtype
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)
    alone = torch.cat([augment.evaluate(images[i : i + 1]) for i in range(3)])
    assert torch.equal(alone, actual)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomCrop(-1), r"RandomCrop\.padding is -1, must be at least"),
        (lambda: RandomCrop(-1, size=4), r"RandomCrop\.padding is -1, must be at least 0"),
        (lambda: RandomCrop(2, size=0), r"RandomCrop\.size is 0, must be at least 1"),
        (lambda: Cutout(0), r"Cutout\.size is 0, must be at least 1: height and width in pixels"),
        (lambda: Cutout(2, fill=[1.5]), r"Cutout\.fill has 1\.5, must be between 0 and 1: one a channel"),
        (lambda: Cutout(2, fill=[]), r"Cutout\.fill is \[\], must have one number a channel"),
        (lambda: Resize(0), r"Resize\.size is 0, must be at least 1: height and width in pixels"),
        (lambda: CenterCrop(-2), r"CenterCrop\.size is -2"),
        (lambda: Pad(0), r"Pad\.padding is 0, must be at least 1: leave Pad out instead"),
        (lambda: RandomResizedCrop(0), r"RandomResizedCrop\.size is 0"),
        *(
            (lambda scale=scale: RandomResizedCrop(4, scale), r"RandomResizedCrop\.scale is .*, must be two fractions")
            for scale in ([0.0, 1.0], [0.5, 0.4], [0.5, 1.1], [0.5], [0.1, 0.2, 0.3], [math.nan, 1.0], [-1.0, 1.0])
        ),
    ],
)
def test_settings_out_of_range_are_named(make, message):
    """When the change is made: key, value, what is allowed."""
    with pytest.raises(ValueError, match=rf"data\.augment {message}"):
        make()


# In the data module


CHAINS = {
    "resize and crop": [Resize(9), RandomCrop(0, size=8), RandomHorizontalFlip()],
    "part": [RandomResizedCrop(11), RandomHorizontalFlip()],
    "pad to colour": [Grayscale(), Pad(2), ToRGB(), RandomCrop(1)],
    "middle": [CenterCrop(4)],
    "grey": [Grayscale()],
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("channels", [1, 3])
def test_training_and_evaluation_have_the_shape_that_the_net_is_built_for(chain, channels):
    """In batches, validation, test inputs and a few first inputs: ``input_shape``."""
    images = random_images(24, channels, 6, 7)
    data = from_arrays(
        images,
        torch.arange(24) % 2,
        [list(range(24))],
        augment=CHAINS[chain],
        val_fraction=0.25,
        batch_size=5,
        test_inputs=images[:3],
        test_targets=torch.zeros(3, dtype=torch.int64),
    )
    data.setup()
    shape = {
        "resize and crop": (channels, 8, 8),
        "part": (channels, 11, 11),
        "pad to colour": (3, 10, 11),
        "middle": (channels, 4, 4),
        "grey": (1, 6, 7),
    }[chain]
    assert data.input_shape == shape
    assert all(batch.inputs.shape[1:] == shape for batch in data.client_batches().batches(0, 1, 4))
    assert all(batch.inputs.shape[1:] == shape for loader in data.val_dataloader() for batch in loader)
    assert all(part.shape[1:] == shape for part in data.evaluation.test_inputs().split(2))
    assert data.first_inputs(2).shape == (2, *shape)


def test_changed_channels_are_normalised_by_numbers_of_their_own():
    """Grey values made of colours: mean 0 and deviation 1 over the training set, not those of red, green and blue.

    Colours made of grey: each channel as the grey one.
    """
    images = random_images(50, 3, 6, 7) // torch.tensor([1, 2, 5]).to(torch.uint8)[None, :, None, None]
    labels, clients = torch.zeros(50, dtype=torch.int64), [list(range(50))]
    grey = from_arrays(images, labels, clients, augment=[Grayscale()])
    grey.setup()
    inputs = next(grey.client_batches().batches(0, 1, 1)).inputs
    assert inputs.shape == (50, 1, 6, 7)
    assert inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert inputs.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    colour = from_arrays(images[:, :1], labels, clients, augment=[ToRGB()])
    colour.setup()
    inputs = next(colour.client_batches().batches(0, 1, 1)).inputs
    assert inputs.std(dim=(0, 2, 3), correction=0).tolist() == pytest.approx([1, 1, 1], abs=1e-5)


def test_given_numbers_are_for_the_channels_that_the_net_sees():
    """Three for grey images made colours, one for colours made grey, (x / 255 - mean) / std; as many as stored are too many."""
    grey, labels, clients = torch.full((4, 1, 2, 2), 51, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64), [[0, 1, 2, 3]]
    three = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.5, 0.1]}
    data = from_arrays(grey, labels, clients, augment=[ToRGB()], **three)
    data.setup()
    expected = [(0.2 - 0.1) / 0.5, 0.0, (0.2 - 0.3) / 0.1]
    assert next(data.client_batches().batches(0, 1, 1)).inputs[0, :, 0, 0].tolist() == pytest.approx(expected, abs=1e-6)
    data = from_arrays(grey.expand(-1, 3, -1, -1), labels, clients, augment=[Grayscale()], **three)
    with pytest.raises(ValueError, match=r"data\.mean has 3 values, the data 1 channels: give one a channel"):
        data.setup()


@pytest.mark.parametrize("augment", [RandomHorizontalFlip(), Resize(4), RandomCrop(1)], ids=repr_of)
def test_changes_are_for_images(augment):
    """Vectors have no left and right: named when the data is read."""
    data = from_arrays(torch.zeros(4, 6), torch.tensor([0, 1, 0, 1]), [[0, 1, 2, 3]], augment=[augment])
    with pytest.raises(ValueError, match=r"data\.augment is for images, but data\.source gives samples of shape \(6,\): leave"):
        data.setup()
