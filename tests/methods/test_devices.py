"""Clients that are late, work less, send nothing or lose their upload, in the rounds of methods."""

from pathlib import Path

import pytest
import torch

from fl_lightning import SCAFFOLD, FedAvg, FedCurv, FedDisco, FedNova, LocalOnly, Visit
from fl_lightning.callbacks import Communication
from fl_lightning.data import Devices, Trace
from fl_lightning.privacy import UserLevelDP

COHORT = [0, 1, 2, 3]  # of 4, 6, 4 and 2 local steps


@pytest.fixture
def speeds(tmp_path):
    """Client 3 takes 1 s a sample; the others next to nothing."""
    lines = [f"{client},{1 if client == 3 else 1e6},1e9,1e9" for client in range(5)]
    (tmp_path / "speeds.csv").write_text("client,samples_per_second,download,upload\n" + "\n".join(lines) + "\n")
    return str(tmp_path / "speeds.csv")


@pytest.mark.parametrize(("method", "kept"), [(FedCurv, "fisher"), (SCAFFOLD, "variate")])
def test_a_client_that_does_not_send_keeps_nothing(tiny, method, kept):
    """The server, which keeps the sum of what clients keep, did not learn of it."""

    class Silent(method):
        def cohort(self, round):
            return [Visit(0), Visit(1, sends=False), Visit(2)]

    states = tiny.train(Silent).stored.states
    assert [client for client in (0, 1, 2) if kept in states.read(client).method] == [0, 2]


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "captured"])
@pytest.mark.parametrize("method", [FedAvg, SCAFFOLD])
def test_late_clients_are_as_if_not_drawn(tiny, speeds, engine, method):
    """As without client 3, whose download counts; its state stays empty. Captured programs round in another order."""
    devices = Devices(speeds, deadline=5.0)
    late = tiny.train(method, tiny.new_data(cohorts=[COHORT] * 2, devices=devices), engine=engine)
    without = tiny.train(method, tiny.new_data(cohorts=[COHORT[:3]] * 2), engine=engine)
    tiny.assert_same(late.net, without.net, atol=1e-12 if engine == "captured" else 0)
    for report, other in zip(late.reports, without.reports, strict=True):
        assert (report.clients, report.missing, report.seconds) == (COHORT[:3], [3], 5.0)
        assert report.losses == pytest.approx(other.losses, abs=1e-12)
        assert (report.bytes_up, report.num_updates) == (other.bytes_up, 3)
        assert report.bytes_down == other.bytes_down // 3 * 4
    assert 3 not in late.stored.states.clients()


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "captured"])
@pytest.mark.parametrize("method", [FedAvg, FedNova])
def test_partial_work_equals_a_plain_loop(tiny, speeds, engine, method):
    """Client 3 has time for one of two steps of 4 samples; FedNova divides by the steps that it took."""
    devices = Devices(speeds, deadline=5.0, partial_work=True)
    trained = tiny.train(method, tiny.new_data(cohorts=[COHORT], devices=devices), engine=engine)
    net, steps = tiny.new_net(), {0: 4, 1: 6, 2: 4, 3: 1}
    tiny.num_steps = steps.__getitem__
    locals = {client: tiny.visit(net, client, 1) for client in COHORT}
    new = tiny.mean(locals)
    if method is FedNova:
        shares = {client: tiny.shard_sizes[client] / sum(tiny.shard_sizes[:4]) for client in COHORT}
        effective = sum(shares[client] * steps[client] for client in COHORT)
        for name, old in net.named_parameters():
            changes = [shares[c] / steps[c] * (old - locals[c].get_parameter(name)).detach() for c in COHORT]
            new[name] = old.detach() - effective * sum(changes)
    tiny.assert_same(trained.net, new)
    assert trained.reports[0].missing == []
    assert trained.reports[0].seconds == pytest.approx(4.0, abs=1e-3)


