"""Clients' states between visits: what a plain dict would hold, through rounds, checkpoints, kills and moves."""

import errno
import gc
import os
import random
import shutil
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from fl_lightning.protocol import ClientState, LearnedTask, SparseTensor, pack
from fl_lightning.run.stored_states import StoredStates
from fl_lightning.state.atomic_files import atomic_save, stored_digest
from fl_lightning.state.client_states import DiskStates, MemoryStates
from fl_lightning.state.state_files import Record, check_files


@pytest.fixture(params=["memory", "disk"])
def states(request, tmp_path):
    return MemoryStates() if request.param == "memory" else DiskStates(tmp_path / "states")


def number(value):
    return ClientState({"value": torch.tensor(float(value))})


def contents(states):
    """All states as numbers, by client."""
    return {client: states.read(client).method["value"].item() for client in states.clients()}


def files(folder):
    """Every file below a folder, by its path there."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def put(states, round, values):
    """A round in which these clients kept these numbers."""
    for client, value in values.items():
        states.write(client, round, number(value))
    states.commit(round, values)


def save(states, path):
    """What a run does with its states at a checkpoint."""
    if isinstance(states, DiskStates):
        states.sweep(path.parent.glob("*.ckpt"))
    atomic_save({"federated": {"client_states": states.checkpoint()}}, path)


def load(path):
    return torch.load(path, weights_only=True)["federated"]["client_states"]


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


# Reading and writing ------------------------------------------------------------------------------------------------------


def test_what_is_read_is_what_was_written(states):
    """All dtypes and shapes, bit for bit, in every part, without gradients; a client without a state has an empty one."""
    tensors = {
        "net.weight": torch.nn.Parameter(torch.randn(3, 4)),
        "half": torch.randn(5).bfloat16(),
        "steps": torch.tensor(7),
        "mask": torch.tensor([True, False]),
        "none": torch.empty(0, 3, dtype=torch.float64),
        "image": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }
    sparse = SparseTensor.of(torch.eye(3))
    state = ClientState(
        method={"variate": tensors, "visits": torch.tensor(3)},
        weights=tensors,
        moments={4: {"step": torch.tensor(7.0)}},
        tasks={2: LearnedTask(tensors, {"mask": sparse})},
    )
    states.write(123456, 1, state)
    states.commit(1, [123456])
    actual = states.read(123456)
    assert torch.equal(actual.method["visits"], state.method["visits"])
    assert torch.equal(actual.moments[4]["step"], state.moments[4]["step"])
    assert torch.equal(actual.tasks[2].sparse["mask"].dense(torch.Size([3, 3])), torch.eye(3))
    for part in (actual.method["variate"], actual.weights, actual.tasks[2].tensors):
        assert list(part) == list(tensors)
        for name, tensor in tensors.items():
            assert part[name].dtype == tensor.dtype
            assert torch.equal(part[name], tensor)
            assert not part[name].requires_grad
    assert not states.read(0)
    assert states.clients() == [123456]


def test_states_are_copies(states):
    """Neither the tensor that was written nor the one that was read is the one in the store."""
    mine = number(1)
    states.write(0, 1, mine)
    mine.method["value"].fill_(2)
    states.commit(1, [0])
    mine.method["value"].fill_(3)
    states.read(0).method["value"].fill_(4)
    assert contents(states) == {0: 1}


def test_a_checkpoint_does_not_change_with_the_next_round(states):
    """It may still be waiting to be written then."""
    put(states, 1, {0: 1, 1: 1})
    saved = states.checkpoint()
    put(states, 2, {0: 2})
    states.commit(3, [], cleared=[1])
    states.restore(saved)
    assert contents(states) == {0: 1, 1: 1}


def test_a_view_is_stored_without_its_base(tmp_path):
    """A row of a million takes the room of a row: below 10 kB, not 4 MB."""
    states = DiskStates(tmp_path)
    states.write(0, 1, ClientState({"row": torch.zeros(1000, 1000)[3]}))
    states.commit(1, [0])
    assert [path.stat().st_size < 10_000 for path in tmp_path.rglob("*.pt")] == [True]


# Rounds -------------------------------------------------------------------------------------------------------------------


def test_a_new_state_counts_from_the_commit(states):
    """Until then the old one is read and checkpointed; those not committed are forgotten and leave no file."""
    put(states, 1, {0: 10, 1: 11})
    for client in (0, 1, 2):
        states.write(client, 2, number(20 + client))
    assert contents(states) == {0: 10, 1: 11}
    other = MemoryStates()
    other.restore(states.checkpoint())
    assert contents(other) == {0: 10, 1: 11}
    states.commit(2, [0])
    assert contents(states) == {0: 20, 1: 11}
    states.commit(3, [])
    assert contents(states) == {0: 20, 1: 11}
    if isinstance(states, DiskStates):  # client 0's state of round 1 is still the checkpoint's
        assert {name.split("/")[1].rsplit(".", 2)[0] for name in files(states.folder)} == {"0.1", "0.2", "1.1"}


def test_the_last_write_of_a_round_counts(states):
    """A client that is fitted twice keeps what it had at the end."""
    states.write(0, 1, number(1))
    states.write(0, 1, number(2))
    states.write(1, 1, number(1))
    states.write(1, 1, ClientState())
    states.commit(1, [0, 1])
    assert contents(states) == {0: 2}


@pytest.mark.parametrize("says", ["written empty", "named", "both"])
def test_a_client_may_keep_nothing_any_more(states, says):
    """It is as one that never came; one that is not committed keeps what it had."""
    put(states, 1, {0: 1, 1: 1, 2: 1})
    for client in (0, 1) if says != "named" else ():
        states.write(client, 2, ClientState())
    states.commit(2, [0] if says != "named" else [], cleared=[0, 3] if says != "written empty" else [])
    assert contents(states) == {1: 1, 2: 1}
    assert not states.read(0)


def test_files_do_not_pile_up_without_checkpoints(tmp_path):
    """One file a client, however many rounds; client 1's goes when it keeps nothing."""
    states = DiskStates(tmp_path)
    for round in range(1, 21):
        put(states, round, {0: round, 1: round})
    assert len(files(tmp_path)) == 2
    states.commit(21, [], cleared=[1])
    assert len(files(tmp_path)) == 1


