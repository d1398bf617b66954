"""Federations from arrays, data frames and torch's datasets."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fl_lightning.data import IID, CenterCrop, from_arrays, from_dataset


def shards(data):
    """Each client's sample indices, sorted."""
    data.setup()
    return [sorted(data.shards.train_indices(client).tolist()) for client in range(data.num_clients)]


X, Y = torch.arange(10.0).reshape(5, 2), torch.tensor([0, 1, 0, 1, 2])


def test_from_arrays_runs_the_example_of_its_docstring():
    """Client 0 alone in round 1, both in round 2, full batches, nothing validated, the lists as given."""
    data = from_arrays(X, Y, clients=[[0, 1], [2, 3, 4]], cohorts=[[0], [0, 1]], batch_size=None)
    assert shards(data) == [[0, 1], [2, 3, 4]]
    assert [data.cohort(1), data.cohort(2)] == [[0], [0, 1]]
    (batch,) = data.client_batches().batches(1, 2, 1)
    assert sorted(batch.inputs[:, 0].tolist()) == [4.0, 6.0, 8.0]
    assert data.label_counts.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert not data.has_validation
    assert not data.evaluation.has_test
    assert data.classes == ("0", "1", "2")


@pytest.mark.parametrize("setting", [{"partition": IID()}, {"source": "digits"}])
def test_from_arrays_makes_source_and_partition(setting):
    """Its arguments are both."""
    with pytest.raises(ValueError, match=r"is given, but from_arrays makes it of its arguments: use FederatedDataModule\("):
        from_arrays(X, Y, [[0, 1], [2, 3]], **setting)


def test_from_arrays_defaults_to_all_clients_every_round():
    """Two lists are two clients, both in each cohort; settings can say otherwise."""
    assert from_arrays(X, Y, [[0, 1], [2, 3]]).cohort(7) == [0, 1]
    assert len(from_arrays(X, Y, [[0, 1], [2, 3]], clients_per_round=1).cohort(7)) == 1


@pytest.mark.parametrize(
    "clients",
    [
        {"zurich": [1, 3], "aachen": [0, 2, 4]},
        [[1, 3], [0, 2, 4]],
        ["b", "a", "b", "a", "b"],
        np.array(["b", "a", "b", "a", "b"], dtype=object),
        (7, -2, 7, -2, 7),
        torch.tensor([7, -2, 7, -2, 7]),
    ],
    ids=lambda clients: type(clients).__name__,
)
def test_clients_have_names(clients):
    """Lists in their order; the clients of the samples in that of their names or numbers."""
    assert shards(from_arrays(X, Y, clients)) == [[1, 3], [0, 2, 4]]


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "clients is empty"),
        ("hospital", r"^clients is 'hospital', must name the client of every sample: .* train\['hospital'\]$"),
        (["a", "b"], "clients names the client of 2 samples, there are 5"),
        ([0.5, 1, 1, 0, 1], "clients names .*0.5.* for sample 0, must be a whole number or a text"),
        (np.array(["a", None, "a", "b", "b"], dtype=object), "clients names None for sample 1"),
        ([[0, 1], [9]], "names sample 9"),
        ({"a": [0, 1], "b": [1]}, "names sample 1 more than once"),
        ([[True, True, False, False, False], [False, False, True, True, True]], "names samples as bool"),
    ],
)
def test_clients_that_are_none_are_refused(clients, message):
    """In one line."""
    with pytest.raises(ValueError, match=message):
        from_arrays(X, Y, clients).setup()


class Frame:
    """What a data frame is to NumPy; pandas is no dependency. A column of it is one as well."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self):
        return iter(self.values)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self.values, dtype)


def test_data_frames_are_arrays():
    """Features, labels and who holds what as frames and columns."""
    frame, names = Frame(X.numpy().astype(np.float64)), Frame(np.array(list("babab"), dtype=object))
    data = from_arrays(frame, Frame(Y.numpy()), names, test_inputs=frame, test_targets=Frame(Y.numpy()))
    assert shards(data) == [[1, 3], [0, 2, 4]]
    (batch,) = data.test_dataloader()
    assert batch.inputs.dtype == torch.float32
    assert torch.equal(batch.inputs, X)


def test_pandas_frames():
    """The real thing, where it is installed."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "label": Y, "hospital": list("babab")})
    data = from_arrays(frame[["a", "b"]], frame["label"], frame["hospital"])
    assert shards(data) == [[1, 3], [0, 2, 4]]
    with pytest.raises(ValueError, match=r"data\.source has inputs of type (object|str)"):
        from_arrays(frame, frame["label"], frame["hospital"])