def test_a_round_without_any_upload_leaves_the_model(tiny, speeds):
    """It is lost, with a warning that says so; ten in a row end the run, with what to do."""

    def train(rounds):
        return tiny.train(FedAvg, tiny.new_data(cohorts=[COHORT] * rounds, devices=Devices(speeds, deadline=1e-6)))

    with pytest.warns(UserWarning, match=r"^round 1 is lost: every upload was late or lost \(clients 0, 1, 2, 3\)$"):
        trained = train(2)
    tiny.assert_same(trained.net, tiny.new_net(), atol=0)
    assert [(report.missing, report.lost) for report in trained.reports] == [(COHORT, True)] * 2
    assert trained.lost_rounds.count == 2
    words = "every upload was late or lost .* in 10 rounds in a row: raise data.devices.deadline, or lower data.devices.lost_u"
    with pytest.warns(UserWarning, match="^round 1 is lost"), pytest.raises(FloatingPointError, match=words):
        train(10)


def test_a_deadline_before_any_upload_ends_is_refused(tiny, speeds):
    data = tiny.new_data(cohorts=[COHORT], devices=Devices(speeds, deadline=1e-9))
    with pytest.raises(
        ValueError, match=r"^data\.devices\.deadline is 1e-09 s, but no client can meet it: an upload has \d+ bytes"
    ):
        tiny.train(FedAvg, data)
    tiny.train(LocalOnly, tiny.new_data(cohorts=[COHORT], devices=Devices(speeds, deadline=1e-9)))  # nothing is uploaded


def test_shares_of_a_cohort_are_without_those_that_are_missing(tiny, speeds):
    """FedDisco's, as without the late client."""
    late = tiny.train(FedDisco, tiny.new_data(cohorts=[COHORT] * 2, devices=Devices(speeds, deadline=5.0)))
    without = tiny.train(FedDisco, tiny.new_data(cohorts=[COHORT[:3]] * 2))
    tiny.assert_same(late.net, without.net, atol=0)


@pytest.mark.parametrize("partial_work", [False, True])
def test_visits_of_fewer_steps_stay_as_short(tiny, speeds, partial_work):
    """A method that asks for one step gets one, however many the devices have time for, and takes the time of one."""

    class OneStep(FedAvg):
        def cohort(self, round):
            return [visit._replace(num_steps=1) for visit in super().cohort(round)]

    devices = Devices(speeds, deadline=5.0, partial_work=partial_work)
    trained = tiny.train(OneStep, tiny.new_data(cohorts=[COHORT], devices=devices), engine="sequential")
    expected = tiny.train(OneStep, tiny.new_data(cohorts=[COHORT]), engine="sequential")
    tiny.assert_same(trained.net, expected.net, atol=0)
    assert trained.reports[0].clients == COHORT


def test_a_broadcast_is_made_once_for_each_client(tiny, speeds):
    asked = []

    class Counting(SCAFFOLD):
        def broadcast(self, client):
            asked.append(client)
            return super().broadcast(client)

    tiny.train(Counting, tiny.new_data(cohorts=[COHORT], devices=Devices(speeds, deadline=5.0)))
    before_round_1 = len(asked) - len(COHORT)  # engines are tried before
    assert asked[before_round_1:] == COHORT


def test_lost_uploads_over_a_stop(fit, tiny, tmp_path):
    """A run that stops after two of four rounds and goes on ends with the same bits, and the same total of seconds."""
    lines = "client,samples_per_second,download,upload\n" + "".join(f"{c},{c + 1},1000,500\n" for c in range(5))
    (tmp_path / "speeds.csv").write_text(lines)
    settings = {"file": str(tmp_path / "speeds.csv"), "lost_uploads": 0.4, "deadline": 9.0, "partial_work": True}

    def run(rounds, ckpt_path=None):
        data = tiny.new_data(cohorts=[COHORT] * rounds, devices=Devices(**settings))
        method, watcher = SCAFFOLD(tiny.new_net(), local_epochs=2, engine="sequential"), Communication()
        trainer = fit(method, data, rounds, ckpt_path, precision="64-true", callbacks=[watcher])
        return method, watcher, trainer

    whole, watcher, _ = run(4)
    _, _, trainer = run(2)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    resumed, again, _ = run(4, tmp_path / "two.ckpt")
    tiny.assert_same(resumed.net, whole.net, atol=0)
    assert again.total_seconds == watcher.total_seconds > 0
    assert resumed.newest["communication/total_seconds"] == watcher.total_seconds


