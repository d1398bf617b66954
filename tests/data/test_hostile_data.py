"""Datasets that are broken, hostile or too large: each ends in one line that names the key, the file and the cure.

A case makes its files in an empty folder and gives the settings of a data module. Reading them must neither hang nor ask for
memory in proportion to a number that a file merely claims.
"""

import io
import json
import os
import resource
import signal
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fl_lightning.data import FederatedDataModule, Fixed, HuggingFace, ImageFolder, Joined, Natural, Superclasses

SECONDS, BYTES = 20, 4 << 30  # that reading a hostile set may take, beyond what the process has

Settings = dict[str, Any]
CASES: dict[str, tuple[Callable[[Path], Settings], str]] = {}


def case(message: str) -> Callable:
    """Put a function that makes files into the table, with a pattern of the line that reading them ends in."""

    def add(make: Callable[[Path], Settings]) -> Callable[[Path], Settings]:
        CASES[make.__name__] = (make, message)
        return make

    return add


@pytest.fixture
def bounded():
    """An alarm instead of a hang, and a MemoryError instead of a machine that swaps."""

    def too_long(*_):
        pytest.fail(f"takes more than {SECONDS} s")

    before = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + BYTES, before[1]))
    handler = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)
    resource.setrlimit(resource.RLIMIT_AS, before)


def ends_in_one_line(make: Callable[[], Settings], message: str) -> None:
    with pytest.raises((ValueError, OSError), match=message) as caught:
        FederatedDataModule(**{"num_clients": 2, "clients_per_round": 1, "val_fraction": 0.0, **make()}).setup()
    line = str(caught.value)
    assert "\n" not in line
    assert "data." in line
    line.encode()  # a line that nobody can print helps nobody


# Archives ---------------------------------------------------------------------------------------------------------------

INPUTS, TARGETS = np.zeros((4, 3), dtype=np.float32), np.array([0, 1, 0, 1])


def changed(array: np.ndarray, value: object, dtype: type | None = None) -> np.ndarray:
    """A copy whose last entry is another."""
    copy = array.astype(dtype or array.dtype)
    copy.flat[-1] = value
    return copy


