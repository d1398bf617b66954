"""The sums of what clients send against a plain mean in float64, one by one, stacked, and over processes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.engines.sums import Sums
from fl_lightning.protocol import Weighted

CPU = torch.device("cpu")
SHAPES = {"kernel": (2, 3, 4), "bias": (5,), "scale": (), "none": (0,)}


def uploads(num_clients, dtype=torch.float32, seed=0, bad=()):
    """What clients send under two names: tensors of every number of dimensions, and counters; and weights of each name."""
    generator = torch.Generator().manual_seed(seed)
    sent = []
    for client in range(num_clients):
        weights = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}
        if client in bad:
            weights["kernel"][1, 2, 3] = float("nan") if client % 2 else float("-inf")
        buffers = {"count": torch.randint(0, 1000, (), generator=generator), "mean": torch.randn(3, generator=generator)}
        sent.append({"weights": Weighted(weights, client + 1.5), "buffers": Weighted(buffers, 2.0 * client + 1)})
    return sent


def plain_mean(sent, name):
    """sum_k w_k t_k / sum_k w_k, in float64."""
    total = sum(upload[name].weight for upload in sent)
    keys = sent[0][name].tensors
    return {key: sum(u[name].weight * u[name].tensors[key].double() for u in sent) / total for key in keys}


def add(sums, sent, admissible=None):
    """Count some clients side by side; gives who was counted."""
    tensors = {
        name: {key: torch.stack([upload[name].tensors[key].detach() for upload in sent]) for key in part.tensors}
        for name, part in sent[0].items()
    }
    weights = [torch.tensor([upload[name].weight for upload in sent], dtype=torch.float64) for name in sent[0]]
    return sums.add_weighted(tensors, weights, torch.tensor(admissible or [True] * len(sent))).tolist()


def add_one(sums, upload, admissible=True):
    """Count one client, whose tensors keep their order in memory."""
    tensors = {name: {key: tensor.detach()[None] for key, tensor in part.tensors.items()} for name, part in upload.items()}
    return sums.add_weighted(tensors, [part.weight for part in upload.values()], torch.tensor([admissible])).tolist()


def add_one_by_one(sent, admissible):
    sums = Sums(CPU)
    return sums, [add_one(sums, upload, value)[0] for upload, value in zip(sent, admissible)]


def add_stacked(sent, admissible):
    sums = Sums(CPU)
    return sums, add(sums, sent, admissible)


def assert_mean(sums, sent, counted):
    """The mean, the sum of weights and the float64 dtype, for both names, over the clients that were counted."""
    kept = [upload for upload, value in zip(sent, counted) if value]
    for name in ("weights", "buffers"):
        assert sums.total_weight(name).item() == pytest.approx(sum(upload[name].weight for upload in kept))
        actual, expected = sums.mean(name), plain_mean(kept, name)
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            assert actual[key].dtype == torch.float64
            torch.testing.assert_close(actual[key], value, atol=1e-12, rtol=1e-12, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("add", [add_one_by_one, add_stacked])
@pytest.mark.parametrize("num_clients", [1, 2, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_mean_is_a_plain_one_in_float64(add, num_clients, dtype):
    """Every name by the weights given for it; scalars, empty tensors and integer counters too."""
    sent = uploads(num_clients, dtype)
    sums, counted = add(sent, [True] * num_clients)
    assert counted == [True] * num_clients
    assert_mean(sums, sent, counted)


@pytest.mark.parametrize("add", [add_one_by_one, add_stacked])
def test_uploads_that_are_not_finite_are_left_out_throughout(add):
    """Clients 1 and 4 have a NaN and an infinity in one tensor, client 2 is not admissible: none of their names counts."""
    sent = uploads(6, bad=(1, 4))
    sums, counted = add(sent, [True, True, False, True, True, True])
    assert counted == [True, False, False, True, False, True]
    assert_mean(sums, sent, counted)


@pytest.mark.parametrize("add", [add_one_by_one, add_stacked])
def test_nobody_finite(add):
    """A weight of 0 and sums of 0: what a round without an update adds to those of other processes."""
    sums, counted = add(uploads(2, bad=(0, 1)), [True, True])
    assert counted == [False, False]
    assert sums.total_weight("weights").item() == 0
    assert sums.mean("weights")["bias"].isnan().all()  # 0 / 0, not a sum of NaN: the next client counts in full
    sent = uploads(1, seed=5)
    add_one(sums, sent[0])
    assert_mean(sums, sent, [True])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 10**6))
def test_stacks_and_single_clients_may_be_mixed(first, second, seed):
    """Some clients stacked, some alone, some stacked: the mean over all."""
    sent = uploads(first + second + 1, seed=seed)
    sums = Sums(CPU)
    add(sums, sent[:first])
    add_one(sums, sent[first])
    add(sums, sent[first + 1 :])
    assert_mean(sums, sent, [True] * len(sent))


def test_float16_values_near_its_limit_do_not_overflow():
    """Sums are in float64: 100 clients that send 60,000 have a mean of 60,000, and count as finite."""
    sent = [{"weights": Weighted({"w": torch.full((50,), 6e4, dtype=torch.float16)}, 1.0)} for _ in range(100)]
    sums = Sums(CPU)
    assert all(add(sums, sent))
    assert (sums.mean("weights")["w"] == 6e4).all()


def test_what_was_sent_is_left_alone():
    """The tensors are those of the net: adding them changes none, and later changes of theirs change no sum."""
    sent = uploads(3, bad=(1,))
    before = [{key: t.clone() for key, t in upload["weights"].tensors.items()} for upload in sent]
    sums, _ = add_one_by_one(sent, [True] * 3)
    mean = sums.mean("weights")["bias"].clone()
    for upload, copies in zip(sent, before):
        for key, tensor in upload["weights"].tensors.items():
            torch.testing.assert_close(tensor, copies[key], atol=0, rtol=0, equal_nan=True)
            tensor.fill_(7)
    assert torch.equal(sums.mean("weights")["bias"], mean)


def test_weights_that_require_gradients_may_be_sent():
    """Nothing is recorded for a backward pass."""
    sums = Sums(CPU)
    add_one(sums, {"weights": Weighted({"w": torch.ones(2, requires_grad=True)}, 1.0)})
    assert not sums.mean("weights")["w"].requires_grad


def test_processes_add_up_in_one_call():
    """Three processes with separate clients, one of them without any: the sums, and the rows sent along, of all.

    The third has only reserved room for what the others sent, as after a round in which it had no client. Kernels of the second
    lie in memory otherwise, as channels last do.
    """
    sent = uploads(5)
    for upload in sent[3:]:
        kernel = upload["weights"].tensors["kernel"]
        upload["weights"].tensors["kernel"] = kernel.movedim(0, -1).contiguous().movedim(-1, 0)
    parts = [sent[:3], sent[3:], []]
    all_sums = [Sums(CPU) for _ in parts]
    for sums, part in zip(all_sums, parts):
        for upload in part:
            add_one(sums, upload)
    layouts = [sums.layouts for sums in all_sums]
    for sums in all_sums:
        sums.agree(layouts)
    rows = [torch.full((5, 2), 10.0**rank, dtype=torch.float64) for rank in range(3)]
    buckets = []
    for sums, extra in zip(all_sums, rows):
        sums.sum_over_ranks(extra, lambda bucket: buckets.append(bucket.clone()) or bucket)
    assert len(buckets) == 3
    assert len({len(bucket) for bucket in buckets}) == 1
    extra = all_sums[0].sum_over_ranks(rows[0], lambda bucket: sum(buckets))
    assert torch.equal(extra, torch.full((5, 2), 111.0, dtype=torch.float64))
    assert_mean(all_sums[0], sent, [True] * 5)


def test_processes_may_know_names_in_different_orders():
    """Buckets are laid out by name, not by who was first."""
    one, two = Sums(CPU), Sums(CPU)
    first = {"b": Weighted({"x": torch.tensor([1.0])}, 1.0), "a": Weighted({"y": torch.tensor([5.0, 6.0])}, 3.0)}
    add_one(one, first)
    two.agree([one.layouts, {}])
    bucket = []
    one.sum_over_ranks(torch.zeros(1), lambda flat: bucket.append(flat) or flat)
    two.sum_over_ranks(torch.zeros(1), lambda flat: flat + bucket[0])
    assert two.mean("a")["y"].tolist() == [5.0, 6.0]
    assert two.mean("b")["x"].tolist() == [1.0]


def test_lanes_may_know_the_tensors_of_a_name_in_different_orders():
    """x is 1 and 2, y 10 and 20."""
    one, two = Sums(CPU), Sums(CPU)
    add_one(one, {"a": Weighted({"x": torch.tensor([1.0]), "y": torch.tensor([10.0])}, 1.0)})
    add_one(two, {"a": Weighted({"y": torch.tensor([20.0]), "x": torch.tensor([2.0])}, 1.0)})
    one.take(two)
    assert {name: tensor.tolist() for name, tensor in one.mean("a").items()} == {"x": [1.5], "y": [15.0]}


@pytest.mark.parametrize("into", ["one", "lanes", "processes"])
def test_clients_send_the_same_tensors_under_a_name(into):
    """One that only some send has no mean under that name; whoever is first, and wherever the sums meet."""
    few = {"prototypes": Weighted({"class0": torch.ones(2)}, 1.0)}
    more = {"prototypes": Weighted({"class0": torch.ones(2), "class7": torch.ones(2)}, 1.0)}
    for first, second in ((few, more), (more, few)):
        sums, others = Sums(CPU), Sums(CPU)
        add_one(sums, first)
        with pytest.raises(ValueError, match=r"^an upload's 'prototypes' has class7 from some clients only.*name of its own$"):
            if into == "one":
                add_one(sums, second)
            add_one(others, second)
            if into == "lanes":
                sums.take(others)
            sums.agree([sums.layouts, others.layouts])


@pytest.mark.parametrize("read", [Sums.mean, Sums.total_weight])
def test_an_upload_that_no_client_of_the_round_sent_is_named(read):
    with pytest.raises(ValueError, match=r"^aggregate reads 'x', but client_result sends \[\]: .* see reduced.names first"):
        read(Sums(torch.device("cpu")), "x")
