"""The lines of a CSV file that a key of the config names."""

import csv

from fl_lightning.checks import check_file


def rows_of_csv(key: str, path: str) -> list[list[str]]:
    """The cells of each line that is not empty, without spaces around them.

    Args:
        key: key of the config, for messages.
        path: of the file, in UTF-8, with or without the mark that Excel puts before it.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is something else, or not in UTF-8.

    Example::

        >>> from tempfile import NamedTemporaryFile
        >>> with NamedTemporaryFile("w", suffix=".csv") as file:
        ...     _ = file.write("0, 1, 1\\n\\n3,0,1\\n")
        ...     file.flush()
        ...     rows_of_csv("data.client_sampler.file", file.name)
        [['0', '1', '1'], ['3', '0', '1']]
    """
    check_file(key, path, cure="give a CSV file")
    try:
        with open(path, newline="", encoding="utf-8-sig") as lines:
            return [[cell.strip() for cell in row] for row in csv.reader(lines) if row]
    except UnicodeDecodeError as error:
        raise ValueError(f"{key} is {path}, which is not in UTF-8 ({error.reason}): save it so") from error