class Pairs(torch.utils.data.Dataset):
    """Samples that are made when they are asked for."""

    def __init__(self, *samples: object) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> object:
        return self.samples[index]


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(X, Y),
        Subset(TensorDataset(torch.cat([X, X]), torch.cat([Y, Y])), range(5, 10)),
        Pairs(*zip(X, Y.tolist())),
        Pairs(*zip(X.numpy(), Y.numpy())),
    ],
    ids=["TensorDataset", "Subset", "tensors and numbers", "arrays"],
)
def test_torch_data_sets(dataset):
    """All samples in order, as inputs and as the test set."""
    data = from_dataset(dataset, [[0, 1], [2, 3, 4]], test=dataset, classes=["cat", "dog", "owl"])
    assert shards(data) == [[0, 1], [2, 3, 4]]
    (test,) = data.test_dataloader()
    assert torch.equal(test.inputs, X)
    assert test.targets.tolist() == Y.tolist()
    assert sorted(row for batch in data.client_batches().client_samples(1) for row in batch.inputs.tolist()) == X[2:].tolist()


def test_each_sample_is_read_once():
    """So that what is drawn at random is drawn once."""
    read = []

    class Counted(Pairs):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    data = from_dataset(Counted(*zip(X, Y.tolist())), [[0, 1], [2, 3, 4]])
    assert read == list(range(5))
    assert shards(data) == [[0, 1], [2, 3, 4]]
    assert read == list(range(5))


@pytest.mark.parametrize("collate", [None, lambda rows: padded([{**row, "label": int(row["label"])} for row in rows])])
def test_classes_of_hugging_face_keep_their_names(collate):
    """Also one without a sample; names that are given come first."""
    datasets = pytest.importorskip("datasets")
    features = {"input_ids": datasets.List(datasets.Value("int64")), "label": datasets.ClassLabel(names=["cat", "dog", "owl"])}
    dataset = datasets.Dataset.from_dict({"input_ids": [[1], [2]], "label": [1, 0]}, features=datasets.Features(features))
    for given, expected in (({}, ("cat", "dog", "owl")), ({"classes": ["a", "b", "c"]}, ("a", "b", "c"))):
        data = from_dataset(dataset, [[0, 1]], collate=collate, **given)
        data.setup()
        assert data.classes == expected


class Endless(IterableDataset):
    def __iter__(self):
        yield from ()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (TensorDataset(X), "train is a TensorDataset of 1 tensors, must have two"),
        (TensorDataset(X, X, Y), "train is a TensorDataset of 3 tensors"),
        (
            Pairs({"input_ids": X[0], "class": 0}),
            r"train\[0\] has no class among input_ids, class: name it labels or label",
        ),
        (
            Pairs({"input_ids": X[0], "label": 0}, {"input_ids": X[0, :1], "label": 0}),
            r"train\[1\] has an input of input_ids \(1,\) torch.float32, train\[0\] of input_ids \(2,\) .* collate",
        ),
        (
            Pairs((X[0], 0), (X[0].long(), 1)),
            r"train\[1\] has an input of \(2,\) torch.int64, train\[0\] of \(2,\) torch.float32",
        ),
        (Pairs((X[0], X[0], 1)), r"train\[0\] is tuple, must be a pair"),
        (Pairs((Image.new("L", (2, 2)), 1)), r"train\[0\] is a pair of Image and int, .*PILToTensor"),
        (Pairs((X[0], 0), ({"input_ids": X[0]}, 1)), r"train\[1\] has an input of input_ids \(2,\) torch.float32, train"),
        (Pairs((X[0], 0), (X[0, :1], 1)), r"train\[1\] has an input of \(1,\) torch.float32, train\[0\] of \(2,"),
        (Pairs((X[0], 0), (X[1], [0, 1])), r"train\[1\] has a target of shape \(2,\), train\[0\] of \(\): give all one shape"),
        (Pairs((X[0], 0), (X[1], "a")), "train has 1 targets that are names, and 1 numbers: give all one kind"),
        (Pairs((X[0], "a"), (X[1], 0)), "train has 1 targets that are names, and 1 numbers: give all one kind"),
        (Pairs(), "train has no sample"),
        (Endless(), "train is Endless, whose length is unknown"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_data_sets_of_other_samples_are_refused(dataset, message):
    """Name, sample and cure."""
    with pytest.raises(ValueError, match=message) as caught:
        from_dataset(dataset, [[0]])
    assert "\n" not in str(caught.value)


TOKENS = {"input_ids": torch.arange(6).reshape(2, 3), "attention_mask": torch.ones(2, 3).long()}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": {}}, "training inputs without a tensor"),
        ({"inputs": {"ids": TOKENS}}, "inputs 'ids'"),
        ({"inputs": {**TOKENS, "pixels": torch.zeros(2, 1, 2, 2).byte()}}, "uint8 images as 'pixels' next to other tensors"),
        ({"inputs": {**TOKENS, "more": torch.zeros(3, 1)}}, "3 training inputs 'more' and 2 targets"),
        ({"inputs": [torch.zeros(2, 3)] * 3}, "inputs in a list of 3 arrays with 2 rows each: .* as a tuple"),
        ({"inputs": np.array(["a b", "c"], object)}, r"inputs of texts, must be numbers: .* tokenizer\(list\(texts\), padding"),
        ({"inputs": ["a b", "c"]}, "inputs of texts, must be numbers"),
        (
            {"test_inputs": TOKENS["input_ids"]},
            r"training inputs of shape \{'input_ids': \(3,\).* test inputs of \(3,\): give both the same, with texts",
        ),
        (
            {"inputs": {**TOKENS, "attention_mask": torch.tensor([[1, 1, 0], [0, 0, 0]])}},
            "training sample 1 with an attention_mask that hides every token",
        ),
        ({"test_inputs": {**TOKENS, "attention_mask": torch.ones(2, 3)}}, "test inputs of .*float32"),
        ({"mean": [0.5], "std": [1.0]}, r"data.mean is \[0.5\], but data.source gives whole numbers"),
        ({"inputs": (torch.zeros(2, 3), torch.zeros(2)), "mean": [0.5], "std": [1.0]}, "several tensors a sample"),
        ({"inputs": torch.zeros(2), "mean": [0.5], "std": [1.0]}, r"data.mean is \[0.5\], but samples are single numbers"),
        ({"augment": [CenterCrop(2)]}, "data.augment is for images"),
    ],
)
def test_tensors_that_do_not_go_together_are_refused(arrays, message):
    """Several inputs a sample: in one line, before training."""
    arrays = {"inputs": TOKENS, **arrays}
    if "test_inputs" in arrays:
        arrays["test_targets"] = torch.tensor([0, 1])
    with pytest.raises(ValueError, match=message) as caught:
        from_arrays(arrays.pop("inputs"), torch.tensor([0, 1]), [[0, 1]], **arrays).setup()
    assert "\n" not in str(caught.value)