# Checkpoints --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.one_in(2)
def test_as_plain_dicts_do(tmp_path, seed):
    """Random rounds, checkpoints, lost checkpoints, returns to older ones by the same store or by a new run.

    Every checkpoint that exists can be restored, as every third step tries, and right after a sweep the files are those that
    somebody needs: each state is another number, so what the files hold is compared with what the dicts hold.
    """
    draw, folder = random.Random(seed), tmp_path / "states"
    states, live, saved, round = DiskStates(folder, stamp=1000), {}, {}, 0
    for step in range(60):
        round += 1
        new = {client: 10 * step + number for number, client in enumerate(draw.sample(range(12), 4))}
        for client, value in new.items():
            states.write(client, round, number(value))
        taken = draw.sample(sorted(new), 3)
        kept, cleared = taken[: draw.choice([2, 3])], draw.sample(sorted(set(range(12)) - set(taken)), draw.choice([0, 1]))
        states.commit(round, kept, cleared)
        live = {**live, **{client: new[client] for client in kept}}
        live = {client: value for client, value in live.items() if client not in cleared}
        assert contents(states) == live
        if draw.random() < 0.4:
            path = tmp_path / f"{draw.randrange(4)}.ckpt"
            states.sweep(tmp_path.glob("*.ckpt"))
            on_disk = {torch.load(file)["method/value"].item() for file in folder.rglob("*.pt")}
            assert on_disk == {*live.values(), *(value for _, values in saved.values() for value in values.values())}
            atomic_save({"federated": {"client_states": states.checkpoint()}}, path)
            saved[path] = round, live
        if saved and draw.random() < 0.1:
            path = draw.choice(sorted(saved))
            path.unlink()
            del saved[path]
        if saved and draw.random() < 0.2:
            path = draw.choice(sorted(saved))
            states = draw.choice([states, DiskStates(folder, stamp=2000 + 100 * step)])
            states.restore(load(path))
            round, live = saved[path]
            assert contents(states) == live
        for path, (_, values) in saved.items() if step % 3 == 2 else ():
            other = MemoryStates()
            other.restore(load(path))
            assert contents(other) == values


