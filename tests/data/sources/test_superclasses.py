"""Classes put together in superclasses: CIFAR-100's as its files have them, and users' tables."""

import csv
import os
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from fl_lightning.data import Arrays, FederatedDataModule, Superclasses
from fl_lightning.objectives import Regression

REAL_DATA = os.environ.get("FL_LIGHTNING_DATA")

# The file "meta" of CIFAR-100, and the pairs of fine and coarse label in its file "train".
FINE = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
    forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
    mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
    sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
    wolf woman worm
""".split()
COARSE = """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices household_furniture insects
    large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores medium_mammals
    non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2
""".split()
COARSE_OF_FINE = [
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10),
    *(12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16),
    *(12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
]


def hundred():
    """A sample of each class for training, in falling order, and one for test; the input is the label."""
    labels = torch.arange(100)
    return Arrays(labels.flip(0).float()[:, None], labels.flip(0), labels.float()[:, None], labels, classes=FINE)


def test_cifar100_has_its_coarse_labels():
    """Label by label those of the files, the names in their order; inputs stay."""
    dataset = Superclasses(hundred()).load(Path())
    assert dataset.classes == tuple(COARSE)
    assert dataset.test.targets.tolist() == COARSE_OF_FINE
    assert dataset.train.targets.tolist() == COARSE_OF_FINE[::-1]
    assert dataset.train.inputs[:, 0].tolist() == list(range(99, -1, -1))
    assert dataset.test.targets.bincount().tolist() == [5] * 20


@pytest.mark.skipif(not REAL_DATA, reason="FL_LIGHTNING_DATA is unset: it names the folder of cifar100_superclasses.csv")
def test_the_table_is_that_of_the_data():
    """The same pairs as in the table next to the data, and every fine class there."""
    with open(Path(REAL_DATA) / "cifar100_superclasses.csv", newline="") as file:
        given = {row["class"]: row["superclass"] for row in csv.DictReader(file)}
    with open(resources.files("fl_lightning.data") / "cifar100_superclasses.csv", newline="") as file:
        ours = {row["class"]: row["superclass"] for row in csv.DictReader(file)}
    assert ours == given
    assert sorted(given) == FINE


@pytest.fixture
def table(tmp_path):
    def write(*lines):
        path = tmp_path / "table.csv"
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return write


def three(owners=None):
    return Arrays(np.zeros((4, 1)), np.array([0, 2, 1, 2]), classes=["cat", "oak", "dog"], owners=owners)


def test_a_table_of_ones_own(table):
    """Lines in any order; superclasses in alphabetical order: animal 0, plant 1; no test set, natural clients stay."""
    path = table("superclass,class", "plant,oak", "animal,dog", "animal,cat")
    dataset = Superclasses(three(np.array([1, 0, 0, 1])), path).load(Path())
    assert dataset.classes == ("animal", "plant")
    assert dataset.train.targets.tolist() == [0, 0, 1, 0]
    assert len(dataset.test) == 0
    assert dataset.owners.tolist() == [1, 0, 0, 1]


def test_a_source_without_classes_is_refused(table):
    source = Arrays(np.zeros((2, 1)), np.array([0.5, 1.5]), objective=Regression())
    with pytest.raises(ValueError, match=r"^data.source is Superclasses, which goes by classes, but data.source.source has"):
        Superclasses(source, table("class,superclass")).load(Path())


def test_a_source_by_name_serves_a_data_module(table):
    """Digits, even and odd: the labels of the module are those of the digits modulo 2."""
    path = table("class,superclass", *(f"{digit},{'odd' if digit % 2 else 'even'}" for digit in range(10)))
    digits, parity = (
        FederatedDataModule(source, num_clients=2, clients_per_round=1) for source in ("digits", Superclasses("digits", path))
    )
    for data in (digits, parity):
        data.setup()
    assert parity.classes == ("even", "odd")
    assert torch.equal(parity.train_set.targets, digits.train_set.targets % 2)
    assert torch.equal(parity.test_set.targets, digits.test_set.targets % 2)
    assert torch.equal(parity.train_set.inputs, digits.train_set.inputs)


GOOD = ["class,superclass", "cat,animal", "dog,animal", "oak,plant"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [*GOOD, "elm,plant"],
            "line 5: elm is not a class of data.source, whose classes are cat, oak, dog: give data.source.table",
        ),
        ([*GOOD, "cat,plant"], "line 5: cat is in line 2 too: delete one"),
        (GOOD[:-1], " has no line for the class oak of data.source: add one"),
        ([*GOOD[:-1], "oak,"], "line 4: oak has no superclass: name one"),
        (["class,coarse", "cat,animal"], "line 1: the column superclass is missing"),
        (["class,superclass,weight", "cat,animal,1"], "line 1: the column weight is not known"),
        ([*GOOD[:2], "dog", GOOD[3]], "line 3: 1 values for the 2 columns class, superclass"),
        ([], "line 1: the column class is missing"),
    ],
    ids=lambda value: value[:22] if isinstance(value, str) else "",
)
def test_mistakes_name_file_and_line(table, lines, message):
    """In one line."""
    path = table(*lines)
    with pytest.raises(ValueError, match=rf"^data\.source\.table: {path},? ?{message}") as caught:
        Superclasses(three(), path).load(Path())
    assert "\n" not in str(caught.value)


def test_a_missing_table_is_named(tmp_path):
    """Key, file and what it holds."""
    with pytest.raises(
        FileNotFoundError, match=rf"data\.source\.table is {tmp_path}/no\.csv, .*: give a CSV file with the col"
    ):
        Superclasses(three(), f"{tmp_path}/no.csv").load(Path())


def test_the_table_of_cifar100_does_not_fit_other_sets():
    """Digits have no apples."""
    with pytest.raises(
        ValueError, match=r"cifar100_superclasses\.csv, line 2: apple is not a class of data\.source, whose classes are 0, 1"
    ):
        Superclasses("digits").load(Path())


def test_an_unknown_source_is_named():
    """When it is made."""
    with pytest.raises(ValueError, match=r"data\.source\.source is 'CIFAR1000', .*did you mean CIFAR100\?"):
        Superclasses("CIFAR1000")