def padded(samples):
    """A batch as a collate function of Hugging Face makes it, with the class as ``labels``."""
    ids = [torch.tensor(sample["input_ids"]) for sample in samples]
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "attention_mask": torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in ids], batch_first=True),
        "labels": torch.tensor([sample["label"] for sample in samples]),
    }


def test_samples_that_are_dicts_become_one_batch():
    """Training and test samples are padded together, to the longest of both; each part keeps its rows."""
    train = Pairs({"input_ids": [4, 5], "label": 1}, {"input_ids": [6], "label": 0})
    test = Pairs({"input_ids": [7, 8, 9], "label": 1})
    data = from_dataset(train, [[0], [1]], test, collate=padded)
    data.setup()
    assert data.samples.dataset.train.inputs["input_ids"].tolist() == [[4, 5, 0], [6, 0, 0]]
    assert data.samples.dataset.test.inputs["input_ids"].tolist() == [[7, 8, 9]]
    assert data.samples.dataset.train.targets.tolist() == [1, 0]
    assert data.input_shape == {"input_ids": (3,), "attention_mask": (3,)}
    batch = next(iter(data.client_batches().batches(1, 1, 1)))
    assert batch.inputs["attention_mask"].tolist() == [[1, 0, 0]]


def test_names_of_classes_do_not_reach_a_collate():
    """It gets numbers in their place, in dicts and in pairs, named ones too; the classes keep their names."""

    def pairs(samples):
        return torch.stack([x for x, _ in samples]), torch.tensor([target for _, target in samples])

    dicts = Pairs({"input_ids": [4, 5], "label": "good"}, {"input_ids": [6], "label": "bad"})
    named = namedtuple("Named", "x target")
    in_pairs = (Pairs(*(kind(*pair) for pair in ((X[0], "good"), (X[1], "bad")))) for kind in (lambda *pair: pair, named))
    for dataset, collate in ((dicts, padded), *((dataset, pairs) for dataset in in_pairs)):
        data = from_dataset(dataset, [[0, 1]], dataset, collate=collate)
        data.setup()
        assert data.classes == ("bad", "good")
        assert data.samples.dataset.train.targets.tolist() == data.samples.dataset.test.targets.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (
            [{"text": "a b", "input_ids": [4], "label": 0}],
            r"collate does not make a batch of all samples \(no pad\): leave out 'text', which is a text",
        ),
        ([{"input_ids": [4], "label": 0}], "collate does not make a batch .*: give from_dataset one that pads"),
        (
            [{"input_ids": [4], "label": "a"}, {"input_ids": [4], "label": 0}],
            "1 targets are names, but that of sample 1 is 0: give",
        ),
    ],
)
def test_a_collate_that_fails_is_named(samples, message):
    """With the column that is a text, if there is one."""

    def stacked(samples):
        if len(samples) == 1:
            raise AttributeError("no pad")
        return padded(samples)

    with pytest.raises(ValueError, match=message):
        from_dataset(Pairs(*samples), [[0]], collate=stacked)


