"""Atomic writing: the new file whole, or the old one untouched, and never a leftover."""

import errno
import os
import re
import signal
import zipfile
import zlib
from collections import OrderedDict

import pytest
import torch

from fl_lightning.atomic_files import atomic_save, atomic_write, checked_load, naming_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_file_takes_its_place_when_the_block_ends(tmp_path):
    """Inside the block the target still holds the old text; afterwards the new one, and nothing lies next to it."""
    target = tmp_path / "result.txt"
    target.write_text("old")
    with atomic_write(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
        assert temporary.parent == tmp_path
    assert target.read_text() == "new"
    assert names(tmp_path) == ["result.txt"]


def test_missing_folders_are_made(tmp_path):
    """The target's folders need not exist; a path may be given as text."""
    with atomic_write(str(tmp_path / "a" / "b" / "c.txt")) as temporary:
        temporary.write_text("x")
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "x"


def test_bare_file_name_is_written_in_the_working_folder(tmp_path, monkeypatch):
    """A name without a folder works too."""
    monkeypatch.chdir(tmp_path)
    with atomic_write("c.txt") as temporary:
        temporary.write_text("x")
    assert names(tmp_path) == ["c.txt"]


@pytest.mark.parametrize("error", [ValueError("bad value"), KeyboardInterrupt(), RuntimeError("broken")])
def test_error_in_the_block_keeps_the_old_file(tmp_path, error):
    """After half of the new text was written: same error outside, old text, no temporary file."""
    target = tmp_path / "result.txt"
    target.write_text("old")
    with pytest.raises(type(error)) as caught, atomic_write(target) as temporary:
        temporary.write_text("half")
        raise error
    assert caught.value is error
    assert target.read_text() == "old"
    assert names(tmp_path) == ["result.txt"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_killed_writer_leaves_the_old_file(tmp_path):
    """kill -9 in the middle of the block: the old text stays, and the next write sweeps up what the kill left."""
    target = tmp_path / "result.txt"
    target.write_text("old")
    child = os.fork()
    if child == 0:
        try:
            with atomic_write(target) as temporary:
                temporary.write_text("half")
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert target.read_text() == "old"
    with atomic_write(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "new"
    assert names(tmp_path) == ["result.txt"]


def test_data_is_on_disk_before_the_name_changes(tmp_path, monkeypatch):
    """fsync comes before replace, else a power cut could leave the new name with no data."""
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append("fsync"), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    with atomic_write(tmp_path / "x") as temporary:
        temporary.write_text("x")
    assert calls[:2] == ["fsync", "replace"]


def test_folder_in_the_place_of_the_file_is_named(tmp_path):
    """The target is a folder: OSError with the path and a cure, and no temporary file."""
    (tmp_path / "taken").mkdir()
    with (
        pytest.raises(OSError, match=r"taken could not be written .*choose another folder"),
        atomic_write(tmp_path / "taken") as file,
    ):
        file.write_text("x")
    assert names(tmp_path) == ["taken"]


def test_file_in_the_place_of_the_folder_is_named(tmp_path):
    """The target's folder is a file: OSError with the path and a cure, like every other failure to write."""
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(OSError, match=r"out\.txt could not be written .*choose another folder"),
        atomic_write(tmp_path / "file" / "out.txt") as temporary,
    ):
        temporary.write_text("x")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, the device that is always full")
@pytest.mark.parametrize("size", [10, 100000])
def test_full_disk_is_named(tmp_path, size):
    """A tensor saved to a full disk: OSError with the path and a cure, whatever torch makes of it; the old file stays."""
    target = tmp_path / "result.pt"
    target.write_text("old")
    (tmp_path / ".result.pt.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"result\.pt could not be written .*free some space"):
        atomic_save(torch.zeros(size), target)
    assert target.read_text() == "old"
    assert names(tmp_path) == ["result.pt"]


def test_a_disk_that_fills_up_while_writing_is_named(tmp_path, largest_file):
    """A limit of 200 kB for a file, which a megabyte of weights exceeds in the middle: the file and a cure; nothing is left."""
    largest_file(200_000)
    with pytest.raises(OSError, match=r"result\.pt could not be written \(File too large\): free some space"):
        atomic_save({"small": torch.zeros(10_000), "large": torch.zeros(250_000)}, tmp_path / "result.pt")
    assert names(tmp_path) == []


def test_a_folder_is_named_where_an_error_names_no_file():
    """The system names a file that cannot be opened, and none where it is full; an error of ours has its text already."""
    with (
        pytest.raises(OSError, match=r"^runs/a could not be written \(No space left on device\): free some space"),
        naming_folder("runs/a"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    for error in (FileNotFoundError(errno.ENOENT, "No such file", "b.txt"), OSError("in our words")):
        with pytest.raises(OSError, match=re.escape(str(error))) as caught, naming_folder("runs/a"):
            raise error
        assert caught.value is error


def test_other_errors_are_not_blamed_on_the_target(tmp_path):
    """A missing input read inside the block is not a failure to write: the error names the input, not a full disk."""
    with pytest.raises(FileNotFoundError, match=r"input\.txt"), atomic_write(tmp_path / "output.txt") as temporary:
        temporary.write_text((tmp_path / "input.txt").read_text())
    assert names(tmp_path) == []


def test_what_is_saved_comes_back(tmp_path):
    """By each of torch's modes of reading and by ours; elsewhere torch goes on writing its checksums."""
    value = {"a": torch.arange(5.0), "b": [1, "two"]}
    atomic_save(value, tmp_path / "a.pt")
    for options in ({}, {"weights_only": True}, {"mmap": True}):
        read = torch.load(tmp_path / "a.pt", **options)
        assert torch.equal(read["a"], value["a"])
        assert read["b"] == value["b"]
    for mmap in (False, True):
        assert torch.equal(checked_load(tmp_path / "a.pt", mmap)["a"], value["a"])
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        assert archive.testzip() is not None
    torch.save(value, tmp_path / "b.pt")
    with zipfile.ZipFile(tmp_path / "b.pt") as archive:
        assert archive.testzip() is None


def test_the_digest_is_the_comment_of_the_archive(tmp_path):
    """CRC-32 of the archive as it would be without a comment: it then ends with two bytes of 0, the comment's length."""
    atomic_save({"a": torch.arange(1000)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        comment = archive.comment
    plain = (tmp_path / "a.pt").read_bytes()[: -2 - len(comment)] + bytes(2)
    assert comment == f"crc32:{zlib.crc32(plain):08x}".encode()


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path):
    """At one of a hundred positions, the digest's among them."""
    atomic_save(torch.arange(300.0), tmp_path / "a.pt")
    whole = (tmp_path / "a.pt").read_bytes()
    for position in [*range(0, len(whole), len(whole) // 100), len(whole) - 30, len(whole) - 10, len(whole) - 1]:
        changed = bytearray(whole)
        changed[position] ^= 1 << position % 8
        (tmp_path / "a.pt").write_bytes(changed)
        with pytest.raises(ValueError, match=r"\A.*\Z"):
            checked_load(tmp_path / "a.pt")


def test_a_missing_file_is_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        checked_load(tmp_path / "a.pt")


class _Interrupts:
    """Ctrl-C comes while this is written."""

    def __reduce__(self):
        signal.raise_signal(signal.SIGINT)
        return OrderedDict, ()


def test_ctrl_c_while_a_file_is_written_raises_once_it_is_whole(tmp_path):
    """In torch's writer it would come out as an error about positions in the file."""
    path = tmp_path / "weights.ckpt"
    with pytest.raises(KeyboardInterrupt):
        atomic_save({"none": _Interrupts(), "weight": torch.arange(3.0)}, path)
    assert checked_load(path)["weight"].tolist() == [0, 1, 2]
    assert names(tmp_path) == ["weights.ckpt"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
