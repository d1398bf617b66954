"""The CSV file that says of each image what it shows, whose it is and which part it belongs to."""

import functools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from fl_lightning.data.samples import Part
from fl_lightning.data.sources.tables import read_rows

_KEY = "data.source.index"


@dataclass
class ListedImages:
    """Images of one part of a dataset, and for each the line that names it."""

    paths: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


def read_index(index: Path, root: Path) -> dict[str, ListedImages]:
    """``train`` and ``test`` of a CSV file with the columns ``path,label`` and, if there are, ``client,split``.

    Args:
        index: the file.
        root: the folder that paths are relative to.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming file and line, if a column or an image is missing, a path leaves ``root``, a file stands there twice,
            or a client has images in the test part alone.
    """
    parts = {part: ListedImages() for part in get_args(Part)}
    line_of_file: dict[str, int] = {}
    folder, real_folder = os.path.abspath(root), functools.cache(os.path.realpath)  # of each image it would take seconds
    line_of_client: dict[str, int] = {}
    for line, row in read_rows(index, _KEY, ("path", "label"), ("client", "split")):
        name, split, client = row["path"], row.get("split", "train"), row.get("client", "")
        path = os.path.normpath(os.path.join(folder, name))
        _check_row(index, folder, line, row, path)
        above, _, last = path.rpartition(os.sep)
        file = os.path.realpath(path) if os.path.islink(path) else f"{real_folder(above)}{os.sep}{last}"
        if file in line_of_file:
            raise ValueError(f"{_KEY}: {index}, line {line}: {name} stands in line {line_of_file[file]} too: delete one")
        line_of_file[file] = line
        if client:
            line_of_client.setdefault(client, line)
        elif "client" in row and split == "train":
            raise ValueError(
                f"{_KEY}: {index}, line {line}: {name} is a training image without a client: name one, or drop the column"
            )
        part = parts[split]
        part.paths.append(path)
        part.labels.append(row["label"])
        part.clients.append(client)
        part.names.append(f"{_KEY}: {index}, line {line}: {name}")
    if not parts["train"].paths:
        raise ValueError(f"{_KEY} is {index}, which names no training image: add lines")
    training = set(parts["train"].clients)
    for client, line in line_of_client.items():
        if client in training:
            continue
        raise ValueError(
            f"{_KEY}: {index}, line {line}: client {client} has no training image: give it one, or leave "
            "the client of its test images empty"
        )
    return parts


def _check_row(index: Path, root: str, line: int, row: dict[str, str], path: str) -> None:
    """Check a line; ``path``: that of its image, like ``root`` absolute and without detours."""
    if not row["label"]:
        raise ValueError(f"{_KEY}: {index}, line {line}: {row['path']} has no label: give it one")
    if row.get("split", "train") not in get_args(Part):
        known = " or ".join(get_args(Part))
        raise ValueError(f"{_KEY}: {index}, line {line}: split is {row['split']!r}, must be {known}: correct it")
    if not path.startswith(root.rstrip(os.sep) + os.sep) and path != root:
        raise ValueError(
            f"{_KEY}: {index}, line {line}: {row['path']} lies outside of data.root {root}: put the image there, or set "
            "data.root to a folder that holds all"
        )
    if not row["path"] or not os.path.isfile(path):
        raise ValueError(
            f"{_KEY}: {index}, line {line}: {row['path'] or 'the path'} is no file under data.root {root}: correct the path"
        )