def test_another_future_leaves_a_checkpoint_as_it_was(tmp_path):
    """A run goes back to round 1 and on with another learning rate: the old round 2 can still be restored."""
    old = DiskStates(tmp_path / "states")
    put(old, 1, {0: 1})
    save(old, tmp_path / "best.ckpt")
    put(old, 2, {0: 2})
    save(old, tmp_path / "last.ckpt")
    new = DiskStates(tmp_path / "states")
    new.restore(load(tmp_path / "best.ckpt"))
    put(new, 2, {0: 3})
    old.restore(load(tmp_path / "last.ckpt"))
    assert (contents(old), contents(new)) == ({0: 2}, {0: 3})


def test_sweep_deletes_what_nobody_needs(tmp_path):
    """Of a killed run's last rounds and half-written files; not what another process is writing, nor what is not ours."""
    killed = DiskStates(tmp_path / "states", stamp=4)
    put(killed, 1, {0: 1})
    save(killed, tmp_path / "last.ckpt")
    put(killed, 2, {0: 2})
    mine, theirs = DiskStates(tmp_path / "states", stamp=5), DiskStates(tmp_path / "states", stamp=5)
    put(mine, 9, {4: 9})  # and goes back to round 1
    mine.restore(load(tmp_path / "last.ckpt"))
    theirs.restore(load(tmp_path / "last.ckpt"))
    theirs.write(1, 2, number(3))
    for name in (".0.1.4.pt.tmp", ".0.2.4.pt.tmp", ".2.2.6.pt.tmp", "notes.txt"):  # a restore adds one to the stamp
        (tmp_path / "states" / "0" / name).touch()
    mine.sweep([tmp_path / "last.ckpt", tmp_path / "gone.ckpt"])
    assert files(tmp_path / "states") == {"0/0.1.4.pt", "0/1.2.6.pt", "0/.2.2.6.pt.tmp", "0/notes.txt"}
    mine.commit(2, [1])
    mine.sweep([])
    assert files(tmp_path / "states") == {"0/0.1.4.pt", "0/1.2.6.pt", "0/notes.txt"}
    assert contents(mine) == {0: 1, 1: 3}
    assert not mine._named  # a run with save_top_k writes and deletes checkpoints without end


@pytest.mark.parametrize("content", [b"", b"garbage", b"list"])
def test_a_checkpoint_that_cannot_be_read_keeps_all_files(tmp_path, content):
    """It may need any of them; the run goes on."""
    put(DiskStates(tmp_path / "states"), 1, {0: 1})
    bad = tmp_path / "last.ckpt"
    bad.write_bytes(content)
    if content == b"list":
        torch.save([1], bad)
    states = DiskStates(tmp_path / "states")
    with pytest.warns(UserWarning, match=r"last\.ckpt cannot be read .*no file in .*states is deleted"):
        states.sweep([bad])
    assert len(files(tmp_path / "states")) == 1


