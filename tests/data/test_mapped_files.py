"""Tensors in files: what is in memory, what is on the disk, and what is said if that is full."""

import os
from types import SimpleNamespace

import pytest
import torch

from fl_lightning.checks import machine_memory
from fl_lightning.data import mapped_files
from fl_lightning.data.mapped_files import create_rows, empty_rows, open_rows


def files_of_this_process(folder):
    """Files in a folder, without a name too, that are mapped into this process."""
    with open("/proc/self/maps") as maps:
        return [line.split(maxsplit=5)[5].strip() for line in maps if str(folder) in line]


needs_maps = pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc/self/maps, where Linux lists them")


@needs_maps
@pytest.mark.parametrize(("pages", "in_memory"), [(4, True), (3, False)])
def test_rows_of_more_than_half_of_the_memory_are_in_a_file_without_a_name(cache, monkeypatch, pages, in_memory):
    """8,192 bytes and a machine of four or three pages of 4,096; the space is free again with the tensor."""
    monkeypatch.setattr(mapped_files, "machine_memory", lambda: 4096 * pages)
    rows = empty_rows((1024, 2), torch.float32)
    assert (rows.shape, rows.dtype) == ((1024, 2), torch.float32)
    rows[:] = torch.arange(2048.0).reshape(1024, 2)
    assert rows[7].tolist() == [14, 15]
    assert list(cache.iterdir()) == []
    assert (files_of_this_process(cache) == []) == in_memory
    del rows
    assert files_of_this_process(cache) == []


def test_what_is_written_to_one_tensor_is_read_from_the_other(tmp_path):
    """Types of one, two and eight bytes, and one dimension or four; what is written to the copy stays there."""
    for shape, dtype in (((3, 1, 2, 2), torch.uint8), ((5,), torch.float16), ((2, 3), torch.int64), ((4, 2), torch.bool)):
        values = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
        create_rows(tmp_path / "rows", shape, dtype).copy_(values)
        assert os.path.getsize(tmp_path / "rows") == values.nbytes
        read = open_rows(tmp_path / "rows", shape, dtype)
        assert torch.equal(read, values)
        read.zero_()
        assert torch.equal(open_rows(tmp_path / "rows", shape, dtype), values)
    assert open_rows(tmp_path / "none", (0, 3), torch.float32).shape == (0, 3)
    with pytest.raises(ValueError, match="length"):
        open_rows(tmp_path / "rows", (9, 2), torch.bool)


def test_a_file_larger_than_the_memory_is_mapped(tmp_path):
    """With holes, so that it takes no space: its last byte is read, and a write that the file does not get is."""
    size = int(machine_memory()) + (1 << 30)
    with open(tmp_path / "rows", "wb") as file:
        file.truncate(size)
    rows = open_rows(tmp_path / "rows", (size,), torch.uint8)
    rows[5] = 1
    assert rows[[5, -1]].tolist() == [1, 0]


def test_a_disk_without_space_is_named_before_anything_is_written(cache, tmp_path, monkeypatch):
    """2 GB where 1 MB is free: path, sizes and cures; a named file and one without a name."""
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=1000, f_frsize=1000))
    monkeypatch.setattr(mapped_files, "machine_memory", lambda: 0)
    shape = (1000, 2_000_000)
    why = r"could not be written \(it takes 2\.0 GB, the disk has 0\.0\): free some space or choose another folder"
    with pytest.raises(OSError, match=rf"^{tmp_path}/rows {why} with FL_LIGHTNING_CACHE=FOLDER$"):
        create_rows(tmp_path / "rows", shape, torch.uint8)
    with pytest.raises(OSError, match=rf"^{cache} {why} with FL_LIGHTNING_CACHE=FOLDER$"):
        empty_rows(shape, torch.uint8)
    assert os.path.getsize(tmp_path / "rows") == 0


def test_a_file_that_may_not_grow_is_named(tmp_path, largest_file):
    """The system says so before a write could end the process."""
    said = rf"^{tmp_path}/rows could not be written \(File too large\): free some space"
    with pytest.raises(OSError, match=said), largest_file(1000):
        create_rows(tmp_path / "rows", (1001,), torch.uint8)