ARCHIVES: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "nan": ({"inputs": changed(INPUTS, np.nan)}, "training input 3.*not finite"),
    "infinity": ({"inputs": changed(INPUTS, np.inf)}, "training input 3.*not finite"),
    "minus infinity in half precision": ({"inputs": changed(INPUTS, -np.inf, np.float16)}, "training input 3.*not finite"),
    "beyond float32": ({"inputs": changed(INPUTS, 1e300, np.float64)}, r"1e\+300 in training input 3.*not finite"),
    "nan in the test set alone": (
        {"test_inputs": changed(INPUTS, np.nan), "test_targets": TARGETS},
        "test input 3.*not finite",
    ),
    "complex numbers": ({"inputs": INPUTS.astype(complex)}, "complex128"),
    "inputs that are text": ({"inputs": np.array([["a"]] * 4)}, "inputs of texts, must be numbers"),
    "inputs that are dates": ({"inputs": np.zeros(4, "M8[s]")}, r"datetime64|<M8"),
    "inputs that are records": ({"inputs": np.zeros(4, [("a", "f4"), ("b", "i4")])}, "inputs of type"),
    "inputs that are pickled": ({"inputs": np.array([[1.0], None, 2, 3], dtype=object)}, "not an archive of plain arrays"),
    "test inputs that are complex": ({"test_inputs": INPUTS + 1j, "test_targets": TARGETS}, "complex"),
    "inputs without a dimension": ({"inputs": np.float32(1)}, r"inputs of shape \(\)"),
    "samples without a value": ({"inputs": INPUTS[:, :0]}, r"shape \(4, 0\)"),
    "no sample": ({"inputs": INPUTS[:0], "targets": TARGETS[:0]}, "no training sample"),
    "labels that are bytes": ({"targets": np.array([b"a", b"b", b"a", b"b"])}, "targets of type |S1"),
    "labels with a fraction": ({"targets": np.array([0.0, 0.5, 1, 0])}, "targets of type float64"),
    "a label that is not a number": ({"targets": np.array([0, np.nan, 1, 0])}, "targets of type float64"),
    "a negative label": ({"targets": changed(TARGETS, -1)}, "training label -1"),
    "a label of 2^40": ({"targets": changed(TARGETS, 1 << 40)}, f"training label {1 << 40}"),
    "a label of 2^40 in the test set": (
        {"test_inputs": INPUTS, "test_targets": changed(TARGETS, 1 << 40)},
        f"test label {1 << 40}",
    ),
    "a label above 2^63": ({"targets": changed(TARGETS, (1 << 63) + 5, np.uint64)}, f"targets.* {(1 << 63) + 5}"),
    "labels without a dimension": ({"targets": np.int64(3)}, r"targets of shape \(\)"),
    "labels one too few": ({"targets": TARGETS[:3]}, "4 training inputs and 3 targets"),
    "labels as rows of zeros and ones": ({"targets": np.eye(4, dtype=int)}, r"targets of shape \(4, 4\)"),
    "pixels without a channel": ({"inputs": np.zeros((4, 3), np.uint8)}, r"images of shape \(4, 3\)"),
    "a name for two classes": ({"classes": np.array(["a", "a"])}, "names the class 'a' twice"),
    "a class without a name": ({"classes": np.array(["a", ""])}, "class"),
    "a name over two lines": ({"classes": np.array(["a", "b\nc"])}, "class"),
    "names that are one text": ({"classes": np.array("ab")}, r"classes of .* shape \(\)"),
    "names in a table": ({"classes": np.array([["a", "b"]])}, r"classes of .* shape \(1, 2\)"),
    "names that are fractions": ({"classes": np.array([0.5, 1.5])}, "classes of type float64"),
    "owners that are text": ({"owners": np.array(list("aabb"))}, "owners of type <U1"),
    "owners one too few": ({"owners": np.array([0, 0, 1])}, "4 training samples and 3 owners"),
    "a single owner": ({"owners": np.array([7, 7, 7, 7])}, "data.num_clients is 2"),
    "an array nobody knows": ({"weights": INPUTS}, "has an array weights"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archive_is_refused(name, tmp_path, bounded):
    """Numbers that are none, labels that are none, names that are none: the line names the archive."""
    arrays, message = ARCHIVES[name]
    path = tmp_path / "a.npz"
    np.savez(path, **{"inputs": INPUTS, "targets": TARGETS, **arrays})
    owners = {"partition": Natural()} if "owners" in arrays else {}
    expected = message if message.startswith("data.num") else rf"{message}.*{path}|{path}.*{message}"
    ends_in_one_line(lambda: {"source": str(path), **owners}, expected)


def test_archive_larger_than_the_memory_is_refused(tmp_path, monkeypatch):
    """A million zeros take a few kilobytes packed, and more than a machine of half a megabyte has: nothing is unpacked."""
    np.savez_compressed(tmp_path / "a.npz", inputs=np.zeros((10**6, 1), np.int8), targets=np.zeros(10**6, np.int8))
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 128}.__getitem__)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("unpacked"))
    ends_in_one_line(
        lambda: {"source": str(tmp_path / "a.npz")},
        f"^the arrays of data.source {tmp_path}/a.npz take .*: give a part of them",
    )