def test_a_checkpoint_without_files_needs_none(tmp_path):
    """One of a run in memory, or of something else."""
    put(DiskStates(tmp_path / "states"), 1, {0: 1})
    memory = MemoryStates()
    put(memory, 1, {0: 1})
    save(memory, tmp_path / "a.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "b.ckpt")
    DiskStates(tmp_path / "states").sweep(tmp_path.glob("*.ckpt"))
    assert files(tmp_path / "states") == set()


@pytest.mark.parametrize("after", ["memory", "disk", "another disk"])
@pytest.mark.parametrize("before", ["memory", "disk"])
def test_memory_and_disk_may_change_between_runs(tmp_path, before, after):
    """Memory to disk, disk to memory, one folder to another: the same states, and only the old folder's run needs it."""
    old = MemoryStates() if before == "memory" else DiskStates(tmp_path / "disk")
    put(old, 3, {0: 1, 5: 2, 70_000: 3})
    save(old, tmp_path / "last.ckpt")
    new = MemoryStates() if after == "memory" else DiskStates(tmp_path / after)
    new.restore(load(tmp_path / "last.ckpt"))
    if after != "disk":
        shutil.rmtree(tmp_path / "disk", ignore_errors=True)
    assert contents(new) == {0: 1, 5: 2, 70_000: 3}
    put(new, 4, {5: 4})
    save(new, tmp_path / "last.ckpt")
    again = MemoryStates()
    again.restore(load(tmp_path / "last.ckpt"))
    assert contents(again) == {0: 1, 5: 4, 70_000: 3}


def test_files_are_copied_where_they_cannot_be_linked(tmp_path, monkeypatch):
    """As from one disk to another."""
    old, new = DiskStates(tmp_path / "old"), DiskStates(tmp_path / "new")
    put(old, 1, {0: 1, 1: 2})
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EXDEV, "Invalid cross-device link")))
    new.restore(old.checkpoint())
    shutil.rmtree(tmp_path / "old")
    assert contents(new) == {0: 1, 1: 2}


def test_a_run_may_move_with_its_folder(tmp_path):
    """Files lie in the run's folder, wherever that was when the checkpoint was written."""
    old = DiskStates(tmp_path / "old")
    put(old, 1, {0: 1})
    saved = old.checkpoint()
    (tmp_path / "old").rename(tmp_path / "new")
    new = DiskStates(tmp_path / "new")
    new.restore(saved)
    assert contents(new) == {0: 1}


@pytest.mark.parametrize("checkpoint", ["new/checkpoints/last.ckpt", "elsewhere/last.ckpt", None])
def test_an_evaluation_finds_the_files_of_a_run_that_has_moved(tmp_path, checkpoint):
    """By its checkpoint; those of a run that lies where it was, by any."""
    folder = tmp_path / "old" / "client_states"
    put(states := DiskStates(folder), 1, {0: 1})
    stored = StoredStates()
    stored.take(states.checkpoint(), num_clients=1)
    if checkpoint is not None and "new" in checkpoint:
        (tmp_path / "old").rename(tmp_path / "new")
    path = checkpoint and str(tmp_path / checkpoint)
    stored.open(SimpleNamespace(ckpt_path=path, global_rank=0, world_size=1, strategy=Mock()), "memory", None)
    assert contents(stored.states) == {0: 1}


@pytest.mark.parametrize("kind", [MemoryStates, DiskStates])
def test_a_restore_replaces_what_is_there(tmp_path, kind):
    """Committed or not."""
    states, saved = (kind(tmp_path / name) if kind is DiskStates else kind() for name in "ab")
    put(saved, 1, {0: 1})
    put(states, 1, {0: 2, 1: 2})
    states.write(0, 2, number(3))
    states.restore(saved.checkpoint())
    states.commit(1, [])
    assert contents(states) == {0: 1}


# Several processes --------------------------------------------------------------------------------------------------------


def test_processes_share_a_folder(tmp_path):
    """Each writes for its clients, now these, now those; all commit the same, and all read everything.

    The first one's sweep spares what the other is writing. Client 5 keeps nothing every other round.
    """
    pair = [DiskStates(tmp_path / "states", stamp=7) for _ in range(2)]
    for round in range(1, 5):
        num_kept = 5 if round % 2 else 6
        for rank, states in enumerate(pair):
            for client in range((rank + round) % 2, 6, 2):
                states.write(client, round, number(10 * round + client) if client < num_kept else ClientState())
        pair[0].sweep([])
        for states in pair:
            states.commit(round, range(num_kept), cleared=range(num_kept, 6))
        assert [contents(states) for states in pair] == [{client: 10 * round + client for client in range(num_kept)}] * 2
        saved = [states.checkpoint() for states in pair]
        assert torch.equal(saved[0]["index"], saved[1]["index"])


