"""CSV files, with the number of each line."""

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fl_lightning.checks import check_file


def read_lines(path: str | os.PathLike[str], key: str, cure: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line of a CSV file that is not empty, without spaces around them, after the line's number from 1.

    Args:
        path: the file, UTF-8.
        key: key of the config, for messages.
        cure: what to do if there is no such file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming key, file and line, if it is not UTF-8 or not CSV.
    """
    check_file(key, path, cure)
    try:
        reader = csv.reader(io.StringIO(Path(path).read_bytes().decode("utf-8-sig"), newline=""), strict=True)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{key}: {path}, line {line}: no UTF-8 ({error.reason}): save the file as UTF-8") from error
    line = 1  # start of the present cells: a quoted one can span several lines
    try:
        for cells in reader:
            if cells:
                yield line, [cell.strip() for cell in cells]
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{key}: {path}, line {line}: no CSV ({error}): correct the line") from error


def read_rows(
    path: str | os.PathLike[str], key: str, required: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file with a header, each with its line number.

    Args:
        path: the file, UTF-8.
        key: key of the config, for messages.
        required, optional: columns; others are refused.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming key, file and line, if the columns are others or a row has too few or too many values.
    """
    lines = read_lines(path, key, f"give a CSV file with the columns {', '.join(required)}")
    line, header = next(lines, (1, []))
    _check_header(f"{key}: {path}, line {line}", header, required, optional)
    for line, cells in lines:
        if len(cells) != len(header):
            raise ValueError(
                f"{key}: {path}, line {line}: {len(cells)} values for the {len(header)} columns {', '.join(header)}: "
                "correct the line"
            )
        yield line, dict(zip(header, cells, strict=True))


def _check_header(where: str, header: Sequence[str], required: Sequence[str], optional: Sequence[str]) -> None:
    known = [*required, *optional]
    missing, unknown = [name for name in required if name not in header], [name for name in header if name not in known]
    twice = [name for name in header if header.count(name) > 1]
    if missing or unknown or twice:
        what = f"the column {missing[0]} is missing" if missing else f"the column {(unknown or twice)[0]} "
        what += "" if missing else "is not known" if unknown else "is there twice"
        optionally = f", and may have {', '.join(optional)}" if optional else ""
        raise ValueError(f"{where}: {what}: the file must have the columns {', '.join(required)}{optionally}")
