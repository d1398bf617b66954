"""Which cells of a table are the best of their column and the second best."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

Cells = frozenset[tuple[int, int]]


def best_and_second(conditions: Sequence[str], columns: Mapping[int, Sequence[float]]) -> tuple[Cells, Cells]:
    """Cells, as (row, column), of the highest score of each condition, and those of the next lower one.

    Equal scores are of one rank, and NaN is of none.

    Args:
        conditions: of each row; rows are compared under the same one.
        columns: column -> its score in each row, more is better.
    """
    ranked: list[set[tuple[int, int]]] = [set(), set()]
    for column, scores in columns.items():
        rows = defaultdict(list)
        for row, (condition, score) in enumerate(zip(conditions, scores, strict=True)):
            if score == score:
                rows[condition].append(row)
        for together in rows.values():
            highest = sorted({scores[row] for row in together}, reverse=True)[:2]
            for cells, wanted in zip(ranked, highest, strict=False):
                cells.update((row, column) for row in together if scores[row] == wanted)
    best, second = map(frozenset, ranked)
    return best, second
