"""Decoded datasets on disk."""

import os
import textwrap
import time
from pathlib import Path

import pytest
import torch
from fork_server import fork

from fl_lightning.data.cache import cached
from fl_lightning.data.mapped_files import create_rows
from fl_lightning.data.samples import Dataset, Samples
from fl_lightning.state.cache_files import cache_folder


def test_cache_takes_the_default_folder_from_the_environment(tmp_path, monkeypatch):
    """Without FL_LIGHTNING_CACHE it is fl_lightning in XDG_CACHE_HOME, and without that in ~/.cache."""
    samples = Samples(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
    for variable, folder in (("XDG_CACHE_HOME", tmp_path / "xdg"), ("HOME", tmp_path / "home" / ".cache")):
        monkeypatch.delenv("FL_LIGHTNING_CACHE", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", "")  # as if it were not set
        monkeypatch.setenv(variable, str(folder if variable != "HOME" else folder.parent))
        cached("toy", "x", lambda _: Dataset(samples, samples, ("a",)))
        assert len(list((folder / "fl_lightning").glob("toy-*.pt"))) == 1


def test_a_cache_without_a_folder_is_named(tmp_path, monkeypatch):
    """A file is in its place. Where the folder is given, nobody asks for the home, which some containers lack."""
    monkeypatch.setattr(Path, "home", lambda: pytest.fail("asks for the home"))
    (tmp_path / "file").touch()
    monkeypatch.setenv("FL_LIGHTNING_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(OSError, match=rf"^{tmp_path}/file/cache .* with FL_LIGHTNING_CACHE=FOLDER$"):
        cache_folder()


@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: b"junk", lambda content: content[: len(content) // 2]])
def test_a_damaged_file_is_named(cache, damage):
    """Empty, something else, and cut off: never read as another dataset; without it all is as at first. So with the inputs."""
    samples = Samples(torch.arange(4.0).reshape(2, 2), torch.tensor([0, 1]))

    def load():
        return cached("toy", "x", lambda _: Dataset(samples, samples, ("a", "b")))

    load()
    (file,) = cache.glob("toy-*.pt")
    for damaged in (file, file.with_suffix(".train")):
        damaged.write_bytes(damage(damaged.read_bytes()))
        with pytest.raises(OSError, match=rf"data\.source was decoded to {file}, which is damaged: delete the file") as caught:
            load()
        assert "\n" not in str(caught.value)
        file.unlink()
        assert torch.equal(load().train.inputs, samples.inputs)


def test_failed_decoding_is_not_kept(cache):
    """An error reaches the caller, no cache file is left, and the next call decodes."""
    samples = Samples(torch.arange(4.0).reshape(2, 2), torch.tensor([0, 1]))

    def fail(_):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        cached("toy", "x", fail)
    assert {file.suffix for file in cache.iterdir()} == {".lock"}
    dataset = cached("toy", "x", lambda _: Dataset(samples, samples, ("a", "b")))
    assert torch.equal(dataset.train.inputs, samples.inputs)
    assert cached("toy", "x", fail).classes == ("a", "b")
    with pytest.raises(ValueError, match="broken"):
        cached("toy", "another fingerprint", fail)


def test_what_a_killed_process_left_is_written_anew(cache):
    """Inputs without the file that is written last are half decoded, whatever their length."""
    samples = Samples(torch.arange(4.0).reshape(2, 2), torch.tensor([0, 1]))
    cached("toy", "x", lambda _: Dataset(samples, samples, ("a", "b")))
    (complete,) = cache.glob("*.pt")
    complete.unlink()
    complete.with_suffix(".train").write_bytes(bytes(16))
    dataset = cached("toy", "x", lambda _: Dataset(samples, samples, ("a", "b")))
    assert torch.equal(dataset.train.inputs, samples.inputs)


def test_a_decoder_may_write_inputs_itself(cache):
    """Straight to the file, row by row, a test part without samples among them."""

    def decode(files):
        inputs = create_rows(files["train"], (3, 2), torch.int64)
        for row in range(3):
            inputs[row] = row
        train = Samples(inputs, torch.tensor([0, 1, 1]))
        return Dataset(train, train.none(), ("a", "b"))

    for _ in range(2):
        dataset = cached("toy", "x", decode)
        assert dataset.train.inputs.tolist() == [[0, 0], [1, 1], [2, 2]]
        assert (dataset.test.inputs.shape, dataset.test.inputs.dtype) == ((0, 2), torch.int64)
    assert {file.suffix for file in cache.iterdir()} == {".lock", ".pt", ".train"}


def test_writing_to_samples_does_not_change_the_cache():
    """The tensors are mapped from the file privately: whoever scales them in place spoils no one else's data."""
    samples = Samples(torch.ones(2, 2), torch.tensor([0, 1]))
    cached("toy", "x", lambda _: Dataset(samples, samples, ("a", "b"))).train.inputs.zero_()
    assert torch.equal(cached("toy", "x", lambda _: None).train.inputs, torch.ones(2, 2))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc/self/maps, where Linux lists mapped files")
def test_cached_samples_are_mapped_from_the_file(cache):
    """The tensors' memory is the file itself, so that processes share one copy."""
    samples = Samples(torch.ones(100, 100), torch.zeros(100, dtype=torch.long))
    dataset = cached("toy", "x", lambda _: Dataset(samples, samples, ("a",)))
    mapped = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if str(cache) in line]
    address = dataset.train.inputs.data_ptr()
    assert any(int(start, 16) <= address < int(end, 16) for start, end in mapped)


def test_second_process_waits_for_the_first(tmp_path):
    """While another process decodes, this one waits, decodes nothing itself and gets the other's data."""
    program = textwrap.dedent("""
        import os, pathlib, time, torch
        os.environ["FL_LIGHTNING_CACHE"] = cache
        from fl_lightning.data.cache import cached
        from fl_lightning.data.samples import Dataset, Samples

        def decode(_):
            pathlib.Path(started).touch()
            time.sleep(0.5)
            samples = Samples(torch.arange(6).reshape(3, 2), torch.tensor([0, 1, 1]))
            return Dataset(samples, samples, ("a", "b"))

        cached("toy", "x", decode)
    """)
    started = tmp_path / "started"
    names = {"started": str(started), "cache": os.environ["FL_LIGHTNING_CACHE"]}
    other = fork(exec, program, names)
    deadline = time.monotonic() + 60
    while not started.exists() and other.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    dataset = cached("toy", "x", lambda _: pytest.fail("decoded although another process does so"))
    other.join(timeout=60)
    assert other.exitcode == 0
    assert dataset.train.inputs.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert dataset.classes == ("a", "b")
