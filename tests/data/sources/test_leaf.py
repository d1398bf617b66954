"""JSON files as LEAF's preprocess.sh leaves them."""

import json
import os
import pickle
import string

import joblib
import numpy as np
import pytest
import torch

from fl_lightning.data import FederatedDataModule, Leaf, Natural
from fl_lightning.data.sources import leaf


def user(seed, count, features=784, classes=62):
    """Grey values (count, features) and labels of one writer."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, features), dtype=np.uint8), rng.integers(0, classes, count).tolist()


def write(path, users, samples=lambda pixels: (pixels / 255).tolist()):
    """One file of LEAF: user name -> (pixels, labels); values are k / 255 as Python writes a double."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(labels) for _, labels in users.values()],
        "user_data": {name: {"x": samples(pixels), "y": labels} for name, (pixels, labels) in users.items()},
    }
    path.write_text(json.dumps(content))


@pytest.fixture
def femnist(tmp_path):
    """Three writers in two files a part, in no order; part -> writer -> (pixels, labels)."""
    parts = {
        part: {name: user(seed + offset, count) for seed, (name, count) in enumerate(sizes)}
        for part, offset, sizes in (
            ("train", 0, (("f3_2", 3), ("f1_9", 1), ("f3_10", 4))),
            ("test", 9, (("f3_10", 2), ("f3_2", 1), ("f1_9", 1))),
        )
    }
    for part, users in parts.items():
        names = list(users)
        write(tmp_path / part / f"all_data_0_niid_0_keep_0_{part}_9.json", {name: users[name] for name in names[:1]})
        write(tmp_path / part / f"all_data_1_niid_0_keep_0_{part}_9.json", {name: users[name] for name in names[1:]})
    (tmp_path / "train" / "notes.txt").write_text("not read")
    return parts


def test_grey_values_come_back_bit_for_bit(tmp_path, femnist):
    """k / 255 is k again; files by name, users as they stand in them; 28x28, line by line."""
    dataset = Leaf().load(tmp_path)
    for part, users in femnist.items():
        samples = getattr(dataset, part)
        assert samples.inputs.dtype == torch.uint8
        assert samples.inputs.shape[1:] == (1, 28, 28)
        assert samples.inputs.numpy().reshape(-1, 784).tolist() == [
            row for pixels, _ in users.values() for row in pixels.tolist()
        ]
        assert samples.targets.tolist() == [label for _, labels in users.values() for label in labels]


def test_all_256_grey_values_come_back(tmp_path):
    """Also as 32 bit floats print, with 7 digits."""
    values = (np.arange(784) % 256).astype(np.uint8)[None]
    for part in ("train", "test"):
        write(tmp_path / part / "a.json", {"u": (values, [0])})
        write(tmp_path / "short" / part / "a.json", {"u": (values, [0])}, lambda pixels: np.round(pixels / 255, 7).tolist())
    for root in (tmp_path, tmp_path / "short"):
        assert Leaf().load(root).train.inputs.flatten().tolist() == values[0].tolist()


def test_users_in_the_order_of_their_names_are_owners(tmp_path, femnist):
    """f1_9 is 0, f3_10 is 1, f3_2 is 2, as text; samples stand as in the files: 3 of f3_2, 1 of f1_9, 4 of f3_10."""
    assert Leaf().load(tmp_path).owners.tolist() == [2, 2, 2, 0, 1, 1, 1, 1]


def test_femnist_has_62_classes(tmp_path, femnist):
    """Digits, capitals, small letters, in this order, whatever labels occur."""
    classes = Leaf().load(tmp_path).classes
    assert classes == tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
    assert (len(classes), classes[10], classes[36], classes[61]) == (62, "A", "a", "z")


def test_whole_numbers_of_images_are_grey(tmp_path):
    """Black and white pixels, which some writers of JSON write as 0 and 1."""
    pixels = np.random.default_rng(0).integers(0, 2, (3, 784))
    for part in ("train", "test"):
        write(tmp_path / part / "a.json", {"0": (pixels, [0, 2, 1])}, lambda values: values.tolist())
    inputs = Leaf().load(tmp_path).train.inputs
    assert (inputs.dtype, inputs.shape) == (torch.uint8, (3, 1, 28, 28))
    assert inputs.flatten(1).tolist() == (255 * pixels).tolist()


def test_other_samples_are_vectors(tmp_path):
    """LEAF's synthetic set: 60 floats a sample, as many classes as the largest label of either part says."""
    vectors = np.random.default_rng(0).normal(size=(5, 60))
    write(tmp_path / "train" / "a.json", {"0": (vectors[:2], [0, 2]), "1": (vectors[2:3], [1])}, lambda values: values.tolist())
    write(tmp_path / "test" / "a.json", {"0": (vectors[3:4], [4]), "1": (vectors[4:], [1])}, lambda values: values.tolist())
    dataset = Leaf().load(tmp_path)
    torch.testing.assert_close(dataset.train.inputs, torch.from_numpy(vectors[:3]).float(), rtol=0, atol=0)
    torch.testing.assert_close(dataset.test.inputs, torch.from_numpy(vectors[3:]).float(), rtol=0, atol=0)
    assert dataset.classes == ("0", "1", "2", "3", "4")
    assert dataset.owners.tolist() == [0, 0, 1]


