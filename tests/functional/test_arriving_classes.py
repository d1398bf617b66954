"""What one model knows of classes that arrived, by hand and by loops over single samples."""

import pytest
import torch

from fl_lightning.functional import (
    confusion_counts,
    forgetting_by_class,
    old_and_new_accuracy,
    task_confusion,
    tasks_found,
)

CLASS_TASK = torch.tensor([0, 1, 0, 2, 1, 2])
NAN = float("nan")


@pytest.fixture
def predictions() -> tuple[list[int], list[int]]:
    """Predicted and true classes of 200 samples."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(6, (200,), generator=generator)
    predicted = torch.where(torch.rand(200, generator=generator) < 0.5, targets, torch.randint(6, (200,), generator=generator))
    return predicted.tolist(), targets.tolist()


def test_counts_equal_loops_over_samples(predictions):
    counts = confusion_counts(*map(torch.tensor, predictions), 6)
    pairs = list(zip(*predictions))
    for true in range(6):
        for said in range(6):
            assert counts[true, said] == sum(pair == (said, true) for pair in pairs)
    of = CLASS_TASK.tolist()
    shares = task_confusion(counts, CLASS_TASK, 4)
    for i in range(3):
        of_task = [(said, true) for said, true in pairs if of[true] == i]
        for j in range(4):
            assert float(shares[i, j]) == pytest.approx(sum(of[said] == j for said, _ in of_task) / len(of_task))
    assert shares[3].isnan().all()
    inside = [(said, true) for said, true in pairs if of[said] == of[true]]
    found, right = tasks_found(counts, CLASS_TASK)
    assert float(found) == pytest.approx(len(inside) / 200)
    assert float(right) == pytest.approx(sum(said == true for said, true in inside) / len(inside))
    old, new = old_and_new_accuracy(counts, 4)
    for share, of_task in ((old, [p for p in pairs if p[1] < 4]), (new, [p for p in pairs if p[1] >= 4])):
        assert float(share) == pytest.approx(sum(said == true for said, true in of_task) / len(of_task))


def test_found_times_right_is_the_accuracy(predictions):
    counts = confusion_counts(*map(torch.tensor, predictions), 6)
    found, right = tasks_found(counts, CLASS_TASK)
    torch.testing.assert_close(found * right, counts.trace() / counts.sum().double())


def test_forgetting_by_class():
    """Task 0: classes 0 and 1 drop by .4 and .1; task 1: class 2 gains .2; class 3 came last. (.25 - .2) / 2."""
    accuracy = torch.tensor([[0.9, 0.5, NAN, NAN], [0.7, 0.6, 0.3, NAN], [0.5, 0.5, 0.5, 0.8]], dtype=torch.float64)
    assert float(forgetting_by_class(accuracy, torch.tensor([0, 0, 1, 2]))) == pytest.approx((0.25 - 0.2) / 2)
    assert forgetting_by_class(accuracy[:1], torch.tensor([0, 0, 1, 2])) == 0