def archive_with_header(path: Path, shape: tuple[int, ...], content: bytes = b"") -> Settings:
    """An archive whose ``inputs`` claim a shape that is not behind them."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inputs.npy", header.getvalue() + content)
        targets = io.BytesIO()
        np.save(targets, TARGETS)
        archive.writestr("targets.npy", targets.getvalue())
    return {"source": str(path)}


@case("a.npz.*inputs.*claims")
def archive_that_claims_terabytes(folder: Path) -> Settings:
    return archive_with_header(folder / "a.npz", (1 << 20, 1, 1 << 10, 1 << 10))


@case("a.npz.*inputs.*claims")
def archive_that_claims_a_little_more(folder: Path) -> Settings:
    return archive_with_header(folder / "a.npz", (4, 1, 8, 8), bytes(255))


@case("a.npz.*not an archive")
def archive_with_a_negative_shape(folder: Path) -> Settings:
    return archive_with_header(folder / "a.npz", (-4, 1, 8, 8), bytes(256))


@case("no-such.npz, which does not exist")
def archive_that_is_missing(folder: Path) -> Settings:
    return {"source": str(folder / "no-such.npz")}


@case("a.npz")
def archive_that_is_a_pipe(folder: Path) -> Settings:
    os.mkfifo(folder / "a.npz")
    return {"source": str(folder / "a.npz")}


@case("a.npz")
def archive_that_is_a_folder(folder: Path) -> Settings:
    (folder / "a.npz").mkdir()
    return {"source": str(folder / "a.npz")}


@case("a.npz.*not an archive of plain arrays")
def archive_that_is_a_pickle(folder: Path) -> Settings:
    import pickle

    (folder / "a.npz").write_bytes(pickle.dumps({"inputs": [1]}))
    return {"source": str(folder / "a.npz")}


# Images -----------------------------------------------------------------------------------------------------------------


def images(folder: Path, classes: tuple[str, ...] = ("cat", "dog"), count: int = 2) -> Path:
    """Class folders with a few images of 4x4 pixels."""
    for name in classes:
        (folder / "img" / name).mkdir(parents=True)
        for i in range(count):
            Image.new("L", (4, 4), 10 * i).save(folder / "img" / name / f"{i}.png")
    return folder / "img"


def in_folders(root: Path, **settings: Any) -> Settings:
    return {"source": ImageFolder(**settings), "root": str(root)}


@case("cat/pipe.png is a pipe")
def pipe_in_a_class_folder(folder: Path) -> Settings:
    os.mkfifo(images(folder) / "cat" / "pipe.png")
    return in_folders(folder / "img")


@case("cat/s.png is a socket")
def socket_in_a_class_folder(folder: Path) -> Settings:
    with socket.socket(socket.AF_UNIX) as endpoint:
        before = os.getcwd()
        os.chdir(images(folder) / "cat")  # the name of a socket may have 107 bytes
        endpoint.bind("s.png")
        os.chdir(before)
    return in_folders(folder / "img")


@case("cat/zero.png is a device")
def link_to_an_endless_device(folder: Path) -> Settings:
    (images(folder) / "cat" / "zero.png").symlink_to("/dev/zero")
    return in_folders(folder / "img")


@case("cat/gone.png is a link to nothing")
def link_to_nothing(folder: Path) -> Settings:
    (images(folder) / "cat" / "gone.png").symlink_to(folder / "nowhere")
    return in_folders(folder / "img")


@case("cat/self.png is a link to nothing")
def link_to_itself(folder: Path) -> Settings:
    (images(folder) / "cat" / "self.png").symlink_to("self.png")
    return in_folders(folder / "img")


@case("cat/all.*is a link to a folder that contains it")
def link_to_a_folder_above(folder: Path) -> Settings:
    (images(folder) / "cat" / "all").symlink_to(folder / "img")
    return in_folders(folder / "img")


@case("cat/2.png cannot be read as an image")
def image_without_a_byte(folder: Path) -> Settings:
    (images(folder) / "cat" / "2.png").touch()
    return in_folders(folder / "img")


@case("cat/2.png cannot be read as an image")
def image_that_is_cut_off(folder: Path) -> Settings:
    content = (images(folder) / "cat" / "1.png").read_bytes()
    (folder / "img" / "cat" / "2.png").write_bytes(content[: len(content) // 2])
    return in_folders(folder / "img")


@case("cat/notes.txt cannot be read as an image")
def text_between_images(folder: Path) -> Settings:
    (images(folder) / "cat" / "notes.txt").write_text("cats are fine")
    return in_folders(folder / "img")


def png(width: int, height: int) -> bytes:
    """A PNG of grey pixels that claims a size and holds next to nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(width + 1))) + chunk(b"IEND", b"")


@case("cat/0.png cannot be read as an image.*pixels")
def image_that_claims_a_square_of_50000(folder: Path) -> Settings:
    (images(folder) / "cat" / "0.png").write_bytes(png(50_000, 50_000))
    return in_folders(folder / "img")


@case("13000x13000 pixels: give the source as a class with size|the first image 13000x13000")
def image_that_claims_a_square_of_13000(folder: Path) -> Settings:
    """Pillow itself only warns of it."""
    (images(folder) / "cat" / "0.png").write_bytes(png(13_000, 13_000))
    return in_folders(folder / "img")


