"""A CSV file that says what each image shows, whose it is and which part it belongs to."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fl_lightning.data import FederatedDataModule, ImageFolder, Natural

HEADER = "path,label,client,split"


@pytest.fixture
def images(tmp_path):
    """Ten grey images ``images/00.png`` to ``09.png``, in one folder and one below; the i-th is 10 i + 1 everywhere."""
    root = tmp_path / "images"
    (root / "more").mkdir(parents=True)
    for i in range(10):
        Image.fromarray(np.full((3, 4), 10 * i + 1, dtype=np.uint8)).save(root / ("more" if i > 7 else "") / f"{i:02}.png")
    return root


@pytest.fixture
def index(tmp_path):
    """Write lines to a CSV file."""

    def write(*lines, encoding="utf-8", newline="\n"):
        path = tmp_path / "index.csv"
        path.write_bytes(newline.join(lines).encode(encoding))
        return str(path)

    return write


def shown(samples):
    """Which of the fixture's images these are."""
    assert (samples.inputs.flatten(1).amin(1) == samples.inputs.flatten(1).amax(1)).all()
    return [(int(value) - 1) // 10 for value in samples.inputs[:, 0, 0, 0]]


def test_index_says_everything(images, index):
    """Order of lines; labels and clients in alphabetical order of their names, whatever comes first in the file."""
    path = index(
        HEADER,
        "03.png,wasp,zoe,train",
        "more/08.png,ant,bob,train",
        "01.png,bee,zoe,test",
        "00.png,bee,amy,train",
        "05.png,wasp,,test",
        "02.png,ant,zoe,train",
    )
    dataset = ImageFolder(path).load(images)
    assert dataset.classes == ("ant", "bee", "wasp")
    assert shown(dataset.train) == [3, 8, 0, 2]
    assert dataset.train.targets.tolist() == [2, 0, 1, 0]
    assert dataset.owners.tolist() == [2, 1, 0, 2]  # amy, bob, zoe
    assert shown(dataset.test) == [1, 5]
    assert dataset.test.targets.tolist() == [1, 2]
    assert dataset.test_owners.tolist() == [2, -1]


def test_paths_and_labels_are_enough(images, index):
    """Without the columns all images are for training and nobody's; columns may stand in any order."""
    dataset = ImageFolder(index("label,path", "b,01.png", "a,00.png")).load(images)
    assert shown(dataset.train) == [1, 0]
    assert dataset.train.targets.tolist() == [1, 0]
    assert dataset.owners is None
    assert dataset.test.inputs.shape == (0, 1, 3, 4)


def test_whole_numbers_are_sorted_by_value(images, index):
    """Labels 9, 10, 2 and clients 100, 20, 3: by value, not as text; and what is no number makes all of them text."""
    dataset = ImageFolder(index("path,label,client", "00.png,10,100", "01.png,9,20", "02.png,2,3")).load(images)
    assert dataset.classes == ("2", "9", "10")
    assert dataset.train.targets.tolist() == [2, 1, 0]
    assert dataset.owners.tolist() == [2, 1, 0]
    dataset = ImageFolder(index("path,label", "00.png,10", "01.png,9", "02.png,x")).load(images)
    assert dataset.classes == ("10", "9", "x")


def test_names_of_equal_value_have_one_order(images, index):
    """ "1", "01" and "001" are three classes, always in the same order: "001", "01", "1"."""
    dataset = ImageFolder(index("path,label", "00.png,1", "01.png,001", "02.png,01")).load(images)
    assert dataset.classes == ("001", "01", "1")


def test_a_class_may_have_test_images_alone(images, index):
    """It is a class like the others."""
    dataset = ImageFolder(index("path,label,split", "00.png,b,train", "01.png,a,test")).load(images)
    assert dataset.classes == ("a", "b")
    assert (dataset.train.targets.tolist(), dataset.test.targets.tolist()) == ([1], [0])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_index_as_excel_saves_it(images, index, encoding, newline):
    """A byte order mark, Windows' line ends, quotes around a comma, spaces around values, empty lines, a name in UTF-8."""
    Image.fromarray(np.full((3, 4), 31, dtype=np.uint8)).save(images / "a, b.png")
    path = index("path,label", "", '"a, b.png", Bär', "01.png ,Äffin", "", encoding=encoding, newline=newline)
    dataset = ImageFolder(path).load(images)
    assert dataset.classes == ("Bär", "Äffin")
    assert shown(dataset.train) == [3, 1]


def test_index_is_what_the_csv_module_writes(images, tmp_path):
    """Values with quotes and commas go in and come out."""
    name = 'a "very", very long name'
    with open(tmp_path / "i.csv", "w", newline="") as file:
        csv.writer(file).writerows([["path", "label"], ["00.png", name], ["01.png", "b"]])
    assert ImageFolder(str(tmp_path / "i.csv")).load(images).classes == (name, "b")


MISTAKES = {
    "no column": (["path,client", "00.png,a"], 1, "the column label is missing: the file must have the columns path, label"),
    "unknown column": (["path,label,weight", "00.png,a,1"], 1, "the column weight is not known.* and may have client, split"),
    "a column twice": (["path,label,label", "00.png,a,b"], 1, "the column label is there twice"),
    "empty file": ([""], 1, "the column path is missing"),
    "semicolons": (["path;label", "00.png;a"], 1, "the column path is missing"),
    "too few": (["path,label,split", "00.png,a,train", "01.png,a"], 3, "2 values for the 3 columns path, label, split"),
    "too many": (["path,label", "00.png,a,b"], 2, "3 values for the 2 columns path, label: correct the line"),
    "no file": (["path,label", "00.png,a", "no.png,a"], 3, "no.png is not a file under data.root .*images: correct the path"),
    "a folder": (["path,label", "more,a"], 2, "more is not a file under data.root"),
    "no path": (["path,label", ",a"], 2, "the path is not a file under data.root"),
    "twice": (["path,label", "00.png,a", "01.png,a", "00.png,b"], 4, "00.png is in line 2 too: delete one"),
    "split": (["path,label,split", "00.png,a,train", "01.png,a,val"], 3, "split is 'val', must be train or test"),
    "no split": (["path,label,split", "00.png,a,train", "01.png,a,"], 3, "split is '', must be train or test"),
    "no label": (["path,label", "00.png,a", "01.png, "], 3, "01.png has no label: give it one"),
    "no client": (["path,label,client", "00.png,a,amy", "01.png,a,"], 3, "01.png is a training image without a client"),
    "test alone": (
        [HEADER, "00.png,a,amy,train", "01.png,a,bob,test", "02.png,a,cid,test", "03.png,a,bob,test"],
        3,
        "client bob has no training image: give it one",
    ),
    "open quote": (["path,label", "00.png,a", '01.png,"a', "02.png,a"], 3, "no CSV"),
    "quote inside": (["path,label", "00.png,a", '"01.png"x,a', "02.png,a"], 3, "no CSV"),
    "behind an empty line": (["path,label", "00.png,a", "", '01.png,"a', 'a"', "02.png"], 6, "1 values for the 2 columns"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_name_file_and_line(images, index, case):
    """File, line, what is wrong and the cure, in one line; the line is where the row begins."""
    lines, number, message = MISTAKES[case]
    path = index(*lines)
    with pytest.raises(ValueError, match=rf"^data\.source\.index: {path}, line {number}: .*{message}") as caught:
        ImageFolder(path).load(images)
    assert "\n" not in str(caught.value)


def test_a_file_in_latin_1_is_named_with_the_line(images, index):
    """The byte of an umlaut is no UTF-8; it is in line 4, far from the beginning of what is read at once."""
    path = index("path,label", "00.png,a", "01.png,a", "02.png,Bär", encoding="latin-1")
    with pytest.raises(ValueError, match=rf"^data\.source\.index: {path}, line 4: no UTF-8 .*save the file as UTF-8"):
        ImageFolder(path).load(images)


def test_an_index_without_training_images_is_named(images, index):
    """A header alone, and test images alone."""
    for lines in (["path,label"], ["path,label,split", "00.png,a,test"]):
        path = index(*lines)
        with pytest.raises(ValueError, match=rf"data\.source\.index is {path}, which names no training image: add lines"):
            ImageFolder(path).load(images)


def test_a_missing_index_or_root_is_named(images, tmp_path, index):
    """Each by another key."""
    with pytest.raises(FileNotFoundError, match=rf"data\.source\.index is {tmp_path}/no\.csv, which does not exist: give"):
        ImageFolder(f"{tmp_path}/no.csv").load(images)
    with pytest.raises(FileNotFoundError, match=rf"data\.root is {tmp_path}/no, but the folder .* does not exist"):
        ImageFolder(index("path,label", "00.png,a")).load(tmp_path / "no")


def test_unreadable_and_unequal_images_are_named_by_their_lines(images, index):
    """File and line instead of a path alone."""
    (images / "01.png").write_bytes(b"no image")
    path = index("path,label", "00.png,a", "01.png,a")
    named = rf"^data\.source\.index: {path}, line 3: 01\.png"
    with pytest.raises(ValueError, match=rf"{named} cannot be read as an image .*replace or delete it"):
        ImageFolder(path).load(images)
    Image.fromarray(np.zeros((5, 7), dtype=np.uint8)).save(images / "01.png")
    with pytest.raises(ValueError, match=rf"{named} has 5x7 pixels, the first image 3x4: give .*size"):
        ImageFolder(path).load(images)
    assert ImageFolder(path, size=3).load(images).train.inputs.shape == (2, 1, 3, 3)


def test_paths_may_be_absolute(images, index):
    """As some tools write them, and with detours, as long as they stay under the root."""
    path = index("path,label", f"{images}/02.png,a", f"../{images.name}/05.png,b")
    assert shown(ImageFolder(path).load(images).train) == [2, 5]


def test_the_root_may_be_relative(images, index, monkeypatch):
    """The working folder itself, and one below it."""
    for folder, root in ((images, "."), (images.parent, images.name)):
        monkeypatch.chdir(folder)
        assert shown(ImageFolder(index("path,label", "02.png,a", "./03.png,b")).load(Path(root)).train) == [2, 3]


def test_changed_index_is_noticed_and_an_equal_one_decodes_nothing(images, index, no_more_decoding):
    """Labels, clients and parts are those of the file as it is now; another file that says the same shares the cache."""
    lines = ["00.png,a,amy,train", "01.png,b,bob,train", "02.png,b,amy,test"]
    first = ImageFolder(index(HEADER, *lines)).load(images)
    changed = {
        "label": ["00.png,b,amy,train", *lines[1:]],
        "client": ["00.png,a,bob,train", "01.png,b,amy,train", lines[2]],
        "part": [*lines[:2], "02.png,b,amy,train"],
        "order": [lines[1], lines[0], lines[2]],
    }
    label, client, part, order = (ImageFolder(index(HEADER, *what)).load(images) for what in changed.values())
    assert (first.train.targets.tolist(), label.train.targets.tolist()) == ([0, 1], [0, 0])
    assert label.classes == ("b",)
    assert (first.owners.tolist(), client.owners.tolist()) == ([0, 1], [1, 0])
    assert (len(first.test), len(part.test), len(part.train)) == (1, 0, 3)
    assert shown(order.train) == [1, 0]
    no_more_decoding()
    again = ImageFolder(index(HEADER, *lines, "")).load(images)
    assert torch.equal(again.train.inputs, first.train.inputs)
    assert torch.equal(again.owners, first.owners)
    assert again.classes == ("a", "b")


def test_changed_image_is_noticed(images, index):
    """Of the same name and size in bytes."""
    path = index("path,label", "00.png,a", "01.png,b")
    ImageFolder(path).load(images)
    stamp = (images / "00.png").stat().st_mtime_ns
    Image.fromarray(np.full((3, 4), 41, dtype=np.uint8)).save(images / "00.png")
    os.utime(images / "00.png", ns=(0, stamp + 10**9))
    assert shown(ImageFolder(path).load(images).train) == [4, 1]


def test_clients_of_the_index_are_those_of_the_federation(images, index):
    """Partition Natural: each client trains on exactly the images of one name."""
    lines = [f"0{i}.png,{'ab'[i % 2]},{'amy' if i < 5 else 'bob'}" for i in range(8)]
    source = ImageFolder(index("path,label,client", *lines))
    data = FederatedDataModule(source, str(images), num_clients=2, clients_per_round=1, partition=Natural(), val_fraction=0.0)
    data.setup()
    held = {tuple(sorted(data.shards.train_indices(client).tolist())) for client in range(2)}
    assert held == {(0, 1, 2, 3, 4), (5, 6, 7)}


def test_index_relative_to_the_working_folder(images, index, monkeypatch):
    """Paths in it are relative to data.root all the same."""
    index("path,label", "04.png,a")
    monkeypatch.chdir(images.parent)
    assert shown(ImageFolder("index.csv").load(Path("images")).train) == [4]
