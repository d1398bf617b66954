"""Class folders of images that the tests write themselves, and what is said when something is wrong."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fl_lightning.data import FederatedDataModule, ImageFolder


def random_pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def image_tree(root, shape=(6, 5), suffix="png", per_class=2, classes=("ant", "bee", "cat"), **options):
    """Class folders of random images under ``root``; returns the pixels, part -> (n, ...) in the order of labels and names."""
    pixels = {}
    for part, count in (("train", per_class), ("test", 1)):
        pixels[part] = random_pixels(len(classes) * count, *shape, seed=len(part))
        for i, image in enumerate(pixels[part]):
            save(root / part / classes[i // count] / f"{i:03}.{suffix}", image, **options)
    return pixels


def with_channels_first(pixels):
    return torch.from_numpy(pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2).copy())


# Class folders of images


@pytest.mark.parametrize(
    ("shape", "suffix", "options"),
    [((6, 5), "png", {}), ((6, 5, 3), "png", {}), ((6, 5, 3), "webp", {"lossless": True, "exact": True})],
    ids=["grey png", "colour png", "colour webp"],
)
def test_image_folder_reads_lossless_images_bit_for_bit(tmp_path, shape, suffix, options):
    """Pixels, labels and class names of a tree written here; folders in alphabetical order are labels 0, 1, 2."""
    pixels = image_tree(tmp_path, shape, suffix, **options)
    dataset = ImageFolder().load(tmp_path)
    assert torch.equal(dataset.train.inputs, with_channels_first(pixels["train"]))
    assert torch.equal(dataset.test.inputs, with_channels_first(pixels["test"]))
    assert dataset.train.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.test.targets.tolist() == [0, 1, 2]
    assert dataset.classes == ("ant", "bee", "cat")


def test_image_folder_labels_do_not_depend_on_creation_order(tmp_path):
    """Folders made in the order c, a, b are still labels a = 0, b = 1, c = 2, and files within go by name."""
    values = {"c": 30, "a": 10, "b": 20}
    for part in ("train", "test"):
        for name, value in values.items():
            for file, extra in (("2.png", 2), ("1.png", 1)):
                save(tmp_path / part / name / file, np.full((3, 3), value + extra, dtype=np.uint8))
    dataset = ImageFolder().load(tmp_path)
    assert dataset.classes == ("a", "b", "c")
    assert dataset.train.inputs[:, 0, 0, 0].tolist() == [11, 12, 21, 22, 31, 32]


def test_first_training_image_decides_grey_or_colour(tmp_path):
    """A colour image among grey ones is read as grey by ITU-R 601 (.299, .587, .114); a grey one among colour ones thrice."""
    grey, colour = np.full((2, 2), 77, dtype=np.uint8), np.full((2, 2, 3), (200, 100, 50), dtype=np.uint8)
    for root, first, second in ((tmp_path / "grey", grey, colour), (tmp_path / "colour", colour, grey)):
        for part in ("train", "test"):
            save(root / part / "a" / "1.png", first)
            save(root / part / "a" / "2.png", second)
    dataset = ImageFolder().load(tmp_path / "grey")
    assert dataset.train.inputs.shape == (2, 1, 2, 2)
    assert dataset.train.inputs[1].float().mean().item() == pytest.approx(0.299 * 200 + 0.587 * 100 + 0.114 * 50, abs=1)
    dataset = ImageFolder().load(tmp_path / "colour")
    assert dataset.train.inputs[1, :, 0, 0].tolist() == [77, 77, 77]


def test_image_folder_without_a_test_part(tmp_path):
    """root/<class>/ alone: all images are for training, the test part is empty; hidden entries are no class and no image."""
    pixels = image_tree(tmp_path)
    (tmp_path / "train").rename(tmp_path / "images")
    save(tmp_path / "images" / ".thumbnails" / "1.png", random_pixels(3, 3))
    save(tmp_path / "images" / "ant" / ".000.png", random_pixels(3, 3))
    dataset = ImageFolder().load(tmp_path / "images")
    assert torch.equal(dataset.train.inputs, with_channels_first(pixels["train"]))
    assert dataset.train.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.test.inputs.shape == (0, 1, 6, 5)
    assert dataset.classes == ("ant", "bee", "cat")
    assert dataset.owners is None


def test_images_in_folders_below_a_class_are_of_that_class(tmp_path):
    """As deep as they lie, in alphabetical order; none is left out."""
    for i, name in enumerate(("a/1.png", "a/day/2.png", "a/day/more/3.png", "a/z.png", "b/only/4.png")):
        save(tmp_path / name, np.full((2, 2), i, dtype=np.uint8))
    dataset = ImageFolder().load(tmp_path)
    assert dataset.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert dataset.train.targets.tolist() == [0, 0, 0, 0, 1]


def test_grey_images_of_16_bits_keep_their_range(tmp_path):
    """The upper of the two bytes: 0, 255, 256, 30000 and 65535 are 0, 0, 1, 117 and 255."""
    for part in ("train", "test"):
        save(tmp_path / part / "a" / "1.png", np.array([[0, 255, 256, 30000, 65535]], dtype=np.uint16))
    assert ImageFolder().load(tmp_path).train.inputs.tolist() == [[[[0, 0, 1, 117, 255]]]]


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_images_of_32_bits_are_named(tmp_path, kind):
    """Nobody knows what is white there."""
    for part in ("train", "test"):
        save(tmp_path / part / "a" / "1.tiff", np.ones((2, 2), dtype=kind))
    with pytest.raises(ValueError, match=rf"^data\.root: {tmp_path}/train/a/1\.tiff has pixels of 32 bits.*save it with"):
        ImageFolder().load(tmp_path)


def test_images_with_transparency_or_a_palette(tmp_path):
    """Transparency is dropped: grey stays grey. Colours of a palette are looked up."""
    grey = np.stack([np.full((2, 2), 77), np.full((2, 2), 9)], axis=-1).astype(np.uint8)
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    for part in ("train", "test"):
        save(tmp_path / "grey" / part / "a" / "1.png", grey)
        (tmp_path / "colour" / part / "a").mkdir(parents=True)
        palette.save(tmp_path / "colour" / part / "a" / "1.png")
    assert ImageFolder().load(tmp_path / "grey").train.inputs.tolist() == [[[[77, 77], [77, 77]]]]
    assert ImageFolder().load(tmp_path / "colour").train.inputs[0, :, 1, 1].tolist() == [10, 20, 30]


def test_image_folder_by_name_serves_a_data_module(tmp_path):
    """source="image_folder" with root: the module sees shape and classes of the tree."""
    image_tree(tmp_path, (6, 5, 3), per_class=4)
    data = FederatedDataModule("image_folder", str(tmp_path), num_clients=2, clients_per_round=1, val_fraction=0.0)
    data.setup()
    assert data.input_shape == (3, 6, 5)
    assert data.classes == ("ant", "bee", "cat")
    assert data.num_train(0) + data.num_train(1) == 12


def test_a_folder_is_decoded_once_however_it_is_given(tmp_path, monkeypatch, no_more_decoding):
    """As an absolute path, a relative one and a detour."""
    image_tree(tmp_path / "images")
    dataset = ImageFolder().load(tmp_path / "images")
    no_more_decoding()
    monkeypatch.chdir(tmp_path)
    for root in (Path("images"), Path("images") / ".." / "images"):
        assert torch.equal(ImageFolder().load(root).train.inputs, dataset.train.inputs)


@pytest.mark.parametrize("missing", ["", "train", "test"])
def test_image_folder_names_a_missing_folder(tmp_path, missing):
    """The root itself, or one of its two parts."""
    root = tmp_path / "images"
    if missing:
        image_tree(root)
        (root / missing).rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=rf"data.root is {root}, but the folder {root / missing} does not exist"):
        ImageFolder().load(root)


def test_image_folder_names_classes_that_differ(tmp_path):
    """Only the class folders that one part lacks are listed."""
    image_tree(tmp_path)
    (tmp_path / "test" / "bee").rename(tmp_path / "test" / "wasp")
    with pytest.raises(
        ValueError, match=rf"data.root is {tmp_path}: train and test differ in their class folders \(bee, wasp\)"
    ):
        ImageFolder().load(tmp_path)


def test_image_folder_without_images_is_named(tmp_path):
    """Class folders without a file, and no class folders at all."""
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
    for name in (None, "ant"):
        if name:
            for part in ("train", "test"):
                (tmp_path / part / name).mkdir()
        with pytest.raises(FileNotFoundError, match=rf"data.root is {tmp_path}, but root/train/<class>/ holds no file"):
            ImageFolder().load(tmp_path)


def test_image_folder_without_test_images_is_named(tmp_path):
    """Class folders under test without a file: the message names data.root and the part."""
    image_tree(tmp_path)
    for path in tmp_path.glob("test/*/*"):
        path.unlink()
    with pytest.raises((FileNotFoundError, ValueError), match=r"data\.root.*test"):
        ImageFolder().load(tmp_path)


@pytest.mark.parametrize("content", ["no image", "cut off", "empty"])
def test_corrupt_image_is_named(tmp_path, cache, content):
    """Text in a .png, the first half of a PNG, an empty file: key, path and cure; nothing is kept in the cache."""
    image_tree(tmp_path, (20, 20))
    path = tmp_path / "train" / "bee" / "002.png"
    whole = path.read_bytes()
    path.write_bytes({"no image": b"hello", "cut off": whole[: len(whole) // 2], "empty": b""}[content])
    with pytest.raises(ValueError, match=rf"data.root: {path} cannot be read as an image .*replace or delete it"):
        ImageFolder().load(tmp_path)
    assert list(cache.glob("*.pt")) == []
    path.write_bytes(whole)
    assert len(ImageFolder().load(tmp_path).train) == 6


def test_image_of_another_size_is_named(tmp_path):
    """The path, both sizes, height first, and what to do."""
    image_tree(tmp_path)
    path = tmp_path / "train" / "cat" / "005.png"
    save(path, random_pixels(7, 5))
    with pytest.raises(
        ValueError, match=rf"^data\.root: {path} has 7x5 pixels, the first image 6x5: give the source as a class"
    ):
        ImageFolder().load(tmp_path)


def test_test_images_of_another_size_are_named(tmp_path):
    """All images have one size, those of test too."""
    image_tree(tmp_path)
    for i, name in enumerate(("ant", "bee", "cat")):
        save(tmp_path / "test" / name / f"{i:03}.png", random_pixels(7, 5))
    with pytest.raises(ValueError, match=r"data\.(source|root).*shape"):
        ImageFolder().load(tmp_path)


# What is noticed, and what is not decoded again


def test_images_are_decoded_once(tmp_path):
    """After the first load the files are replaced by garbage of equal size and time stamp, and the second load still works."""
    pixels = image_tree(tmp_path)
    ImageFolder().load(tmp_path)
    for path in tmp_path.glob("*/*/*.png"):
        stat = path.stat()
        path.write_bytes(b"x" * stat.st_size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    dataset = ImageFolder().load(tmp_path)
    assert torch.equal(dataset.train.inputs, with_channels_first(pixels["train"]))
    assert dataset.classes == ("ant", "bee", "cat")


def test_changed_image_is_decoded_again(tmp_path):
    """Another image of the same name: the new pixels."""
    image_tree(tmp_path)
    ImageFolder().load(tmp_path)
    path, pixels = tmp_path / "train" / "bee" / "002.png", random_pixels(6, 5, seed=99)
    save(path, pixels)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    assert torch.equal(ImageFolder().load(tmp_path).train.inputs[2, 0], torch.from_numpy(pixels))


def test_added_moved_and_removed_images_are_noticed(tmp_path):
    """Labels follow the folders: one more image, one moved to another class, one gone."""
    image_tree(tmp_path)
    ImageFolder().load(tmp_path)
    save(tmp_path / "train" / "ant" / "new.png", random_pixels(6, 5))
    assert ImageFolder().load(tmp_path).train.targets.tolist() == [0, 0, 0, 1, 1, 2, 2]
    (tmp_path / "train" / "ant" / "new.png").rename(tmp_path / "train" / "bee" / "new.png")
    assert ImageFolder().load(tmp_path).train.targets.tolist() == [0, 0, 1, 1, 1, 2, 2]
    (tmp_path / "train" / "bee" / "new.png").unlink()
    assert ImageFolder().load(tmp_path).train.targets.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_class_folder_without_images_is_a_class(tmp_path):
    """It counts for the labels, and one that is added after the first load is noticed though no file changed."""
    image_tree(tmp_path)
    ImageFolder().load(tmp_path)
    for part in ("train", "test"):
        (tmp_path / part / "auk").mkdir()
    dataset = ImageFolder().load(tmp_path)
    assert dataset.classes == ("ant", "auk", "bee", "cat")
    assert dataset.train.targets.tolist() == [0, 0, 2, 2, 3, 3]


def test_links_moved_to_another_class_are_noticed(tmp_path):
    """A tree of symbolic links into one folder of images: a link moved from class a to class b changes its label."""
    for i in range(3):
        save(tmp_path / "store" / f"{i}.png", random_pixels(4, 4, seed=i))
    for path in ("train/a/0.png", "train/a/1.png", "train/b/2.png", "test/a/0.png", "test/b/2.png"):
        link = tmp_path / "tree" / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(tmp_path / "store" / link.name)
    assert ImageFolder().load(tmp_path / "tree").train.targets.tolist() == [0, 0, 1]
    (tmp_path / "tree" / "train" / "a" / "1.png").rename(tmp_path / "tree" / "train" / "b" / "1.png")
    assert ImageFolder().load(tmp_path / "tree").train.targets.tolist() == [0, 1, 1]


def test_trees_of_one_name_do_not_share_a_cache(tmp_path):
    """Two roots called "images": each keeps its pixels."""
    first, second = image_tree(tmp_path / "x" / "images"), image_tree(tmp_path / "y" / "images", classes=("dog", "eel", "fox"))
    assert ImageFolder().load(tmp_path / "x" / "images").classes == ("ant", "bee", "cat")
    dataset = ImageFolder().load(tmp_path / "y" / "images")
    assert dataset.classes == ("dog", "eel", "fox")
    assert torch.equal(dataset.train.inputs, with_channels_first(second["train"]))
    assert (first["train"] == second["train"]).all()