@pytest.mark.parametrize("where", ["train", "test"])
def test_one_value_that_is_not_grey_makes_all_floats(tmp_path, where):
    """Standardised images, or one user alone that has others: nobody's values are rounded."""
    parts = {part: {"a": user(0, 2, classes=10), "b": user(1, 2, classes=10)} for part in ("train", "test")}
    for part, users in parts.items():
        write(tmp_path / part / "a.json", users)
    content = json.loads((tmp_path / where / "a.json").read_text())
    content["user_data"]["b"]["x"][1][5] = -0.42
    (tmp_path / where / "a.json").write_text(json.dumps(content))
    dataset = Leaf().load(tmp_path)
    for part, users in parts.items():
        expected = torch.from_numpy(np.concatenate([pixels for pixels, _ in users.values()]) / 255).float()
        if part == where:
            expected[3, 5] = -0.42
        actual = getattr(dataset, part).inputs
        assert actual.shape == (4, 1, 28, 28)
        torch.testing.assert_close(actual.flatten(1), expected, rtol=0, atol=1e-7)


def test_users_are_the_clients_of_the_federation(tmp_path, femnist):
    """source leaf with the partition Natural: each client holds exactly what one writer wrote."""
    data = FederatedDataModule("leaf", str(tmp_path), num_clients=3, clients_per_round=1, partition=Natural(), val_fraction=0.0)
    data.setup()
    held = {tuple(sorted(data.shards.train_indices(client).tolist())) for client in range(3)}
    assert held == {(0, 1, 2), (3,), (4, 5, 6, 7)}
    assert data.input_shape == (1, 28, 28)


def test_a_clients_test_samples_are_its_writers(tmp_path):
    """In the order of the clients, whatever the order of the files; of a writer without training samples they are nobody's."""
    write(tmp_path / "train" / "a.json", {"a": user(0, 2), "b": user(1, 4), "c": user(2, 3)})
    write(tmp_path / "test" / "a.json", {"c": user(2, 1), "d": user(4, 2), "a": user(0, 3)})
    data = FederatedDataModule("leaf", str(tmp_path), num_clients=3, clients_per_round=1, partition=Natural(), val_fraction=0.0)
    data.setup()
    tests = data.evaluation.client_tests
    assert tests.kind == "held_out"
    assert [tests.of_client(client).tolist() for client in range(3)] == [[3, 4, 5], [], [0]]


def test_test_users_may_be_others(tmp_path):
    """LEAF's -t user: the test part is a common test set, whoever wrote it."""
    write(tmp_path / "train" / "a.json", {"a": user(0, 2), "b": user(1, 2)})
    write(tmp_path / "test" / "a.json", {"c": user(2, 3)})
    dataset = Leaf().load(tmp_path)
    assert (len(dataset.test), dataset.owners.tolist(), dataset.test_owners) == (3, [0, 0, 1, 1], None)


def test_files_are_parsed_once_and_changes_are_noticed(tmp_path, femnist, monkeypatch):
    """A second load reads no JSON; a file that is changed, added or gone is seen."""
    first = Leaf().load(tmp_path)
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("parsed although it lies in the cache"))
    again = Leaf().load(tmp_path)
    assert torch.equal(again.train.inputs, first.train.inputs)
    assert torch.equal(again.owners, first.owners)
    monkeypatch.setattr(json, "loads", loads)
    write(tmp_path / "train" / "more.json", {"new": user(5, 2)})
    assert len(Leaf().load(tmp_path).train) == 10
    other = user(6, 2)
    write(tmp_path / "train" / "more.json", {"new": other})
    os.utime(tmp_path / "train" / "more.json", ns=(0, 10**18))
    assert Leaf().load(tmp_path).train.inputs[-2:].flatten(1).tolist() == other[0].tolist()
    (tmp_path / "train" / "more.json").unlink()
    assert len(Leaf().load(tmp_path).train) == 8


def test_many_files_at_once(tmp_path, femnist, monkeypatch):
    """Large sets are parsed on all cores, here by threads, which start at once: the same data; the work can be sent away."""
    expected = Leaf().load(tmp_path)
    monkeypatch.setattr(leaf, "_SERIAL_BYTES", 0)
    monkeypatch.setenv("FL_LIGHTNING_CACHE", str(tmp_path / "other cache"))
    with joblib.parallel_config(backend="threading"):
        actual = Leaf().load(tmp_path)
    assert torch.equal(actual.train.inputs, expected.train.inputs)
    assert torch.equal(actual.test.targets, expected.test.targets)
    assert torch.equal(actual.owners, expected.owners)
    assert pickle.loads(pickle.dumps(leaf._read_users)) is leaf._read_users