@case("images of 1000000x1000000 pixels would take .* GB, .* data.source.size")
def size_of_a_million(folder: Path) -> Settings:
    images(folder)
    return in_folders(folder / "img", size=1_000_000)


@case("4x4.*the first image")
def images_of_two_sizes(folder: Path) -> Settings:
    Image.new("L", (5, 4)).save(images(folder) / "cat" / "0.png")
    return in_folders(folder / "img")


@case(r"class.*caf\\udce9")
def class_whose_name_is_no_text(folder: Path) -> Settings:
    os.rename(images(folder) / "cat", os.fsencode(folder / "img") + b"/caf\xe9")
    return in_folders(folder / "img")


@case("class.*a.nb")
def class_whose_name_has_two_lines(folder: Path) -> Settings:
    os.rename(images(folder) / "cat", folder / "img" / "a\nb")
    return in_folders(folder / "img")


@case("holds no file")
def class_folders_without_images(folder: Path) -> Settings:
    images(folder, count=0)
    return in_folders(folder / "img")


@case("the folder .*test does not exist")
def training_images_alone_in_their_folder(folder: Path) -> Settings:
    images(folder).rename(folder / "train")
    return in_folders(folder)


@case("train and test differ in their class folders")
def class_of_the_test_part_alone(folder: Path) -> Settings:
    (folder / "both").mkdir()
    images(folder).rename(folder / "both" / "train")
    images(folder, ("cat", "owl")).rename(folder / "both" / "test")
    return in_folders(folder / "both")


@case("data.root is .*img, but the folder .* does not exist")
def root_that_is_a_file(folder: Path) -> Settings:
    (folder / "img").touch()
    return in_folders(folder / "img")


def test_links_to_folders_elsewhere_are_followed(tmp_path, bounded):
    """Data often lie on another disk: a class folder that is a link counts as one."""
    root = images(tmp_path)
    (root / "cat").rename(tmp_path / "elsewhere")
    (root / "cat").symlink_to(tmp_path / "elsewhere")
    dataset = ImageFolder().load(root)
    assert dataset.classes == ("cat", "dog")
    assert dataset.train.targets.tolist() == [0, 0, 1, 1]


def test_file_names_may_be_no_text(tmp_path, bounded):
    """A name in Latin-1, as old archives have them: the image counts all the same."""
    root = images(tmp_path)
    os.rename(root / "cat" / "0.png", os.fsencode(root) + b"/cat/caf\xe9.png")
    assert ImageFolder().load(root).train.targets.tolist() == [0, 0, 1, 1]


# Index files ------------------------------------------------------------------------------------------------------------


def indexed(folder: Path, content: str | bytes) -> Settings:
    """The images of two class folders, by a CSV file of this content."""
    root = images(folder)
    Image.new("L", (4, 4)).save(folder / "outside.png")
    raw = content if isinstance(content, bytes) else content.format(root=root, folder=folder).encode()
    (folder / "index.csv").write_bytes(raw)
    return in_folders(root, index=str(folder / "index.csv"))


