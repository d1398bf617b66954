"""Hostile clients: who they are, what they send by its equation, and what is refused."""

import math

import pytest
import torch

from fl_lightning.protocol import Batch, Client
from fl_lightning.robustness import ALIE, IPM, LabelFlip, ModelReplacement, SignFlip

OWN = torch.tensor([[1.0, 2.0, -3.0], [0.5, 0.0, 4.0]], dtype=torch.float64)
HONEST = torch.tensor([[2.0, 0.0, 1.0], [4.0, 2.0, 1.0], [0.0, 4.0, 1.0], [6.0, 2.0, 5.0]], dtype=torch.float64)


def test_what_hostile_clients_send():
    """Means of the honest: 3, 2, 2. Squared deviations: (1 + 1 + 9 + 9)/4, (4 + 0 + 4 + 0)/4, (1 + 1 + 1 + 9)/4."""
    deviations = [math.sqrt(5), math.sqrt(2), math.sqrt(3)]
    alie = [[mean - 0.5 * deviation for mean, deviation in zip([3, 2, 2], deviations, strict=True)]] * 2
    expected = [
        (SignFlip(scale=2.0), [[-2.0, -4.0, 6.0], [-1.0, 0.0, -8.0]]),
        (ALIE(z=0.5), alie),
        (IPM(epsilon=0.1), [[-0.3, -0.2, -0.2]] * 2),
        (ModelReplacement(), [[3.0, 6.0, -9.0], [1.5, 0.0, 12.0]]),  # six clients, two hostile
        (ModelReplacement(scale=10.0), [[10.0, 20.0, -30.0], [5.0, 0.0, 40.0]]),
        (LabelFlip(), OWN.tolist()),
    ]
    for hostile, sent in expected:
        torch.testing.assert_close(hostile.changes(OWN, HONEST), torch.tensor(sent, dtype=torch.float64))
    assert torch.equal(ModelReplacement().changes(OWN, OWN), OWN)  # K / H is 1 where all of a round are hostile


def test_attacks_equal_byzfl():
    """Its ALIE divides by one less and goes up, by a negative factor down."""
    byzfl = pytest.importorskip("byzfl", reason="byzfl is not installed")
    corrected = math.sqrt(len(HONEST) / (len(HONEST) - 1))
    pairs = [
        (IPM(epsilon=0.3), byzfl.InnerProductManipulation(tau=0.3)),
        (ALIE(z=1.5 * corrected), byzfl.ALittleIsEnough(tau=-1.5)),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.changes(OWN, HONEST), torch.as_tensor(theirs(HONEST.numpy())).expand_as(OWN))


def test_who_is_hostile_is_drawn_by_the_seed():
    assert SignFlip(0.3).clients(10, 5) == LabelFlip(0.3).clients(10, 5)
    assert len(set(map(tuple, (SignFlip(0.3).clients(10, seed) for seed in range(20))))) > 10
    assert [len(SignFlip(fraction).clients(10, 0)) for fraction in (0.01, 0.3, 0.99)] == [1, 3, 9]


@pytest.mark.parametrize("index", [0, 1])
def test_labels_and_label_counts_of_hostile_clients_are_flipped(index):
    hostile = LabelFlip(0.5)
    seed = next(seed for seed in range(9) if hostile.clients(2, seed) == [1])
    hostile.begin(2, seed, torch.device("cpu"))
    counts, targets = torch.tensor([5, 0, 1]), torch.tensor([0, 2, 0])
    client = Client(index, 1, 6, 1, counts, counts, (), {}, None, *[None] * 3)
    flipped = hostile.batch(Batch(torch.zeros(3, 1), targets), client).targets.tolist()
    assert flipped == ([2, 0, 2] if index else [0, 2, 0])
    assert hostile.label_counts(counts, index).tolist() == ([1, 0, 5] if index else [5, 0, 1])
    both = hostile.label_counts(torch.stack([counts, counts]), torch.tensor([0, 1]))
    assert both.tolist() == [[5, 0, 1], [1, 0, 5]]


@pytest.mark.parametrize("kind", [SignFlip, LabelFlip, ALIE, IPM, ModelReplacement])
@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, math.nan])
def test_fractions_out_of_range_are_refused(kind, fraction):
    with pytest.raises(ValueError) as error:
        kind(fraction)
    assert str(error.value) == (
        f"model.hostile.fraction is {fraction}, must be above 0 and below 1: null leaves all clients honest"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SignFlip(scale=0.0), "model.hostile.scale is 0.0, must be above 0 and finite: 1 is the same length"),
        (lambda: ALIE(z=-1.0), "model.hostile.z is -1.0, must be above 0 and finite: 1.5 is usual"),
        (lambda: IPM(epsilon=math.inf), "model.hostile.epsilon is inf, must be above 0 and finite: a small one hides"),
        (lambda: ModelReplacement(scale=0.0), "model.hostile.scale is 0.0, must be above 0 and finite: null is K / H"),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == message
