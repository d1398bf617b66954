"""Atomic writing: the new file whole, or the old one untouched, and never a leftover."""

import errno
import os
import re
import signal
import stat
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from fl_lightning.state.atomic_files import atomic_save, atomic_write, checked_load, naming_folder, stored_digest


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


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc, which names open files")
@pytest.mark.parametrize("lasting", [True, False])
def test_data_is_on_disk_before_the_name_changes_and_the_name_at_the_end(tmp_path, monkeypatch, lasting):
    """In a new folder: that folder's name, the data, and the file's name, unless it need not last yet."""
    calls = []
    fsync, replace = os.fsync, os.replace

    def sync(file):
        calls.append(("fsync", os.readlink(f"/proc/self/fd/{file}")))
        fsync(file)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append(("replace", str(paths[1]))), replace(*paths)))
    with atomic_write(tmp_path / "a" / "x", lasting) as temporary:
        temporary.write_text("x")
    expected = [("fsync", tmp_path), ("fsync", temporary), ("replace", tmp_path / "a" / "x"), ("fsync", tmp_path / "a")]
    assert calls == [(call, str(path)) for call, path in (expected if lasting else expected[:-1])]


@pytest.mark.parametrize(("code", "passes"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)])
def test_a_file_system_may_know_no_sync_of_folders(tmp_path, monkeypatch, code, passes):
    """It says so by one of two errors; any other is one of the disk."""
    fsync = os.fsync

    def sync(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(file)

    monkeypatch.setattr(os, "fsync", sync)
    with (
        nullcontext() if passes else pytest.raises(OSError, match=r"x could not be written \(Input/output error\)"),
        atomic_write(tmp_path / "x") as temporary,
    ):
        temporary.write_text("x")


def test_folder_in_the_place_of_the_file_is_named(tmp_path):
    """The target is a folder: OSError with the path and a cure, and no temporary file."""
    (tmp_path / "taken").mkdir()
    with (
        pytest.raises(OSError, match=r"taken could not be written \(Is a directory\): choose another folder"),
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
    said = r"result\.pt could not be written \(File too large\): free some space"
    with pytest.raises(OSError, match=said), largest_file(200_000):
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


def test_a_file_must_have_the_digest_that_is_asked_for(tmp_path):
    """Its own is that of its end; another file's, and a file without one, are refused."""
    atomic_save(torch.arange(3.0), tmp_path / "a.pt")
    atomic_save(torch.arange(4.0), tmp_path / "b.pt")
    torch.save(torch.arange(3.0), tmp_path / "c.pt")
    digest = stored_digest(tmp_path / "a.pt")
    assert (tmp_path / "a.pt").read_bytes().endswith(f"crc32:{digest:08x}".encode())
    assert checked_load(tmp_path / "a.pt", digest=digest).tolist() == [0, 1, 2]
    assert stored_digest(tmp_path / "c.pt") is None
    for name, found in (("b.pt", "[0-9a-f]{8}"), ("c.pt", "none")):
        with pytest.raises(ValueError, match=f"not the file that the run wrote: .* is {found}, not {digest:08x}"):
            checked_load(tmp_path / name, digest=digest)


def test_what_is_no_file_is_refused(tmp_path):
    """To open a pipe that nobody writes to takes for ever."""
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "folder.pt").mkdir()
    for name in ("pipe.pt", "folder.pt"):
        with pytest.raises(ValueError, match="it is not a file, but a pipe, a folder or a device"):
            checked_load(tmp_path / name)


def test_a_missing_file_is_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        checked_load(tmp_path / "a.pt")


class _Interrupts:
    """Ctrl-C comes while this is written."""

    def __reduce__(self):
        signal.raise_signal(signal.SIGINT)
        return OrderedDict, ()


@pytest.fixture
def heeded() -> Iterator[None]:
    """Ctrl-C raises, in a background job too, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded")
def test_ctrl_c_while_a_file_is_written_raises_once_it_is_whole(tmp_path):
    """In torch's writer it would come out as an error about positions in the file."""
    path = tmp_path / "weights.ckpt"
    with pytest.raises(KeyboardInterrupt):
        atomic_save({"none": _Interrupts(), "weight": torch.arange(3.0)}, path)
    assert checked_load(path)["weight"].tolist() == [0, 1, 2]
    assert names(tmp_path) == ["weights.ckpt"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