@pytest.mark.parametrize("before", ["memory", "disk"])
@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_processes_share_a_restore(tmp_path, before, num_processes):
    """However many there were: on disk all have everything, in memory each has client % processes."""
    old = MemoryStates() if before == "memory" else DiskStates(tmp_path / "old")
    values = {client: 100 + client for client in range(7)}
    put(old, 1, values)
    disk = [DiskStates(tmp_path / "new", stamp=7) for _ in range(num_processes)]
    memory = [MemoryStates() for _ in range(num_processes)]
    for process in range(num_processes):
        disk[process].restore(old.checkpoint(), process, num_processes)
        memory[process].restore(old.checkpoint(), process, num_processes)
    for process in range(num_processes):
        assert contents(disk[process]) == values
        assert contents(memory[process]) == {c: v for c, v in values.items() if c % num_processes == process}


# What goes wrong ----------------------------------------------------------------------------------------------------------


def damage(path, how):
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "garbage": b"x" * 1000, "cut": path.read_bytes()[:-200]}[how])


@pytest.mark.parametrize("how", ["missing", "empty", "garbage", "cut"])
def test_a_state_that_cannot_be_read_is_named(tmp_path, how):
    """One line with the file, the client, its round and a cure; the others can be read."""
    states = DiskStates(tmp_path)
    put(states, 7, {3: 1, 4: 2})
    damage(next(tmp_path.rglob("3.7.*.pt")), how)
    with pytest.raises(ValueError, match=r"3\.7\.\w+\.pt, the state of client 3 from round 7, cannot .*ckpt_path") as error:
        states.read(3)
    one_line(error)
    assert states.read(4) == number(2)


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_a_state_is_the_one_that_the_checkpoint_names(tmp_path, kind):
    """Not an older one of the same client, whole by its own digest, nor one without a digest: the file, and a cure."""
    old = DiskStates(tmp_path / "states")
    put(old, 1, {0: 1, 1: 1})
    save(old, tmp_path / "best.ckpt")
    put(old, 2, {0: 2, 1: 2})
    save(old, tmp_path / "last.ckpt")
    path = next((tmp_path / "states").rglob("0.2.*.pt"))
    whole, older = path.read_bytes(), next((tmp_path / "states").rglob("0.1.*.pt")).read_bytes()
    torch.save(torch.load(path), tmp_path / "no_digest.pt")
    for put_back in (older, (tmp_path / "no_digest.pt").read_bytes()):
        path.write_bytes(put_back)
        with pytest.raises(ValueError, match=r"client 0 from round 2, cannot be read \(it is not the file that") as error:
            states = DiskStates(tmp_path / "states") if kind == "disk" else MemoryStates()
            states.restore(load(tmp_path / "last.ckpt"))
            states.read(0)
        one_line(error)
        assert len(list(check_files(load(tmp_path / "last.ckpt"), tmp_path / "states"))) == 1
        assert not list(check_files(load(tmp_path / "best.ckpt"), tmp_path / "states"))
    path.write_bytes(whole)
    states = DiskStates(tmp_path / "states")
    states.restore(load(tmp_path / "last.ckpt"))
    assert contents(states) == {0: 2, 1: 2}


def test_a_file_put_back_before_a_checkpoint_is_not_ours(tmp_path):
    """An older file of the same client, whole by its own digest: neither the run reads it, nor a run that goes on."""
    states = DiskStates(tmp_path / "states")
    put(states, 1, {0: 1, 1: 1})
    older = next(tmp_path.rglob("0.1.*.pt")).read_bytes()
    put(states, 2, {0: 2})
    next(tmp_path.rglob("0.2.*.pt")).write_bytes(older)
    save(states, tmp_path / "last.ckpt")
    goes_on = DiskStates(tmp_path / "states")
    goes_on.restore(load(tmp_path / "last.ckpt"))
    for one in (states, goes_on):
        with pytest.raises(ValueError, match=r"client 0 from round 2, cannot be read \(it is not the file that the run wrote"):
            one.read(0)
        assert one.read(1) == number(1)