GOOD = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[0.0] * 784], "y": [1]}}}


def with_data(**data):
    return {**GOOD, "user_data": {"a": {**GOOD["user_data"]["a"], **data}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a JSON file of LEAF"),
        ("", "is not a JSON file of LEAF"),
        ("[]", "is not a JSON file of LEAF"),
        ("3", "is not a JSON file of LEAF"),
        ({"users": ["a"]}, "is not a JSON file of LEAF with users and user_data"),
        ({"users": ["a", "b"], "user_data": GOOD["user_data"]}, "is not a JSON file of LEAF"),
        ({"users": ["a"], "user_data": {"a": [1]}}, "is not a JSON file of LEAF"),
        ({"users": ["a"], "user_data": {"a": None}}, "is not a JSON file of LEAF"),
        (with_data(x=[], y=[]), "gives user a 0 samples and 0 labels"),
        (with_data(y=[1, 2]), "gives user a 1 samples and 2 labels: correct the file"),
        (with_data(x=3), "user a"),
        (with_data(y=["1"]), "gives user a labels of type <U1"),
        (with_data(y=[1.5]), "gives user a labels of type float64"),
        (with_data(y=[[1]]), "user a"),
        (with_data(y=[None]), "user a"),
        (with_data(x=[0.5]), r"gives user a values of type float64 and shape \(1,\)"),
        (with_data(x=[[[0.5]]]), r"gives user a values of type float64 and shape \(1, 1, 1\)"),
        (with_data(x=["the text of Shakespeare"]), "gives user a values of type <U23"),
        (with_data(x=[[0.0, 1.0], [0.0]], y=[0, 1]), "gives user a samples that are not vectors of one length"),
        (with_data(x=[[None] * 784]), "gives user a values of type object"),
        (with_data(x=[[1e400] * 784]), "gives user a a value that is not a finite number"),
        (with_data(x=[[{}] * 784]), "gives user a values of type object"),
        (with_data(y=[-1]), "label -1"),
        (with_data(x=[[0.0] * 60]), "data.root: user z has samples of 784 values, user a of 60: keep only the files"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
@pytest.mark.parametrize("part", ["train", "test"])
def test_broken_files_are_named(tmp_path, part, content, message):
    """File and user as far as known, in one line; nothing is kept."""
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text(
            json.dumps({**GOOD, "users": ["z"], "user_data": {"z": GOOD["user_data"]["a"]}})
        )
    path = tmp_path / part / "b.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=message) as caught:
        Leaf().load(tmp_path)
    assert str(caught.value).startswith("data.")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("files", [("a.json", "b.json"), ("a.json",)])
def test_a_user_that_stands_there_twice_is_named(tmp_path, files):
    """In two files, as two runs of LEAF leave them, or twice in one."""
    for name in files:
        write(tmp_path / "train" / name, {"w1": user(0, 2), "w2" + name * (len(files) > 1): user(1, 2)})
    write(tmp_path / "test" / "a.json", {"w1": user(2, 1)})
    if len(files) == 1:
        content = json.loads((tmp_path / "train" / "a.json").read_text())
        (tmp_path / "train" / "a.json").write_text(
            json.dumps({**content, "users": ["w1", "w2", "w1"], "num_samples": [2, 2, 2]})
        )
    with pytest.raises(ValueError, match=r"data\.root: .*w1.*twice in .*train") as caught:
        Leaf().load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("empty", ["train", "test"])
def test_files_without_users_are_named(tmp_path, empty):
    """Too many samples asked of a user leave none."""
    for part in ("train", "test"):
        write(tmp_path / part / "a.json", {} if part == empty else {"a": user(0, 2)})
    with pytest.raises(ValueError, match=rf"^data\.root: the \.json files in {tmp_path}/{empty} name no user: run LEAF's"):
        Leaf().load(tmp_path)


@pytest.mark.parametrize("missing", ["train", "test", "both"])
def test_a_folder_without_json_files_is_named(tmp_path, femnist, missing):
    """The folder that holds none, and what to run."""
    for part in ("train", "test") if missing == "both" else (missing,):
        for path in (tmp_path / part).glob("*.json"):
            path.unlink()
    folder = tmp_path / ("train" if missing == "both" else missing)
    with pytest.raises(FileNotFoundError, match=rf"data\.root is {tmp_path}, but {folder} holds no \.json file: run LEAF"):
        Leaf().load(tmp_path)


def test_a_missing_root_is_named(tmp_path):
    """As a folder without files."""
    with pytest.raises(FileNotFoundError, match=rf"data\.root is {tmp_path}/no, but {tmp_path}/no/train holds no \.json file"):
        Leaf().load(tmp_path / "no")
