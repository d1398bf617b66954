"""Inputs that are whole numbers and no images reach the net as they are, whatever the precision."""

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn

from fl_lightning import FedAvg, FedNTD, FedReg
from fl_lightning.data import Arrays, RandomCrop, RandomResizedCrop, from_arrays

FIRST, COUNT = 30_000, 100  # bfloat16 has steps of 128 there


class Bag(nn.Module):
    """A classifier on token ids, which keeps those that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(FIRST + COUNT, 4), nn.Linear(4, 2)
        self.seen: set[int] = set()
        self.types: set[torch.dtype] = set()

    def __deepcopy__(self, memo: dict) -> "Bag":
        copy = Bag()
        copy.to(next(self.parameters()).dtype).load_state_dict(self.state_dict())
        copy.seen, copy.types = self.seen, self.types
        return copy

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.device.type == "cpu" and not torch._C._functorch.is_batchedtensor(tokens):
            self.seen |= set(tokens.flatten().tolist())
        self.types.add(tokens.dtype)
        return self.head(self.table(tokens).mean(dim=1))


def token_data(dtype: torch.dtype = torch.int64, **settings):
    """Twenty samples of five tokens each, FIRST, FIRST + 1, ...: 50 with two clients, 50 in the test set."""
    tokens = torch.arange(FIRST, FIRST + COUNT).reshape(20, 5).to(dtype)
    targets = torch.arange(20) % 2
    parts = {"test_inputs": tokens[10:], "test_targets": targets[10:], "batch_size": 3}
    return from_arrays(tokens[:10], targets[:10], [range(5), range(5, 10)], **{**parts, **settings})


def fit(method, data, tmp_path, precision: str = "32-true") -> None:
    trainer = pl.Trainer(
        max_steps=2,
        max_epochs=-1,
        accelerator="cpu",
        precision=precision,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(method, datamodule=data)


@pytest.mark.parametrize("precision", ["32-true", "bf16-true", "64-true", "bf16-mixed"])
def test_token_ids_arrive_unchanged(precision, tmp_path):
    """Exactly 30000, 30001, ..., 30099 in training and evaluation; bf16-true alone would make 29952 and 30080 of most."""
    net = Bag()
    fit(FedAvg(net, engine="sequential"), token_data(), tmp_path, precision)
    assert net.seen == set(range(FIRST, FIRST + COUNT))
    assert net.types == {torch.int64}


@pytest.mark.parametrize("storage", ["device", "stream"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_batches_have_the_type_that_is_stored(storage, dtype):
    """Stored and handed out alike, in training and evaluation."""
    data = token_data(dtype, storage=storage, num_workers=0)
    data.setup()
    data.to(torch.device("cpu"), torch.bfloat16)
    batches = [*data.client_batches().batches(0, 1, 2), *data.client_batches().client_samples(1), *data.test_dataloader()]
    assert {batch.inputs.dtype for batch in batches} == {dtype}
    assert sorted(torch.cat([batch.inputs.flatten() for batch in batches]).tolist()) == list(range(FIRST, FIRST + COUNT))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_numbers_become_signed_ones_that_hold_them(dtype):
    """torch looks up no embedding by them."""
    data = token_data(dtype)
    data.setup()
    (batch,) = data.client_batches().batches(0, 1, 1)
    assert batch.inputs.dtype == (torch.int32 if dtype is torch.uint16 else torch.int64)
    assert set(batch.inputs.flatten().tolist()) <= set(range(FIRST, FIRST + COUNT))


def test_truth_values_become_floats():
    """0 and 1, as before: fingerprints of molecules, say."""
    data = from_arrays(torch.tensor([[True, False], [False, True]]), torch.tensor([0, 1]), [[0], [1]])
    data.setup()
    (batch,) = data.client_batches().batches(0, 1, 1)
    assert batch.inputs.dtype == torch.float32
    assert batch.inputs.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("method", [FedAvg, FedNTD])
def test_engines_agree_on_token_ids(method, tmp_path):
    """Weights after two rounds, stacked or one by one, in float64."""
    weights = {}
    for engine in ("sequential", "vectorized"):
        torch.manual_seed(0)
        net = Bag()
        fit(method(net, engine=engine), token_data(), tmp_path, "64-true")
        weights[engine] = net.state_dict()
    for name, weight in weights["sequential"].items():
        torch.testing.assert_close(weights["vectorized"][name], weight, msg=name)


def test_whole_numbers_for_a_net_of_floats_are_refused(tmp_path):
    """One line that names the net, the type and both cures."""
    with pytest.raises(ValueError, match=r"model\.net cannot take inputs of shape \(5,\) and type int64.*give floats"):
        fit(FedAvg(nn.Linear(5, 2)), token_data(), tmp_path)


def test_token_id_beyond_the_table_is_refused(tmp_path):
    """The first sample has it: the line is that of any other sample."""
    net = Bag()
    net.table = nn.Embedding(10, 4)
    with pytest.raises(ValueError, match=r"data\.source has the token \d+, which is beyond the embeddings of model\.net"):
        fit(FedAvg(net), token_data(), tmp_path)


def test_mean_and_std_are_refused():
    """Token ids have none."""
    with pytest.raises(ValueError, match=r"data\.mean is \[0\.5\], but data\.source gives whole numbers"):
        token_data(mean=[0.5], std=[1.0]).setup()


def test_method_that_climbs_along_inputs_is_refused(tmp_path):
    """FedReg's pseudo data follow the gradient by the inputs."""
    with pytest.raises(ValueError, match=r"data\.source gives whole numbers.*FedReg"):
        fit(FedReg(Bag()), token_data(), tmp_path)


def test_training_and_test_inputs_are_of_one_kind():
    """Ids in training and floats in the test set, or images and floats, which would be scaled as images."""
    for train, test in (
        (torch.zeros(2, 3).int(), torch.zeros(2, 3)),
        (torch.zeros(2, 1, 4, 4).byte(), torch.zeros(2, 1, 4, 4)),
    ):
        with pytest.raises(ValueError, match=r"training inputs of type \w+ and test inputs of float32: convert one"):
            from_arrays(train, torch.tensor([0, 1]), [[0, 1]], test_inputs=test, test_targets=torch.tensor([0, 1]))


def test_test_inputs_may_have_their_names_in_another_order():
    ids, feature = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 2)
    Arrays({"ids": ids, "feature": feature}, [0, 1], {"feature": feature, "ids": ids}, [0, 1])
    with pytest.raises(ValueError, match="convert one"):
        Arrays({"ids": ids, "feature": feature}, [0, 1], {"ids": ids, "feature": feature.int()}, [0, 1])


def test_changes_of_images_keep_whole_numbers():
    """A picture of one value, 1000 above what uint8 holds, cut and scaled, is of that value still."""
    pictures = torch.full((4, 1, 8, 8), 1255, dtype=torch.int32)
    changes = [RandomCrop(padding=0, size=6), RandomResizedCrop(5)]
    data = from_arrays(pictures, torch.tensor([0, 1, 0, 1]), [[0, 1], [2, 3]], augment=changes)
    data.setup()
    (batch,) = data.client_batches().batches(0, 1, 1)
    assert batch.inputs.dtype == torch.int32
    assert batch.inputs.unique().tolist() == [1255]