def test_other_settings_of_devices_do_not_go_on(fit, tiny, tmp_path):
    def run(lost, ckpt_path=None, rounds=2):
        data = tiny.new_data(cohorts=[COHORT] * rounds, devices=Devices(lost_uploads=lost))
        return fit(FedAvg(tiny.new_net(), engine="sequential"), data, rounds, ckpt_path, precision="64-true")

    run(0.1).save_checkpoint(tmp_path / "run.ckpt")
    with pytest.raises(ValueError, match=r"data\.devices\.lost_uploads is 0\.2, 0\.1 in the run"):
        run(0.2, tmp_path / "run.ckpt", rounds=3)


def test_files_can_move_but_not_change(fit, tiny, speeds, tmp_path):
    """Of a trace, only rounds that the run has had must stay as they are."""

    def run(trace: str, devices: str, ckpt_path=None, rounds=2):
        (tmp_path / "trace.csv").write_text(trace)
        sampler = Trace(str((tmp_path / "trace.csv").rename(tmp_path / f"trace_{rounds}.csv")))
        data = tiny.new_data(cohorts=None, clients_per_round=2, client_sampler=sampler, devices=Devices(devices))
        return fit(FedAvg(tiny.new_net(), engine="sequential"), data, rounds, ckpt_path, precision="64-true")

    checkpoint, other = tmp_path / "run.ckpt", tmp_path / "other.csv"
    other.write_text(Path(speeds).read_text())
    run("0,1,1\n1,1,0\n", speeds).save_checkpoint(checkpoint)
    run("0,1,1,1\n1,1,0,1\n", str(other), checkpoint, 3)
    with pytest.raises(ValueError, match=r"who is there by data\.client_sampler\.file is \["):
        run("0,1,1,1\n1,0,0,1\n", speeds, checkpoint, 3)
    other.write_text(other.read_text().replace("1,1000000.0", "1,5"))
    with pytest.raises(ValueError, match=r"speeds in data\.devices\.file is [0-9a-f]{8}, [0-9a-f]{8} in the run"):
        run("0,1,1,1\n1,1,0,1\n", str(other), checkpoint, 3)


def test_user_level_privacy_refuses_devices(tiny):
    with pytest.raises(
        ValueError, match="^model.privacy is UserLevelDP, which divides by the expected number of clients, but d"
    ):
        data = tiny.new_data(cohorts=None, clients_per_round=2, devices=Devices(lost_uploads=0.1))
        tiny.train(FedAvg, data, norm=False, rounds=1, privacy=UserLevelDP(1.0), server_weighting="uniform")


def test_given_cohorts_need_a_line_for_every_client_too(tiny, tmp_path):
    (tmp_path / "speeds.csv").write_text("client,samples_per_second,download,upload\n0,2,1000,500\n1,2,1000,500\n")
    with pytest.raises(ValueError, match=r"data\.devices\.file is .*speeds\.csv, which has no line for client 2: add one"):
        tiny.new_data(cohorts=[[3]], devices=Devices(str(tmp_path / "speeds.csv")))


def test_seconds_by_hand(tiny, tmp_path):
    """Two steps of 4 samples at 2 a second, the net at 1,000 bytes a second down and 500 up."""
    lines = "client,samples_per_second,download,upload\n" + "".join(f"{c},2,1000,500\n" for c in range(5))
    (tmp_path / "speeds.csv").write_text(lines)
    data = tiny.new_data(cohorts=[[3]], devices=Devices(str(tmp_path / "speeds.csv")))
    (report,) = tiny.train(FedAvg, data).reports
    assert report.bytes_down == report.bytes_up
    assert report.seconds == pytest.approx(2 * 4 / 2 + report.bytes_down / 1000 + report.bytes_up / 500)
    assert torch.tensor(report.losses).isfinite().all()
