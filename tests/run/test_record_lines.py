"""Lines of a record that a run cannot have written."""

from io import BytesIO

import pytest

from fl_lightning.run.record_lines import record_lines

GOOD = b'{"round": 1, "time": 2.5, "scalars": {"a": 3}, "tensors": {"b": {"shape": [1], "float32": "AACAPw=="}}}\n'
HUGE = b"1" + b"0" * 400  # no float is as large
BAD = {
    "an empty row": b"",
    "a list": b"[]",
    "a number": b"1",
    "no time": b'{"round": 1}',
    "a round of text": b'{"round": "1", "time": 0}',
    "a negative round": b'{"round": -1, "time": 0}',
    "a huge time": b'{"round": 1, "time": ' + HUGE + b"}",
    "an infinite time": b'{"round": 1, "time": Infinity}',
    "a huge scalar": b'{"round": 1, "time": 0, "scalars": {"a": ' + HUGE + b"}}",
    "scalars in a list": b'{"round": 1, "time": 0, "scalars": [1]}',
    "half of a character": b'{"round": 1, "time": 0, "scalars": {"\\ud800": 1}}',
    "deep lists": b"[" * 90_000,
    "many values": b"[" + b"1," * 100_001 + b"1]",
    "another count of numbers": b'{"round": 1, "time": 0, "tensors": {"b": {"shape": [2], "float32": "AACAPw=="}}}',
}


@pytest.mark.parametrize("line", BAD.values(), ids=BAD)
def test_what_is_no_line_is_a_value_error(line):
    """After a line that is one."""
    lines = record_lines(BytesIO(GOOD + line + b"\n"))
    first = next(lines)
    assert (first.round, first.time, first.begins, first.scalars, first.tensors["b"].tolist()) == (
        1,
        2.5,
        True,
        {"a": 3.0},
        [1.0],
    )
    with pytest.raises(ValueError):
        next(lines)


def test_a_line_without_an_end_is_an_eof_error():
    """A process is writing it, or was killed as it did."""
    lines = record_lines(BytesIO(GOOD + GOOD[:-1]))
    next(lines)
    with pytest.raises(EOFError):
        next(lines)
