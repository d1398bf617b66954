"""CSV files about samples or classes."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from fl_lightning.checks import check_file


def read_rows(
    path: Path, key: str, required: Sequence[str], optional: Sequence[str] = ()
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
    check_file(key, path, f"give a CSV file with the columns {', '.join(required)}")
    try:
        reader = csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline=""), strict=True)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{key}: {path}, line {line}: no UTF-8 ({error.reason}): save the file as UTF-8") from error
    where = f"{key}: {path}"
    line = 1  # start of the present row: a quoted value can span several lines
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(where, header, required, optional)
        line = reader.line_num + 1
        for values in reader:
            if values and len(values) != len(header):
                raise ValueError(
                    f"{where}, line {line}: {len(values)} values for the {len(header)} columns {', '.join(header)}: "
                    "correct the line"
                )
            if values:
                yield line, dict(zip(header, (value.strip() for value in values), strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{where}, line {line}: no CSV ({error}): correct the line") from error


def _check_header(where: str, header: Sequence[str], required: Sequence[str], optional: Sequence[str]) -> None:
    known = [*required, *optional]
    missing, unknown = [name for name in required if name not in header], [name for name in header if name not in known]
    twice = [name for name in header if header.count(name) > 1]
    if missing or unknown or twice:
        what = f"the column {missing[0]} is missing" if missing else f"the column {(unknown or twice)[0]} "
        what += "" if missing else "is not known" if unknown else "is there twice"
        optionally = f", and may have {', '.join(optional)}" if optional else ""
        raise ValueError(f"{where}, line 1: {what}: the file must have the columns {', '.join(required)}{optionally}")
