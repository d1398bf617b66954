"""How a cohort is split among processes, against every possible split of small ones."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.engines.ranks import split_by_work

WORK = st.lists(st.one_of(st.integers(1, 60).map(float), st.floats(0.1, 50)), min_size=1, max_size=7)


def largest_load(work, split):
    return max(sum(work[position] for position in share) for share in split)


def best_load(work, num_ranks):
    """Of every assignment of positions to ranks, the least largest load."""
    assignments = product(range(num_ranks), repeat=len(work))
    loads = ([sum(w for w, rank in zip(work, ranks) if rank == r) for r in range(num_ranks)] for ranks in assignments)
    return min(map(max, loads))


@given(WORK, st.integers(1, 4))
def test_everyone_is_fitted_once(work, num_ranks):
    """Each position at exactly one rank, ascending within each, one share a rank, possibly empty."""
    split = split_by_work(work, num_ranks)
    assert len(split) == num_ranks
    assert sorted(position for share in split for position in share) == list(range(len(work)))
    assert all(share == sorted(share) for share in split)


@given(WORK, st.integers(1, 3))
def test_no_split_is_much_better(work, num_ranks):
    """Graham 1969: largest first takes at most 4/3 - 1/(3 m) of the best split's time on m ranks."""
    bound = 4 / 3 - 1 / (3 * num_ranks)
    assert largest_load(work, split_by_work(work, num_ranks)) <= bound * best_load(work, num_ranks) * (1 + 1e-9)


def test_the_worst_case_is_grahams():
    """5, 5, 4, 4, 3, 3, 3 on 3 ranks: largest first gives 11, the best split 9; 11/9 = 4/3 - 1/9."""
    work = [5.0, 5.0, 4.0, 4.0, 3.0, 3.0, 3.0]
    assert largest_load(work, split_by_work(work, 3)) == 11
    assert best_load(work, 3) == 9


def test_large_clients_are_not_all_on_one_rank():
    """In turn, ranks would get 10 + 9 and 2 + 1; by work 10 goes first, 9 and 2 to the other rank, and 1 to the first."""
    assert split_by_work([10.0, 2.0, 9.0, 1.0], 2) == [[0, 3], [1, 2]]


@pytest.mark.parametrize(("num_clients", "num_ranks"), [(6, 2), (7, 3), (2, 4)])
def test_equal_work_is_dealt_in_turn(num_clients, num_ranks):
    """No rank has more than one client more than another, and ties go to the first rank: the same on every process."""
    split = split_by_work([2.5] * num_clients, num_ranks)
    assert split == [list(range(rank, num_clients, num_ranks)) for rank in range(num_ranks)]


@given(WORK, st.integers(1, 4))
def test_the_split_depends_on_nothing_else(work, num_ranks):
    """Every process computes it for itself."""
    assert split_by_work(work, num_ranks) == split_by_work(tuple(work), num_ranks)


def test_a_cohort_of_none():
    """Nobody for anyone."""
    assert split_by_work([], 2) == [[], []]
