"""Characters: windows of texts, with the next characters as targets."""

from pathlib import Path

import pytest

from fl_lightning.data import Characters, FederatedDataModule, Natural

LETTERS = "\n" + "".join(chr(code) for code in range(32, 127))


@pytest.fixture
def folder(tmp_path):
    for name, text in {"prose/long": "To be, or not to be.\n" * 3, "verse/short": "a" * 26, "verse/tiny": "too short"}.items():
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("T", "\u00dc", 1))
    return tmp_path


def text_of(row):
    return "".join(LETTERS[token] if token < len(LETTERS) else "?" for token in row.tolist())


def test_windows_follow_each_other(folder):
    """Windows of 5 in their order, every fifth a test; inputs and targets are one character apart."""
    dataset = Characters(str(folder), length=5).load(Path())
    text = ("To be, or not to be.\n" * 3).replace("T", "?", 1)
    windows = [text[start : start + 6] for start in range(0, len(text) - 5, 5)]
    tests = windows[4::5]
    trained = [window for number, window in enumerate(windows) if number % 5 != 4]
    of_long = dataset.owners == 0
    assert [text_of(row) for row in dataset.train.inputs[of_long]] == [window[:5] for window in trained]
    assert [text_of(row) for row in dataset.train.targets[of_long][:, :-1]] == [window[1:] for window in trained]
    assert [text_of(row) for row in dataset.test.inputs[dataset.test_owners == 0]] == [window[:5] for window in tests]
    assert dataset.classes == ("prose", "verse")
    assert dataset.train.targets[:, -1].tolist() == dataset.owners.tolist()  # one text is long enough in each group
    assert dataset.objective.num_tokens == 97


def test_chapters_of_python_are_natural_clients():
    """Without a file; each client has the windows of one chapter, and halves have the same tokens."""
    halves = [Characters(texts=[pattern]) for pattern in ("[a-m]*", "[n-z]*")]
    first, second = (half.load(Path()) for half in halves)
    assert first.objective.num_tokens == second.objective.num_tokens
    assert len(first.classes) > 1
    clients = len(first.owners.unique())
    data = FederatedDataModule(halves[0], num_clients=clients, clients_per_round=2, partition=Natural())
    data.setup()
    assert sorted(data.num_train(client) for client in range(clients)) == sorted(
        int(count * 0.9 + 1e-9) for count in first.owners.bincount().tolist()
    )


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"length": 1}, ValueError, "data.source.length is 1"),
        ({"texts": ["[0-9]*"]}, ValueError, r"data.source.texts has '\[0-9\]\*', which fits no text: the first is 'assert'"),
        ({"length": 100_000}, ValueError, "data.source.length is 100000, and no text has 5 windows"),
        ({"folder": "nowhere"}, FileNotFoundError, "data.source.folder is nowhere, which has no text"),
    ],
)
def test_what_gives_no_windows_is_refused(settings, error, message):
    with pytest.raises(error, match=message):
        Characters(**settings).load(Path())


def test_texts_next_to_folders_are_refused(folder):
    """The units are folders, and these texts are in none."""
    (folder / "other.txt").write_text("a" * 26)
    with pytest.raises(ValueError, match="data.source.folder is .*, which has texts and folders of texts: move the texts into"):
        Characters(str(folder), length=5).load(Path())
