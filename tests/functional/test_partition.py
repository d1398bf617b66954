"""The partitions: properties over random labels, limits in alpha, published statistics, and a draw-one-by-one rewrite."""

import math
import time
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from fl_lightning.functional import (
    class_partition,
    dirichlet_by_class_partition,
    dirichlet_partition,
    heterogeneity,
    iid_partition,
    owner_partition,
    power_law_partition,
    shard_partition,
)
from fl_lightning.functional.partition.parts import Parts

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(np.array)
ALPHA = st.floats(1e-3, 1e3)
SEED = st.integers(0, 2**63 - 1)
CIFAR_LABELS = np.repeat(np.arange(10), 5000)  # 50,000 labels, ten even classes


def fewest_classes(labels, num_clients, seed):
    """class_partition with as few classes a client as give every class an owner."""
    num_classes = len(np.unique(np.asarray(labels)))
    return class_partition(labels, num_clients, -(-num_classes // max(num_clients, 1)), seed)


# Each as (labels, num_clients, seed) -> parts, for what they have in common.
PARTITIONS = {
    "dirichlet": lambda labels, num_clients, seed: dirichlet_partition(labels, num_clients, 0.5, seed),
    "dirichlet_by_class": lambda labels, num_clients, seed: dirichlet_by_class_partition(labels, num_clients, 0.5, seed, 0),
    "shard": lambda labels, num_clients, seed: shard_partition(labels, num_clients, 1, seed),
    "iid": lambda labels, num_clients, seed: iid_partition(labels, num_clients, seed),
    "class": fewest_classes,
}
every_partition = pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)


def label_table(labels, parts):
    """(N, C) number of samples of each class at each client."""
    return np.stack([np.bincount(labels[part.numpy()], minlength=labels.max() + 1) for part in parts])


def assert_equal(parts, others):
    assert len(parts) == len(others)
    assert all(torch.equal(a, b) for a, b in zip(parts, others))


def assert_valid(labels, parts, num_clients):
    """One int64 index tensor a client, every index in range and none twice."""
    assert len(parts) == num_clients
    assert all(part.dtype == torch.int64 and part.ndim == 1 for part in parts)
    held = torch.cat(parts).tolist()
    assert len(set(held)) == len(held)
    assert set(held) <= set(range(len(labels)))


@PROPERTY
@given(LABELS, st.data(), ALPHA, SEED)
def test_dirichlet_gives_each_client_n_over_n_samples(labels, data, alpha, seed):
    """n // N samples each, no sample twice, n % N left over."""
    num_clients = data.draw(st.integers(1, len(labels)))
    parts = dirichlet_partition(labels, num_clients, alpha, seed)
    assert_valid(labels, parts, num_clients)
    assert {len(part) for part in parts} == {len(labels) // num_clients}


@PROPERTY
@given(LABELS, st.data(), ALPHA, SEED)
def test_dirichlet_by_class_uses_every_sample(labels, data, alpha, seed):
    """The shards together are the dataset."""
    num_clients = data.draw(st.integers(1, len(labels)))
    parts = dirichlet_by_class_partition(labels, num_clients, alpha, seed, min_size=0)
    assert_valid(labels, parts, num_clients)
    assert sum(map(len, parts)) == len(labels)


@PROPERTY
@given(LABELS, st.data(), SEED)
def test_shards_are_even_and_use_every_sample(labels, data, seed):
    """Shards differ by at most one sample, so clients of s shards by at most s; a shard lies within its stretch of labels."""
    num_clients = data.draw(st.integers(1, len(labels)))
    per_client = data.draw(st.integers(1, len(labels) // num_clients))
    parts = shard_partition(labels, num_clients, per_client, seed)
    assert_valid(labels, parts, num_clients)
    assert sum(map(len, parts)) == len(labels)
    assert max(map(len, parts)) - min(map(len, parts)) <= per_client


@PROPERTY
@given(LABELS, st.data(), SEED)
def test_iid_is_even_and_uses_every_sample(labels, data, seed):
    """Sizes differ by at most one and add up to n."""
    num_clients = data.draw(st.integers(1, len(labels)))
    parts = iid_partition(labels, num_clients, seed)
    assert_valid(labels, parts, num_clients)
    assert sum(map(len, parts)) == len(labels)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@every_partition
def test_seed_alone_decides(partition):
    """Same seed, same parts, whatever the global generators did in between; another seed, other parts."""
    labels = np.arange(600) % 7
    first = partition(labels, 6, 11)
    np.random.seed(3)
    torch.manual_seed(3)
    again, other = partition(labels, 6, 11), partition(labels, 6, 12)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@every_partition
def test_global_generators_are_not_touched(partition):
    """A partition draws from a generator that nobody else has."""
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    partition(np.arange(60) % 7, 6, 0)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


@every_partition
def test_lists_arrays_and_tensors_of_labels_agree(partition):
    """Labels as list, as int32 array or as tensor give the same parts, and are not written to."""
    labels = (np.arange(90) * 7 % 5).tolist()
    tensor = torch.tensor(labels)
    forms = [partition(form, 4, 1) for form in (labels, np.array(labels, dtype=np.int32), tensor)]
    for other in forms[1:]:
        assert all(torch.equal(a, b) for a, b in zip(forms[0], other, strict=True))
    assert tensor.tolist() == labels


@every_partition
def test_one_client_gets_everything(partition):
    """N = 1: the only part is the dataset."""
    assert sorted(partition(np.arange(50) % 3, 1, 0)[0].tolist()) == list(range(50))


@every_partition
def test_class_numbers_may_have_gaps(partition):
    """Labels 0 and 4 alone: classes without a sample are no obstacle."""
    parts = partition(np.array([4, 0] * 20), 4, 0)
    assert sorted(torch.cat(parts).tolist()) == list(range(40))


@every_partition
@pytest.mark.parametrize("num_clients", [0, -1, 11])
def test_wrong_number_of_clients_is_named(partition, num_clients):
    """Fewer than 1 or more than n clients: key, value and range in one line."""
    with pytest.raises(
        ValueError, match=rf"^num_clients is {num_clients}, must be between 1 and 10: each needs a training sample"
    ):
        partition(np.arange(10) % 2, num_clients, 0)


@pytest.mark.parametrize("partition", [dirichlet_partition, dirichlet_by_class_partition])
@pytest.mark.parametrize("alpha", [0, 0.0, -0.5, float("nan")])
def test_alpha_not_above_zero_is_named(partition, alpha):
    """Key, value, what is allowed and what to try."""
    with pytest.raises(ValueError, match=rf"^alpha is {alpha}, must be above 0 and finite: try"):
        partition(np.arange(100) % 2, 4, alpha, 0)


@PROPERTY
@given(SEED)
def test_tiny_alpha_gives_one_class_a_client(seed):
    """alpha 1e-8: q_k is one-hot to double precision; two clients of 100 cannot use up a class of 1,000, so each has one."""
    labels = np.arange(10000) % 10
    table = label_table(labels, dirichlet_partition(labels, 100, 1e-8, seed)[:2])
    assert (table > 0).sum(axis=1).tolist() == [1, 1]


def test_smallest_alpha_still_gives_full_clients():
    """Where all classes of a client are used up it draws from the others: sizes stay n // N down to the smallest alpha."""
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    for alpha in (5e-324, 1e-300, 1e-8):
        parts = dirichlet_partition(labels, 20, alpha, 0)
        assert_valid(labels, parts, 20)
        assert [len(part) for part in parts] == [5] * 20, alpha


def test_used_up_class_leaves_every_client():
    """300 and 100 samples of two classes, 4 clients of 100, q_k one-hot: each class fills whole clients, 3 and 1.

    Class 1 goes to the first client that wants it, client 0 with probability 1/2 (30 of 60 seeds, sd 3.9), ..., or else to
    client 3, who gets the rest; a later client that wants it too gets class 0.
    """
    labels = np.repeat([0, 1], [300, 100])
    owners = Counter()
    for seed in range(60):
        table = label_table(labels, dirichlet_partition(labels, 4, 1e-8, seed))
        assert sorted(table.tolist()) == [[0, 100], [100, 0], [100, 0], [100, 0]], seed
        owners[int(table[:, 1].argmax())] += 1
    assert owners[0] == pytest.approx(30, abs=15)
    assert set(owners) == {0, 1, 2, 3}


def test_client_without_a_class_draws_in_proportion_to_what_remains():
    """10, 60 and 30 samples for clients of 10, q_k one-hot: if clients 0 and 1 both want class 0, client 1 finds it empty.

    It then draws from 60 and 30: 10 * 60/90 = 6.67 of class 1 on average, sd 1.4 (5 if classes were taken evenly). Client 1
    cannot mix classes otherwise. One seed in nine is such a case: 100 of 900, standard error .14.
    """
    labels = np.repeat([0, 1, 2], [10, 60, 30])
    tables = [label_table(labels, dirichlet_partition(labels, 10, 1e-300, seed)[:2]) for seed in range(900)]
    drawn = [second[1] for first, second in tables if first[0] == 10 and min(second[1:]) > 0]
    assert 60 < len(drawn) < 140
    assert np.mean(drawn) == pytest.approx(60 / 9, abs=0.7)


@PROPERTY
@given(SEED)
def test_huge_alpha_is_even(seed):
    """alpha 1e8: q_k is 1/10 each, so counts in the first of ten clients are Binomial(1000, .1), sd 9.5: within 5 sd."""
    labels = np.arange(10000) % 10
    counts = label_table(labels, dirichlet_partition(labels, 10, 1e8, seed))[0]
    assert abs(counts - 100).max() < 48


@pytest.mark.parametrize(
    ("alpha", "distinct", "share", "tolerance"),
    [
        (0.01, 1.6, 0.93, (0.3, 0.03)),
        (0.1, 4.6, 0.69, (0.3, 0.03)),
        (0.2, 6.5, 0.56, (0.3, 0.03)),
        (0.5, 8.6, 0.40, (0.3, 0.02)),
        (1.0, 9.3, 0.31, (0.3, 0.02)),
        (10.0, 9.9, 0.16, (0.1, 0.01)),
        (100.0, 9.9, 0.13, (0.1, 0.01)),
    ],
)
def test_statistics_of_100_clients_on_cifar10(alpha, distinct, share, tolerance):
    """Mean distinct labels and mean largest share of 100 clients of 500 samples, as published for the equal-size Dirichlet."""
    scores = [heterogeneity(label_table(CIFAR_LABELS, dirichlet_partition(CIFAR_LABELS, 100, alpha, s))) for s in range(12)]
    assert np.mean([score.distinct_labels for score in scores]) == pytest.approx(distinct, abs=tolerance[0])
    assert np.mean([score.largest_share for score in scores]) == pytest.approx(share, abs=tolerance[1])
    assert {(score.smallest, score.median, score.largest) for score in scores} == {(500, 500, 500)}


def draw_one_by_one(labels, num_clients, alpha, seed):
    """The algorithm of Hsu et al. in its plain form: one multinomial draw a sample, classes zeroed as they run out."""
    rng = np.random.default_rng(seed)
    num_classes = labels.max() + 1
    shares = rng.dirichlet([alpha] * num_classes, size=num_clients)
    pools = [rng.permutation(np.flatnonzero(labels == label)).tolist() for label in range(num_classes)]
    parts = []
    for client in range(num_clients):
        part = []
        for _ in range(len(labels) // num_clients):
            weights = np.array([share if pool else 0.0 for share, pool in zip(shares[client], pools, strict=True)])
            if weights.sum() == 0:
                weights = np.array([float(len(pool)) for pool in pools])
            label = rng.choice(num_classes, p=weights / weights.sum())
            part.append(pools[label].pop())
        parts.append(torch.tensor(part))
    return parts


@pytest.mark.parametrize("client", [0, 1, 2])
def test_drawing_in_one_go_equals_drawing_one_by_one(client):
    """Class counts of each client over 1,500 seeds, here and one by one: the two tables are one distribution (chi-square).

    Classes of 6, 4 and 2 samples for 3 clients of 4 run out often, which is where the two could differ.
    """
    labels = np.repeat([0, 1, 2], [6, 4, 2])
    tallies = [
        Counter(tuple(label_table(labels, draw(labels, 3, 0.7, seed + offset)[client : client + 1])[0]) for seed in range(1500))
        for draw, offset in ((dirichlet_partition, 0), (draw_one_by_one, 10**6))
    ]
    outcomes = [key for key in tallies[0] | tallies[1] if tallies[0][key] + tallies[1][key] >= 10]
    p_value = chi2_contingency([[tally[key] for key in outcomes] for tally in tallies]).pvalue
    assert p_value > 1e-3, (tallies, p_value)


def test_samples_of_a_class_are_drawn_at_random():
    """4 samples of one class for 2 clients: client 0 gets each of the 6 pairs in 1200/6 = 200 cases, sd 12.9, within 5 sd."""
    pairs = Counter(tuple(sorted(dirichlet_partition([0] * 4, 2, 1.0, seed)[0].tolist())) for seed in range(1200))
    assert len(pairs) == 6
    assert all(abs(count - 200) < 65 for count in pairs.values()), pairs


def test_dirichlet_order_within_a_client_is_random():
    """The draws are not left sorted by class: in even clients the first half holds every class about as often as the second."""
    parts = dirichlet_partition(CIFAR_LABELS, 10, 1e6, 0)
    halves = [np.bincount(CIFAR_LABELS[half.numpy()], minlength=10) for half in parts[0].split(2500)]
    # Hypergeometric: 2,500 of 5,000, about 500 of each class: 250 a half, sd 11.
    assert abs(halves[0] - halves[1]).max() < 110


def test_dirichlet_by_class_reaches_min_size():
    """The smallest client has at least min_size samples, 10 unless told otherwise."""
    labels = np.arange(600) % 10
    for seed in range(10):
        assert min(map(len, dirichlet_by_class_partition(labels, 8, 0.3, seed))) >= 10
        assert min(map(len, dirichlet_by_class_partition(labels, 8, 0.3, seed, min_size=25))) >= 25


def test_dirichlet_by_class_names_the_cure():
    """One class of 100 cut into four exact quarters: the message names alpha and the cures."""
    with pytest.raises(ValueError, match=r"^alpha is 0.5: .*4 clients with fewer than 25 .*lower min_size"):
        dirichlet_by_class_partition(np.zeros(100, dtype=int), 4, 0.5, 0, min_size=25)


def test_dirichlet_by_class_refuses_what_cannot_be():
    """50,000 clients of at least 10 from 50,000 samples: refused at once, with what can be."""
    with pytest.raises(ValueError, match=r"^min_size is 10, must be at most 1 for 50000 samples and 50000 cl"):
        dirichlet_by_class_partition(CIFAR_LABELS, 50000, 0.5, 0)


@PROPERTY
@given(SEED)
def test_dirichlet_by_class_limits(seed):
    """alpha 1e8 cuts every class evenly: 1,000 / 10 each, to rounding. alpha 1e-8 leaves the first class to one client."""
    labels = np.arange(10000) % 10
    table = label_table(labels, dirichlet_by_class_partition(labels, 10, 1e8, seed))
    assert abs(table - 100).max() <= 1
    first_class = label_table(labels, dirichlet_by_class_partition(labels, 10, 1e-8, seed, min_size=0))[:, 0]
    assert sorted(first_class.tolist()) == [0] * 9 + [1000]


@pytest.mark.parametrize("alpha", [0.2, 1e-3])
def test_dirichlet_by_class_full_clients_get_no_more(alpha):
    """A client that holds n/N = 100 samples gets nothing of later classes, up to one sample of rounding where a class is cut.

    Small alpha is the hard case: nearly all of a class's proportions may lie with full clients, and must still go elsewhere.
    """
    labels = np.repeat(np.arange(8), 100)
    for seed in range(30):
        table = label_table(labels, dirichlet_by_class_partition(labels, 8, alpha, seed, min_size=0))
        held_before = np.cumsum(table, axis=1) - table
        assert table[held_before >= 100].max() <= 1, seed


def test_dirichlet_by_class_first_class_follows_the_dirichlet():
    """Share of class 0 at client 0 is Beta(alpha, (N-1) alpha): mean 1/N, variance (N-1)/(N^2 (N alpha + 1)).

    N = 4, alpha = .5: mean .25, variance 3/48 = .0625; over 800 seeds the standard error of the mean is .0088.
    """
    labels = np.zeros(400, dtype=int)
    shares = [len(dirichlet_by_class_partition(labels, 4, 0.5, seed, min_size=0)[0]) / 400 for seed in range(800)]
    assert np.mean(shares) == pytest.approx(0.25, abs=0.035)
    assert np.var(shares) == pytest.approx(0.0625, abs=0.015)


def test_shards_hold_few_classes():
    """10 classes of 100, 20 clients of 2 shards of 25: a shard lies in one class, so 50 samples of at most 2 classes."""
    labels = np.arange(1000) % 10
    for seed in range(5):
        table = label_table(labels, shard_partition(labels, 20, 2, seed))
        assert (table.sum(axis=1) == 50).all()
        assert set(table.ravel().tolist()) <= {0, 25, 50}
        # Not the deal in order: some client has shards of classes that are no neighbours.
        owned = [np.flatnonzero(row) for row in table]
        assert any(row.max() - row.min() > 1 for row in owned)


def test_one_shard_a_client_is_one_class():
    """10 classes of 100, 50 clients of one shard of 20: one class each."""
    labels = np.arange(1000) % 10
    assert set(map(tuple, np.sort(label_table(labels, shard_partition(labels, 50, 1, 0)))[:, -2:].tolist())) == {(0, 20)}


@pytest.mark.parametrize("classes_per_client", [0, -1, 6])
def test_wrong_number_of_shards_is_named(classes_per_client):
    """20 samples for 4 clients make at most 5 shards a client."""
    with pytest.raises(
        ValueError, match=rf"^classes_per_client is {classes_per_client}, must be between 1 and 5: there are 20 samples"
    ):
        shard_partition(np.arange(20) % 2, 4, classes_per_client, 0)


def test_iid_mixes_classes():
    """Labels sorted by class, 10 clients of 5,000: class counts have mean 500 and hypergeometric sd 20, within 6 sd."""
    table = label_table(CIFAR_LABELS, iid_partition(CIFAR_LABELS, 10, 0))
    assert abs(table - 500).max() < 120


CLASS_SIZES = st.lists(st.integers(1, 25), min_size=1, max_size=7)


@st.composite
def class_sizes_and_hands(draw):
    """Shuffled labels, number of clients and classes a client, for which every class has an owner and every owner a sample."""
    sizes = draw(CLASS_SIZES)
    gaps = draw(st.lists(st.integers(1, 3), min_size=len(sizes), max_size=len(sizes)))
    labels = np.array(draw(st.permutations(np.repeat(np.cumsum(gaps) - 1, sizes).tolist())))
    per_client = draw(st.integers(1, len(sizes)))
    fewest, most = -(-len(sizes) // per_client), min(sizes) * len(sizes) // per_client
    return labels, draw(st.integers(fewest, max(fewest, most))), per_client


@PROPERTY
@given(class_sizes_and_hands(), SEED)
def test_class_partition_is_even_and_uses_every_sample(drawn, seed):
    """k classes a client, owners of a class alike in number and in samples to one, a seed gives one result."""
    labels, num_clients, per_client = drawn
    num_owners = -(-num_clients * per_client // len(np.unique(labels)))
    assume(np.bincount(labels)[labels].min() >= num_owners)
    parts = class_partition(labels, num_clients, per_client, seed)
    assert_valid(labels, parts, num_clients)
    assert sum(map(len, parts)) == len(labels)
    table = label_table(labels, parts)[:, np.unique(labels)]
    assert ((table > 0).sum(axis=1) == per_client).all()
    owners = (table > 0).sum(axis=0)
    assert owners.min() >= 1
    assert owners.max() - owners.min() <= 1
    for column in table.T:
        held = column[column > 0]
        assert held.max() - held.min() <= 1
    assert_equal(parts, class_partition(labels, num_clients, per_client, seed))


@PROPERTY
@given(class_sizes_and_hands(), SEED, st.floats(0, 1e3))
def test_power_law_gives_the_base_and_truncated_shares(drawn, seed, sigma):
    """k classes a client, at least base of each; of a class less than one sample an owner is left to nobody."""
    labels, num_clients, per_client = drawn
    owners = -(-num_clients * per_client // len(np.unique(labels)))
    base = int(np.bincount(labels)[labels].min()) // owners
    assume(base >= 1)
    parts = power_law_partition(labels, num_clients, per_client, seed, base, sigma)
    assert_valid(labels, parts, num_clients)
    table = label_table(labels, parts)
    assert ((table > 0).sum(axis=1) == per_client).all()
    assert table[table > 0].min() >= base
    present = np.unique(labels)
    left = np.bincount(labels) - table.sum(axis=0)
    assert (left[present] < (table > 0).sum(axis=0)[present]).all()
    assert_equal(parts, power_law_partition(labels, num_clients, per_client, seed, base, sigma))


@PROPERTY
@given(SEED, st.integers(1, 4), st.integers(1, 20))
def test_power_law_limits_in_sigma(seed, base, num_clients):
    """sigma 0 divides what is left after the base evenly; at 1e12 one owner of the class gets all of it."""
    labels = np.zeros(100, dtype=int)
    rest = 100 - base * num_clients
    even, one = (sorted(map(len, power_law_partition(labels, num_clients, 1, seed, base, sigma))) for sigma in (0.0, 1e12))
    assert even == [base + rest // num_clients] * num_clients
    assert one == [base] * (num_clients - 1) + [base + rest]


@settings(PROPERTY, max_examples=10)
@given(SEED)
def test_power_law_shares_are_lognormal(seed):
    """ln(n_k - base) is normal with sd 2: its 84 % quantile lies 2 above its median, its 97.7 % quantile 4.

    2,000 owners: the standard errors of these quantiles are .07 (84 %), .06 (50 %) and .12.
    """
    sizes = np.array([len(part) for part in power_law_partition(np.zeros(400_000, dtype=int), 2000, 1, seed)])
    low, middle, high = np.log(np.quantile(sizes - 1, [0.5, 0.8413, 0.9772]))
    assert middle - low == pytest.approx(2, abs=0.45)
    assert high - low == pytest.approx(4, abs=0.7)


@pytest.mark.parametrize(("num_classes", "per_client"), [(10, 2), (7, 3), (5, 4)])
def test_any_classes_may_come_together(num_classes, per_client):
    """Over 2,000 clients every set of k classes occurs: 45, 35 and 5 of them, each some 44 times or more."""
    labels = np.arange(60 * 2000) % num_classes
    parts = class_partition(labels, 2000, per_client, 0)
    hands = Counter(tuple(np.flatnonzero(row)) for row in label_table(labels, parts))
    assert len(hands) == math.comb(num_classes, per_client)
    assert min(hands.values()) > 2000 / len(hands) / 3


@PROPERTY
@given(st.lists(st.integers(-3, 9), min_size=1, max_size=80), st.integers(1, 5), st.data(), SEED)
def test_owner_partition_gives_whole_natural_clients(owners, min_samples, data, seed):
    """Each part is all of one owner's samples in the order of the data, owners ascend, small ones are left out."""
    kept = [owner for owner, count in sorted(Counter(owners).items()) if count >= min_samples]
    assume(kept)
    num_clients = data.draw(st.integers(1, len(kept)))
    parts = owner_partition(owners, num_clients, seed, min_samples)
    assert_valid(owners, parts, num_clients)
    taken = [owners[part[0]] for part in parts]
    assert taken == sorted(taken)
    assert set(taken) <= set(kept)
    for owner, part in zip(taken, parts):
        assert part.tolist() == [index for index, other in enumerate(owners) if other == owner]
    if num_clients == len(kept):
        assert taken == kept
    assert_equal(parts, owner_partition(owners, num_clients, seed, min_samples))


def test_owners_are_taken_at_random():
    """3 of 10 owners, 600 seeds: each is taken 180 times, sd 11.2, within 5 sd."""
    taken = Counter(int(part[0]) for seed in range(600) for part in owner_partition(np.arange(10), 3, seed))
    assert len(taken) == 10
    assert all(abs(count - 180) < 56 for count in taken.values()), taken


@pytest.mark.parametrize("num_clients", [0, 3])
def test_too_many_natural_clients_are_named(num_clients):
    """Owners of 1, 2 and 3 samples: two have at least 2."""
    message = rf"^num_clients is {num_clients}, must be between 1 and 2: .*min_samples, 2, or more"
    with pytest.raises(ValueError, match=message):
        owner_partition([5, 7, 7, 9, 9, 9], num_clients, 0, min_samples=2)


@pytest.mark.parametrize(
    ("num_clients", "per_client", "message"),
    [
        (4, 0, "^classes_per_client is 0, must be between 1 and 5: so many classes there are"),
        (4, 6, "^classes_per_client is 6, must be between 1 and 5: so many classes there are"),
        (2, 2, "^num_clients is 2: at 2 a client, some of the 5 classes have no client"),
    ],
)
@pytest.mark.parametrize("partition", [class_partition, power_law_partition])
def test_hands_that_cannot_be_dealt_are_named(partition, num_clients, per_client, message):
    """Classes a client out of range, or too few hands for all classes."""
    with pytest.raises(ValueError, match=message):
        partition(np.arange(50) % 5, num_clients, per_client, 0)


def test_too_few_samples_of_a_class_are_named():
    """Three clients of both classes, two samples of class 1; or three, of which base wants two each."""
    with pytest.raises(ValueError, match="^num_clients is 3: class 1 has 2 samples for its 3 owners: lower"):
        class_partition([0, 0, 0, 0, 1, 1], 3, 2, 0)
    with pytest.raises(ValueError, match="^base is 2: class 1 has 3 samples for its 3 owners: lower"):
        power_law_partition([0, 0, 0, 0, 0, 0, 1, 1, 1], 3, 2, 0, base=2)


@PROPERTY
@given(SEED, SEED)
def test_another_seed_gives_other_parts(seed, other):
    """840 samples, 12 clients: two seeds have a chance of less than 1e-9 to agree."""
    assume(seed != other)
    labels = np.arange(840) % 7
    draws = [
        lambda seed: class_partition(labels, 12, 2, seed),
        lambda seed: power_law_partition(labels, 12, 2, seed),
        lambda seed: owner_partition(np.arange(840) // 2, 12, seed),
        *(lambda seed, partition=partition: partition(labels, 12, seed) for partition in PARTITIONS.values()),
    ]
    for draw in draws:
        assert [part.tolist() for part in draw(seed)] != [part.tolist() for part in draw(other)]


CASES_OF_50000 = {
    **PARTITIONS,
    "dirichlet .1": lambda labels, num_clients, seed: dirichlet_partition(labels, num_clients, 0.1, seed),
    "power law": lambda labels, num_clients, seed: power_law_partition(labels, num_clients, 1, seed),
    "owners": lambda labels, num_clients, seed: owner_partition(np.arange(len(labels)), num_clients, seed),
}


@pytest.mark.parametrize("num_classes", [pytest.param(10, marks=pytest.mark.slow), 100])
@pytest.mark.parametrize("partition", CASES_OF_50000.values(), ids=CASES_OF_50000)
@pytest.mark.one_in(3)
def test_50000_clients_take_seconds(partition, num_classes):
    """One sample a client: 50,000 clients within 10 seconds; a pass over all samples or clients a client takes minutes."""
    labels = np.arange(50000) % num_classes
    start = time.perf_counter()
    parts = partition(labels, 50000, 0)
    assert time.perf_counter() - start < 10
    assert sum(map(len, parts)) == 50000


@PROPERTY
@given(st.lists(st.lists(st.integers(0, 50)), min_size=1, max_size=9), st.data())
def test_a_table_of_parts_is_the_list_of_them(lists, data):
    """Length, items, slices, iteration, and ranges in another order, of lists that can be empty."""
    given_parts = [torch.tensor(part, dtype=torch.int64) for part in lists]
    table = Parts.of(given_parts)
    assert len(table) == len(lists)
    assert Parts.of(table) is table
    assert_equal(list(table), given_parts)
    assert_equal([table[k] for k in range(-len(lists), len(lists))], [*given_parts, *given_parts])
    assert_equal(table[1:], given_parts[1:])
    order = np.array(data.draw(st.permutations(range(len(lists)))))
    ranges = Parts.of_ranges(table.samples, table.start[:-1].numpy()[order], table.sizes.numpy()[order])
    assert_equal(list(ranges), [given_parts[k] for k in order])
    with pytest.raises(IndexError):
        table[len(lists)]