def test_a_collate_that_drops_samples_is_named():
    """Which was reported of ``clients``."""
    samples = Pairs(*({"input_ids": [row], "label": 0} for row in range(5)))
    with pytest.raises(ValueError, match=r"^collate makes 3 rows of 5 samples: give from_dataset one that makes a row of each"):
        from_dataset(samples, [[0]], collate=lambda rows: padded(rows[:3]))


def test_several_datasets_in_one_are_refused():
    """A ``DatasetDict`` of Hugging Face is a dict."""
    with pytest.raises(ValueError, match="^train is dict, which has several datasets, train, test: give one of them$"):
        from_dataset({"train": Pairs(), "test": Pairs()}, [[0]])


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("row", [0, 2])
def test_a_missing_name_of_a_class_is_named(row, missing):
    """With its row, also the first one; as data frames hold it."""
    names = np.array(["a", "b", "a", "b", "b"], dtype=object)
    names[row] = missing
    with pytest.raises(ValueError, match=f"^data.source has targets {missing} for sample {row}, must be the name of a class: "):
        from_arrays(X, names, [range(5)])


def test_lists_in_dicts_are_rows():
    """As Hugging Face's datasets give them; names of classes are numbered; a text is refused."""
    rows = [{"input_ids": [row, 1, 2], "label": name} for row, name in enumerate(["b", "a", "b"])]
    data = from_dataset(Pairs(*rows), [[0, 1, 2]])
    data.setup()
    assert data.samples.dataset.train.inputs["input_ids"].tolist() == [[0, 1, 2], [1, 1, 2], [2, 1, 2]]
    assert (data.classes, data.samples.dataset.train.targets.tolist()) == (("a", "b"), [1, 0, 1])
    with pytest.raises(ValueError, match=r"train\[0\] has the text text: keep the columns"):
        from_dataset(Pairs({"text": "word", "label": 0}), [[0]])


def test_pairs_of_dicts_become_one_batch():
    """The class is the second of the pair."""
    data = from_dataset(Pairs(({"a": X[0], "b": X[1]}, 0), ({"a": X[2], "b": X[3]}, 1)), [[0, 1]])
    data.setup()
    assert torch.equal(data.samples.dataset.train.inputs["b"], torch.stack([X[1], X[3]]))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            torch.eye(3)[Y],
            r"training targets of shape \(5, 3\), must be \(samples,\): give the index of one class for each sample, or",
        ),
        (torch.eye(3)[Y].bool(), r"training targets of shape \(5, 3\), must be \(samples,\): give the index"),
        ([[0], [1], [0, 2], [1], [2]], "has targets that are not an array .*: give all samples one shape$"),
        (
            Y.float(),
            "has targets of type torch.float32, must be whole numbers .* the objective Regression",
        ),
        (
            Y[:, None].double(),
            "has targets of type torch.float64, must be whole numbers .* the objective Regression",
        ),
    ],
)
def test_targets_of_another_task_are_refused(targets, message):
    """Several labels a sample, as numbers of either kind or as lists, and values: each with the limit and the way."""
    with pytest.raises(ValueError, match=f"^data.source .*{message}"):
        from_arrays(X, targets, [[0, 1], [2, 3, 4]])


def test_inputs_that_are_tuples_of_a_dataset():
    """A pair of a tuple of two tensors and a class: they are stacked position by position."""

    class Two(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, row):
            if row >= 4:
                raise IndexError(row)
            return (torch.full((3,), float(row)), torch.tensor([row, -row])), row % 2

    data = from_dataset(Two(), [[0, 1], [2, 3]], batch_size=None)
    data.setup()
    first, second = data.train_set.inputs
    assert first.shape == (4, 3)
    assert second.tolist() == [[0, 0], [1, -1], [2, -2], [3, -3]]
    assert data.train_set.targets.tolist() == [0, 1, 0, 1]


def test_a_column_of_images_by_itself_is_images():
    """As datasets of Hugging Face give them in torch's format; a picture of PIL is named with its column."""

    class Rows(Dataset):
        def __init__(self, image):
            self.image = image

        def __len__(self):
            return 4

        def __getitem__(self, i):
            return {"image": self.image, "label": i % 2}

    data = from_dataset(Rows(torch.full((1, 2, 2), 9, dtype=torch.uint8)), clients=[[0, 1], [2, 3]])
    data.setup()
    assert data.train_set.inputs.dtype == torch.uint8
    assert data.train_set.inputs.shape == (4, 1, 2, 2)
    with pytest.raises(ValueError, match=r"is a pair of dict \(image: Image\) and int, .* with_format\('torch'\)"):
        from_dataset(Rows(Image.new("L", (2, 2))), clients=[[0, 1], [2, 3]])
