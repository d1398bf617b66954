"""``python -m studies.side_by_side``: client forgetting of several runs in one picture."""

from pathlib import Path

import pytest
import torch
from options import NO_PICTURES

ROOT = Path(__file__).parent.parent
SMALL = ["--model.net", "MLP", "--model.net.hidden", "[8]", "--data.clients_per_round", "3", *NO_PICTURES]


@pytest.fixture
def folders(run_in, tmp_path, monkeypatch):
    """Runs of two losses, which measured every round and every second one of three."""
    monkeypatch.syspath_prepend(ROOT)

    def run(loss, every):
        options = ["--model.loss", loss, "--trainer.max_steps", "3", "--callbacks.client_forgetting.every", every]
        return run_in(tmp_path / loss, "fit", "--config", "digits_wsm.yaml", *SMALL, *options) / "runs"

    (tmp_path / "CrossEntropy").mkdir()
    (tmp_path / "ReweightedSoftmax").mkdir()
    return [run("CrossEntropy", "1"), run("ReweightedSoftmax", "2")]


@pytest.mark.slow
def test_panels_have_the_measured_numbers_on_one_scale(folders):
    """Of round 2, the last that both measured: accuracy before less after, and the mean of what is off the diagonal."""
    from fl_lightning.report.runs import read_runs
    from studies.side_by_side import side_by_side

    runs = [run for folder in folders for run in read_runs([folder])[0]]
    figure = side_by_side(runs)
    assert "round 2" in figure.get_suptitle()
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert len(panels) == 2
    for axes, run in zip(panels, runs, strict=True):
        before, after = (torch.from_numpy(run.log.tensors[f"clients/accuracy_{name}"][2]) for name in ("before", "after"))
        lost = (before - after).double()
        (image,) = axes.images
        torch.testing.assert_close(torch.from_numpy(image.get_array().data), lost)
        assert image.get_clim() == (-1, 1)
        mean = lost[~torch.eye(3, dtype=torch.bool)].mean()
        assert axes.get_title() == f"{run.results['loss']}\nforgetting {mean:z.2f}"


@pytest.mark.slow
def test_the_command_writes_the_picture(folders, tmp_path):
    from studies.side_by_side import main

    main([str(tmp_path / "a.png"), *map(str, folders)])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_runs_without_a_common_round_are_refused(folders):
    from fl_lightning.report.runs import read_runs
    from studies.side_by_side import side_by_side

    (run,), _ = read_runs(folders[:1])
    run.log.tensors["clients/cohort"].clear()
    with pytest.raises(ValueError, match="callbacks.client_forgetting.every"):
        side_by_side([run])