GOOD = "path,label\ncat/0.png,cat\ndog/0.png,dog\n"
INDICES: dict[str, tuple[str | bytes, str]] = {
    "path that leaves the root": (GOOD + "../outside.png,cat\n", "line 4: ../outside.png is outside data.root"),
    "path that leaves the root deep within": (GOOD + "cat/../../outside.png,cat\n", "line 4: .* is outside data.root"),
    "absolute path out of the root": (GOOD + "{folder}/outside.png,cat\n", "line 4: .*outside.png is outside data.root"),
    "the system's files": (GOOD + "/etc/passwd,cat\n", "line 4: /etc/passwd is outside data.root"),
    "one file under one name twice": (GOOD + "cat/0.png,dog\n", "line 4: cat/0.png is in line 2 too"),
    "one file under two names": (GOOD + "./cat/0.png,dog\n", "line 4: ./cat/0.png .*line 2 too"),
    "one file by a detour": (GOOD + "dog/../cat/0.png,dog\n", "line 4: .*line 2 too"),
    "one file by its absolute path": (GOOD + "{root}/cat/0.png,dog\n", "line 4: .*line 2 too"),
    "folder for an image": (GOOD + "cat,cat\n", "line 4: cat is not a file under data.root"),
    "image that is missing": (GOOD + "cat/9.png,cat\n", "line 4: cat/9.png is not a file under data.root"),
    "path with a zero byte": (GOOD.encode() + b"cat/\x000.png,cat\n", "line 4"),
    "two columns of one name": ("path,label,label\ncat/0.png,cat,dog\n", "label is there twice"),
    "column nobody knows": ("path,label,weight\ncat/0.png,cat,1\n", "weight is not known"),
    "row that is too short": (GOOD + "cat/1.png\n", "line 4: 1 values for the 2 columns"),
    "no header": ("cat/0.png,cat\n", "the column path is missing"),
    "nothing": ("", "the column path is missing"),
    "header alone": ("path,label\n", "names no training image"),
    "test images alone": ("path,label,split\ncat/0.png,cat,test\n", "names no training image"),
    "Latin-1": (GOOD.encode() + b"caf\xe9/0.png,cat\n", "line 4: no UTF-8"),
    "UTF-16": (GOOD.encode("utf-16"), "no UTF-8"),
    "quote without end": (GOOD + 'cat/1.png,"cat\n', "no CSV"),
    "value of a megabyte": (GOOD + "x" * 1_000_000 + ",cat\n", "line 4: no CSV"),
    "label that is empty": (GOOD + "cat/1.png,\n", "line 4: cat/1.png has no label"),
    "label over two lines": (GOOD + 'cat/1.png,"a\nb"\n', "class"),
}


@pytest.mark.parametrize("name", INDICES)
def test_index_is_refused(name, tmp_path, bounded):
    """The line names the file and its line."""
    content, message = INDICES[name]
    ends_in_one_line(lambda: indexed(tmp_path, content), message)


@case("line 5: linked/0.png is in line 2 too")
def index_that_names_a_file_by_a_linked_folder(folder: Path) -> Settings:
    settings = indexed(folder, GOOD + "cat/1.png,cat\nlinked/0.png,dog\n")
    (folder / "img" / "linked").symlink_to("cat")
    return settings


@case("line 4: dog/same.png is in line 2 too")
def index_that_names_a_file_by_a_link(folder: Path) -> Settings:
    settings = indexed(folder, GOOD + "dog/same.png,dog\n")
    (folder / "img" / "dog" / "same.png").symlink_to("../cat/0.png")
    return settings


@case("data.source.index is .*index.csv")
def index_that_is_a_pipe(folder: Path) -> Settings:
    settings = indexed(folder, GOOD)
    (folder / "index.csv").unlink()
    os.mkfifo(folder / "index.csv")
    return settings


@case("cat/pipe.png is not a file under data.root")
def index_that_names_a_pipe(folder: Path) -> Settings:
    settings = indexed(folder, GOOD + "cat/pipe.png,cat\n")
    os.mkfifo(folder / "img" / "cat" / "pipe.png")
    return settings


# LEAF -------------------------------------------------------------------------------------------------------------------

USER = {"x": [[0.0, 0.5], [1.0, 0.25]], "y": [0, 1]}


def leaf(folder: Path, **users: Any) -> Settings:
    """Training and test files of LEAF with users a and b, changed or with others."""
    data = {"a": USER, "b": USER, **users}
    content = {"users": list(data), "num_samples": [len(user["y"]) for user in data.values()], "user_data": data}
    return leaf_file(folder, json.dumps(content))


