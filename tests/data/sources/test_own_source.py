"""A source of one's own: its class by name, and what it gives."""

from collections import UserDict

import pytest
import torch

from fl_lightning.data import Dataset, FederatedDataModule, Samples, Source


class Given(Source):
    """Two training samples with some inputs."""

    def __init__(self, inputs):
        self.inputs = inputs

    def load(self, root):
        return Dataset(Samples(self.inputs, torch.tensor([0, 1])), Samples(self.inputs, torch.tensor([0, 1])), ("a", "b"))


@pytest.mark.parametrize("inputs", [torch.zeros(2, 3).numpy(), UserDict(ids=torch.zeros(2, 3)), {"ids": [[1], [2]]}])
def test_inputs_other_than_tensors_are_refused(inputs):
    """An array, the output of a tokenizer, lists: in one line; ``from_arrays`` converts them."""
    data = FederatedDataModule(Given(inputs), num_clients=2, clients_per_round=1)
    with pytest.raises(ValueError, match=r"training inputs of type (ndarray|UserDict|int), must be a tensor, or a dict or"):
        data.setup()


@pytest.mark.parametrize("name", ["own_source.Plain", "own_source.Missing", "nowhere.Plain"])
def test_a_class_that_is_no_source_is_refused(main, tmp_path, monkeypatch, name):
    """In one line, without the list of torchvision's sets."""
    (tmp_path / "own_source.py").write_text("class Plain:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, _, error = main("fit", "--config", "digits_tce.yaml", "--data.source", name)
    assert code == 1
    said = "which cannot be imported or does not derive from fl_lightning.data.Source: correct the name or the class"
    assert error == f"fl-lightning: error: data.source is '{name}', {said}\n"