def test_processes_share_digests(tmp_path):
    """Both name the file that one of them wrote, in whichever round it was, whatever was put in its place since."""
    pair = [DiskStates(tmp_path / "states", stamp=7) for _ in range(2)]
    for round, writer in ((1, 0), (2, 1), (3, 0)):
        pair[writer].write(0, round, number(round))
        for states in pair:
            states.commit(round, [0])
        path = tmp_path / "states" / Record(0, round, 7).name
        written = stored_digest(path)
        atomic_save({"odd": torch.ones(1)}, path)
        with pytest.raises(ValueError, match="cannot be read"):
            pair[1 - writer].read(0)
        parts = []
        for states in (*pair, *pair):  # all give before one of them takes
            states.share_digests(lambda part, parts=parts: parts.append(part) or parts)
        assert [states.checkpoint()["digests"].tolist() for states in pair] == [[written]] * 2


def written_by_another_process(folder, client, round, state):
    """A store that has not been told the digest of the file."""
    path = folder / Record(client, round, 7).name
    atomic_save(state, path)
    states = DiskStates(folder, stamp=7)
    states.commit(round, [client])
    return states, path


def test_a_state_has_a_digest_before_a_checkpoint_names_it(tmp_path):
    """A file that has lost it is neither read nor named."""
    states, path = written_by_another_process(tmp_path, 0, 1, pack(number(1)))
    torch.save(torch.load(path), path)
    for use in (partial(states.read, 0), states.checkpoint):
        with pytest.raises(ValueError, match=r"client 0 from round 1, cannot be read \(the digest with which"):
            use()


def test_a_pipe_in_the_place_of_a_state_is_not_waited_for(tmp_path):
    """It is named, like everything that is no file."""
    states, path = written_by_another_process(tmp_path, 3, 7, pack(number(1)))
    path.unlink()
    os.mkfifo(path)
    for use in (partial(states.read, 3), states.checkpoint):
        with pytest.raises(ValueError, match=r"client 3 from round 7, cannot be read \(it is not a file, but a pipe"):
            use()


def test_a_state_of_an_earlier_version_is_named(tmp_path):
    """Such a file holds tensors by name, without parts: one line says who wrote it, and the cure."""
    states, _ = written_by_another_process(tmp_path, 3, 7, {"net.weight": torch.zeros(2)})
    named = r"client 3 from round 7, cannot be read .* another version .*model\.initial_weights"
    with pytest.raises(ValueError, match=named) as error:
        states.read(3)
    one_line(error)


@pytest.mark.parametrize("storage", ["same", "other", "memory"])
def test_lost_files_are_counted(tmp_path, storage):
    """Before anything is read: how many, where, and a cure; what was there before stays."""
    old = DiskStates(tmp_path / "old")
    put(old, 1, {client: client for client in range(5)})
    saved = old.checkpoint()
    for client in (2, 4):
        next((tmp_path / "old").rglob(f"{client}.1.*")).unlink()
    states = {"same": old, "other": DiskStates(tmp_path / "other"), "memory": MemoryStates()}[storage]
    with pytest.raises(FileNotFoundError, match=r"ckpt_path names 5 .*old lacks 2 .*another ckpt_path") as error:
        states.restore(saved)
    one_line(error)
    assert not (tmp_path / "other").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, the device that is always full")
def test_a_full_disk_is_named(tmp_path):
    """One line with the file and a cure, and no half file; the state before still counts."""
    states = DiskStates(tmp_path, stamp=7)
    put(states, 1, {0: 1})
    (tmp_path / "0" / ".0.2.7.pt.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"0\.2\.7\.pt could not be written .*free some space") as error:
        states.write(0, 2, number(2))
    one_line(error)
    assert files(tmp_path) == {"0/0.1.7.pt"}
    assert contents(states) == {0: 1}


# Room ---------------------------------------------------------------------------------------------------------------------


def with_free_disk(monkeypatch, free):
    asked = []
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: (asked.append(Path(path)), usage)[1])
    return asked


