"""What is packed comes back: every type, every name, whatever is empty."""

import io

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_lightning.protocol import ClientState, Gathered, LearnedTask, Reply, Request, SparseTensor, Weighted, pack, unpack

QUICK = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine too
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.uint8]
NAMES = st.text(st.sampled_from("ab.~/01 é"), max_size=4)
COUNTS = st.integers(-(2**62), 2**62)


@st.composite
def tensors(draw):
    """Any bits of any type and shape: NaN and infinities, scalars and tensors without values among them."""
    shape, dtype = draw(st.lists(st.integers(0, 3), max_size=3)), draw(st.sampled_from([*DTYPES, torch.bool]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    bits = torch.randint(0, 256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
    return bits.view(dtype).squeeze(-1)


def by_name(values):
    return st.dictionaries(NAMES, values, max_size=3)


STATES = by_name(tensors())
NESTED = by_name(tensors() | STATES | by_name(STATES))
SPARSE = st.builds(lambda tensor: SparseTensor.of(tensor.reshape(-1)), tensors())
TASKS = st.builds(LearnedTask, STATES, by_name(SPARSE), st.none() | tensors())
POSITIONS = st.integers(0, 30)
CLIENT_STATES = st.builds(
    ClientState, NESTED, STATES, st.dictionaries(POSITIONS, STATES, max_size=2), st.dictionaries(POSITIONS, TASKS, max_size=2)
)
FLOATS = st.floats(allow_nan=False)
UPLOADS = by_name(st.builds(Weighted, STATES, FLOATS, st.booleans()) | st.builds(Gathered, STATES))
FLAGS = st.booleans()
REQUESTS = st.builds(Request, COUNTS, COUNTS, COUNTS, STATES, STATES, NESTED, CLIENT_STATES, FLAGS, FLAGS, st.none() | COUNTS)
REPLIES = st.builds(Reply, COUNTS, COUNTS, tensors(), UPLOADS, FLOATS, CLIENT_STATES, STATES, COUNTS, COUNTS)


def assert_same(actual, expected, path=""):
    """The same classes, names, numbers and bits, whatever they mean."""
    assert type(actual) is type(expected), path
    if isinstance(expected, torch.Tensor):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), path
        bits = [value.contiguous().reshape(-1).view(torch.uint8) for value in (actual, expected) if value.numel()]
        assert not bits or torch.equal(*bits), path
    elif isinstance(expected, bool | int | float | None):
        assert actual == expected, path
    else:
        ours, theirs = (value if isinstance(value, dict) else parts(value) for value in (actual, expected))
        assert list(ours) == list(theirs), path
        for name, part in theirs.items():
            assert_same(ours[name], part, f"{path}/{name}")


def parts(value) -> dict:
    return value._asdict() if isinstance(value, tuple) else vars(value)


@QUICK
@given(REQUESTS | REPLIES | CLIENT_STATES)
def test_what_is_packed_comes_back(message):
    """Through a file of tensors alone."""
    packed = pack(message)
    assert all(type(tensor) is torch.Tensor and not tensor.requires_grad for tensor in packed.values())
    file = io.BytesIO()
    torch.save(packed, file)
    file.seek(0)
    assert_same(unpack(type(message), torch.load(file, weights_only=True)), message)


@QUICK
@given(NESTED, NESTED)
def test_two_states_never_look_alike(one, other):
    """A name with a slash in it is not a group, and an empty dict is not nothing."""
    same = shapes(one) == shapes(other)
    assert (list(pack(ClientState(one))) == list(pack(ClientState(other)))) == same


def shapes(tree):
    return [(name, shapes(part)) for name, part in tree.items()] if isinstance(tree, dict) else None


def test_paths_are_names_that_can_be_read():
    """Of a request with two weights: names of fields, then those of the net."""
    request = Request(3, 1, 0, {"0.weight": torch.ones(2)}, broadcast={"variate": {"a/b": torch.zeros(1)}})
    packed = pack(request)
    assert packed["weights/0.weight"] is not request.weights["0.weight"]
    assert packed["weights/0.weight"].data_ptr() == request.weights["0.weight"].data_ptr()
    assert "broadcast/variate/a~1b" in packed
    assert (packed["round"].dtype, packed["round"].item(), packed["sends"].item()) == (torch.int64, 3, True)
    assert "max_steps" not in packed


def test_a_number_of_numpy_is_packed_as_pythons():
    """A weight that is the mean of an array."""
    reply = Reply(1, 0, torch.zeros(1), weight=np.float64(2.5))
    assert unpack(Reply, pack(reply)).weight == 2.5


def test_weights_that_require_gradients_are_packed_without():
    assert not pack(ClientState({"w": torch.ones(2, requires_grad=True)}))["method/w"].requires_grad


@pytest.mark.parametrize(
    ("kind", "packed", "message"),
    [
        (Request, {"round": torch.tensor(1)}, "it is not a packed Request .*missing.*'client'"),
        (ClientState, {"colour": torch.tensor(1)}, "it is not a packed ClientState .*unexpected.*'colour'"),
        (ClientState, {"tasks/0/sparse/layer/values": torch.ones(1)}, "SparseTensor.*missing.*'offsets'"),
        (ClientState, {"weights": torch.ones(1)}, "it is not a packed ClientState"),
        (ClientState, {"weights/w/x": torch.ones(1)}, "dict instead of a tensor"),
        (ClientState, {"weights/w": torch.ones(1), "weights/w/x": torch.ones(1)}, "it is not a packed ClientState"),
        (Request, {"round": torch.ones(2)}, "it is not a packed Request"),
        (ClientState, ["weights"], "it is not a packed ClientState"),
    ],
)
def test_something_else_is_refused(kind, packed, message):
    """In one line."""
    with pytest.raises(ValueError, match=message) as error:
        unpack(kind, packed)
    assert "\n" not in str(error.value)