def leaf_file(folder: Path, content: str | bytes) -> Settings:
    """A training file of LEAF with this content, and a test file that is as it should be."""
    good = json.dumps({"users": ["a"], "num_samples": [2], "user_data": {"a": USER}})
    for part, text in (("train", content), ("test", good)):
        (folder / part).mkdir()
        (folder / part / "all.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return {"source": "leaf", "root": str(folder), "partition": Natural()}


LEAF_USERS: dict[str, tuple[dict[str, Any], str]] = {
    "label of a thousand million": ({"x": USER["x"], "y": [0, 10**9]}, f"label {10**9}"),
    "label of 2^70": ({"x": USER["x"], "y": [0, 1 << 70]}, "labels"),
    "label of 2^63": ({"x": USER["x"], "y": [0, 1 << 63]}, "labels of type float64"),
    "negative label": ({"x": USER["x"], "y": [0, -1]}, "label -1"),
    "label with a fraction": ({"x": USER["x"], "y": [0, 0.5]}, "labels of type float64"),
    "label that is text": ({"x": USER["x"], "y": ["0", "1"]}, "labels of type <U1"),
    "label that is missing": ({"x": USER["x"], "y": [0]}, "2 samples and 1 labels"),
    "values that are text": ({"x": [["0", "1"], ["2", "3"]], "y": [0, 1]}, "values of type <U1"),
    "values that are nothing": ({"x": [[None, 1], [2, 3]], "y": [0, 1]}, "user c"),
    "value that is no number": ({"x": [[float("nan"), 1], [2, 3]], "y": [0, 1]}, "not a finite number"),
    "value that is infinite": ({"x": [[float("inf"), 1], [2, 3]], "y": [0, 1]}, "not a finite number"),
    "value beyond float32": ({"x": [[1e300, 1], [2, 3]], "y": [0, 1]}, "not a finite number of 32 bits"),
    "rows of two lengths": ({"x": [[0.0], [1.0, 0.25]], "y": [0, 1]}, "not vectors of one length"),
    "rows longer than others'": ({"x": [[0.0, 1.0, 2.0]], "y": [0]}, "samples of 2 values, user c of 3"),
    "no sample": ({"x": [], "y": []}, "0 samples"),
    "samples nested deeper": ({"x": [[[0.0]], [[1.0]]], "y": [0, 1]}, r"shape \(2, 1, 1\)"),
    "samples without a value": ({"x": [[], []], "y": [0, 1]}, "user c"),
}


@pytest.mark.parametrize("name", LEAF_USERS)
def test_user_of_leaf_is_refused(name, tmp_path, bounded):
    """One user among good ones."""
    user, message = LEAF_USERS[name]
    ends_in_one_line(lambda: leaf(tmp_path, c=user), message)


LEAF_FILES: dict[str, tuple[str | bytes, str]] = {
    "nothing": ("", "not a JSON file of LEAF"),
    "cut off": ('{"users": ["a"], "user_data": {"a"', "not a JSON file of LEAF"),
    "list": ("[]", "not a JSON file of LEAF"),
    "number": ("3", "not a JSON file of LEAF"),
    "brackets without end": ("[" * 100_000, "not a JSON file of LEAF"),
    "no UTF-8": (b'{"users": ["\xe9"]}', "not a JSON file of LEAF"),
    "number of 5000 digits": ('{"users": [' + "9" * 5000 + "]}", "not a JSON file of LEAF"),
    "no users": ('{"user_data": {}}', "not a JSON file of LEAF"),
    "user without data": ('{"users": ["a", "z"], "user_data": {"a": {"x": [[0.5]], "y": [0]}}}', "not a JSON file of LEAF.*z"),
    "user that is a list": ('{"users": [["a"]], "user_data": {"a": {"x": [[0.5]], "y": [0]}}}', "not a JSON file of LEAF"),
    "users that are no list": ('{"users": 3, "user_data": {}}', "not a JSON file of LEAF"),
    "samples that are no list": ('{"users": ["a"], "user_data": {"a": {"x": 3, "y": 4}}}', "user a labels of type int64"),
    "nobody": ('{"users": [], "num_samples": [], "user_data": {}}', "name no user"),
    "user that stands twice": (
        json.dumps({"users": ["a", "a"], "num_samples": [2, 2], "user_data": {"a": USER}}),
        "user a is twice",
    ),
    "count of samples that lies": (
        json.dumps({"users": ["a"], "num_samples": [10**12], "user_data": {"a": USER}}),
        "user a 2 samples, num_samples says 1000000000000",
    ),
    "counts for too few users": (
        json.dumps({"users": ["a", "b"], "num_samples": [2], "user_data": {"a": USER, "b": USER}}),
        "num_samples has 1 entries for 2 users",
    ),
}


@pytest.mark.parametrize("name", LEAF_FILES)
def test_file_of_leaf_is_refused(name, tmp_path, bounded):
    """The line names the file."""
    content, message = LEAF_FILES[name]
    ends_in_one_line(lambda: leaf_file(tmp_path, content), message)


@case("train/z.json is a pipe")
def pipe_among_files_of_leaf(folder: Path) -> Settings:
    settings = leaf(folder)
    os.mkfifo(folder / "train" / "z.json")
    return settings


@case("train/z.json is a folder")
def folder_among_files_of_leaf(folder: Path) -> Settings:
    settings = leaf(folder)
    (folder / "train" / "z.json").mkdir()
    return settings


@case("train/z.json is a link to nothing")
def link_among_files_of_leaf(folder: Path) -> Settings:
    settings = leaf(folder)
    (folder / "train" / "z.json").symlink_to(folder / "nowhere")
    return settings


# Sources of sources, partitions, sizes ------------------------------------------------------------------------------------


@case("super.csv, line 2: 10 is not a class")
def superclass_of_a_class_that_is_not(folder: Path) -> Settings:
    (folder / "super.csv").write_text("class,superclass\n10,odd\n")
    return {"source": Superclasses("digits", str(folder / "super.csv"))}


@case("super.csv, line 3: 0 is in line 2 too")
def superclasses_of_one_class(folder: Path) -> Settings:
    (folder / "super.csv").write_text("class,superclass\n0,even\n0,odd\n")
    return {"source": Superclasses("digits", str(folder / "super.csv"))}


@case("vectors with samples float32")
def joined_with_vectors(folder: Path) -> Settings:
    np.savez(folder / "v.npz", inputs=INPUTS, targets=TARGETS)
    return {"source": Joined({"digits": "digits", "vectors": str(folder / "v.npz")})}


@case("data.source.size is 1000000")
def joined_images_of_a_million_pixels_a_side(folder: Path) -> Settings:
    return {"source": Joined({"digits": "digits"}, size=1_000_000)}


@case("could not be loaded from Hugging Face|cannot be read as an image")
def hugging_face_folder_with_a_broken_image(folder: Path) -> Settings:
    root = images(folder)
    root.rename(folder / "train")
    (folder / "train" / "cat" / "0.png").write_bytes(b"broken")
    return {"source": HuggingFace(str(folder), test=None)}


def partition_of(folder: Path, content: str) -> Settings:
    (folder / "p.json").write_text(content)
    return {"partition": Fixed(str(folder / "p.json")), "source": "digits"}


PARTITIONS: dict[str, tuple[str, str]] = {
    "nothing": ("", "p.json, which is not JSON"),
    "brackets without end": ("[" * 100_000, "p.json, which is not JSON"),
    "number": ("7", "p.json, which holds no list of lists"),
    "names": ('[["a"], ["b"]]', "p.json, which holds no list of lists"),
    "fractions": ("[[0.5], [1]]", "p.json, which holds no list of lists"),
    "truth values": ("[[true], [false]]", "p.json, which holds no list of lists"),
    "negative index": ("[[0], [-1]]", "names sample -1"),
    "index of 2^40": (f"[[0], [{1 << 40}]]", f"names sample {1 << 40}"),
    "index of 2^70": (f"[[0], [{1 << 70}]]", "not a list of sample indices"),
    "index of two clients": ("[[0, 1], [1, 2]]", "names sample 1 more than once"),
    "client without samples": ("[[0], []]", "gives client 1 no sample"),
    "another number of clients": ("[[0], [1], [2]]", "data.num_clients is 2"),
    "another version": ('{"format": "fl-lightning partition", "version": 99}', "of version 99"),
    "file without clients": ('{"format": "fl-lightning partition", "version": 1}', "a part missing or changed"),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_partition_file_is_refused(name, tmp_path, bounded):
    """A list of index lists, or nothing."""
    content, message = PARTITIONS[name]
    ends_in_one_line(lambda: partition_of(tmp_path, content), message)


@case("data.num_clients is 1000000000000")
def more_clients_than_memory_holds(folder: Path) -> Settings:
    return {"source": "digits", "num_clients": 10**12}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(4)
def test_data_is_refused(name, tmp_path, bounded):
    """Every case of the table."""
    make, message = CASES[name]
    ends_in_one_line(lambda: make(tmp_path), message)