def test_room_on_disk(tmp_path, monkeypatch):
    """5,000 x 26.5 MB = 132.5 GB: enough when just that is free, one line with the cure when a byte is missing."""
    states = DiskStates(tmp_path / "runs" / "states")
    asked = with_free_disk(monkeypatch, 132_500_000_000)
    line = f"client state: up to 5,000 clients x 26.5 MB = 132.5 GB on disk in {tmp_path / 'runs' / 'states'}"
    assert states.require_space(5000, 26_500_000) == line
    assert asked == [tmp_path]
    with_free_disk(monkeypatch, 132_499_999_999)
    with pytest.raises(OSError, match=r"model\.client_state is disk.*132\.5 GB.*free some space") as error:
        states.require_space(5000, 26_500_000)
    one_line(error)
    assert files(tmp_path) == set()


def test_room_that_is_taken_already_is_not_asked_for_again(tmp_path, monkeypatch):
    """Two of three clients are on disk: one more fits where one is free."""
    states = DiskStates(tmp_path)
    put(states, 1, {0: 1, 1: 1})
    with_free_disk(monkeypatch, 100)
    assert "up to 3 clients x 100 bytes = 300 bytes" in states.require_space(3, 100)
    with pytest.raises(OSError, match=r"2 clients are there"):
        states.require_space(4, 100)


def test_room_in_memory(monkeypatch):
    """A machine of 1,000 pages of 4,096 bytes holds 4,096 clients of 1,000 bytes, and not one more."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.get)
    assert MemoryStates().require_space(4096, 1000) == "client state: up to 4,096 clients x 1.0 kB = 4.1 MB in memory"
    with pytest.raises(MemoryError, match=r"4,097 clients.*4\.1 MB: set model\.client_state: disk") as error:
        MemoryStates().require_space(4097, 1000)
    one_line(error)


# Cost ---------------------------------------------------------------------------------------------------------------------


def test_states_on_disk_take_no_memory(tmp_path):
    """After writes, commits, reads and a restore of 200 states as many tensors are alive as before."""

    def alive():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    states, before = DiskStates(tmp_path / "a"), alive()
    put(states, 1, {client: client for client in range(200)})
    states.write(0, 2, number(0))
    assert sum(states.read(client).method["value"].item() for client in range(200)) == 199 * 100
    other = DiskStates(tmp_path / "b")
    other.restore(states.checkpoint())
    assert alive() == before
    saved = torch.zeros(1)
    assert alive() == before + 1  # the count sees tensors
    del saved


@pytest.mark.slow
def test_a_large_index_is_quick(tmp_path):
    """100,000 clients are checkpointed and restored in a second of processor time each; a round costs what its cohort costs."""
    states = DiskStates(tmp_path / "states", stamp=7)
    for first in range(0, 100_000, 1000):  # links: 100,000 separate files take a minute on some file systems
        names = [tmp_path / "states" / Record(client, 1, 7).name for client in range(first, first + 1000)]
        names[0].parent.mkdir(parents=True)
        atomic_save({}, names[0], lasting=False)
        for name in names[1:]:
            os.link(names[0], name)
    states.commit(1, range(100_000))
    saved = states.checkpoint()
    assert saved["index"].nbytes + saved["digests"].nbytes == 100_000 * 4 * 8

    def seconds(job):
        times = [time.process_time()]
        for _ in range(3):
            job()
            times.append(time.process_time())
        return min(after - before for before, after in pairwise(times))

    assert seconds(states.checkpoint) < 1
    assert seconds(lambda: states.restore(saved)) < 3
    assert len(states.clients()) == 100_000
    assert seconds(lambda: states.commit(2, range(10))) < 0.02
