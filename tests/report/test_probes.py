"""What the probes measured, in a report: numbers by hand, and a run."""

import csv

import numpy as np
import pytest
from options import NO_PICTURES
from recorded import RecordWriter

from fl_lightning.report.commands import report
from fl_lightning.report.log import read_log
from fl_lightning.report.run_figures import pictures

HEAD = [[1.0, 2.0], [1.5, 2.0], [1.0, 1.0]]  # the global model's rows, then those of clients 3 and 8
TENSORS = {
    "head/norm": HEAD,
    "head/logit": HEAD,
    "head/cohort": [3, 8],
    "head/holds": [[1, 0], [0, 1]],
    "drift/class": [[0.25, 0.5], [0.75, 0.0]],
    "drift/cohort": [3, 8],  # of an older run, without drift/holds
    "cka/clients": [[0.75, 0.5], [1.0, 0.25]],
    "cka/cohort": [3, 8],
}
EVENTS = {1: [0.0, 0.0], 2: [0.25, 0.5]}  # by round
NAMES = {
    "head/norm_held": (0.5, 0.25),
    "cka/first": (0.875, 0.5),
    "cka/last": (0.375, 0.5),
    "events/mean": (1.0, 3.0),
}  # by seed
HEATMAPS = {
    "head/norms": [[0.5, 0.0], [0.0, -0.5]],
    "head/logits": [[0.5, 0.0], [0.0, -1.0]],
    "drift/classes": [[0.25, 0.5], [0.75, 0.0]],
    "cka/clients": [[0.75, 0.5], [1.0, 0.25]],
    "events/classes": [[0.0, 0.25], [0.0, 0.5]],
}


@pytest.fixture
def folders(write_run):
    """Two seeds of one method."""
    found = []
    for seed in (0, 1):
        scalars = {name: {1: -9.0, 2: values[seed]} for name, values in NAMES.items()}
        found.append(write_run("a", {1: 0.25, 2: 0.5}, seed=seed, scalars=scalars))
        with RecordWriter(found[-1]) as more:
            for name, values in TENSORS.items():
                more.add_tensor(name, values, 2)
            for round, shares in EVENTS.items():
                more.add_tensor("events/class", shares, round)
    return found


def test_the_newest_values_with_intervals(folders, no_pictures, tmp_path):
    """Of two seeds the mean, and from it 12.706 (t of .975 with one degree of freedom) times half the difference."""
    report([tmp_path / "runs"], out=tmp_path / "report")
    with open(tmp_path / "report" / "tables" / "probes.csv", newline="") as file:
        rows = {row["scalar"]: row for row in csv.DictReader(file)}
    assert rows.keys() == NAMES.keys()
    for name, (one, other) in NAMES.items():
        mean, half = (one + other) / 2, 12.7062 * abs(one - other) / 2
        found = [float(rows[name][column]) for column in ("value_mean", "low", "high")]
        assert found == pytest.approx([mean, mean - half, mean + half], abs=1e-4), name
    page = (tmp_path / "report" / "report.md").read_text()
    assert "## Why clients forget" in page
    assert page.count("_2.png)") == len(HEATMAPS)


def test_numbers_of_the_heatmaps(folders):
    """Clients less the global model, relative to it for norms; a column of events for each measurement."""
    drawn = {picture.tag: picture.draw(2) for picture in pictures(read_log(folders[0]))}
    assert drawn.keys() == HEATMAPS.keys()
    for tag, values in HEATMAPS.items():
        (image,) = drawn[tag].axes[0].images
        assert np.array_equal(image.get_array(), values), tag
    frames = [patch.get_xy() for patch in drawn["head/norms"].axes[0].patches]
    assert frames == [(-0.5, -0.5), (0.5, 0.5)]
    assert not drawn["drift/classes"].axes[0].patches
    assert [label.get_text() for label in drawn["cka/clients"].axes[0].get_xticklabels()] == ["first", "last"]


def test_runs_without_probes_have_no_section(write_run, tmp_path):
    write_run("a", {1: 0.25, 2: 0.5})
    report([tmp_path / "runs"], out=tmp_path / "report")
    assert "Why clients forget" not in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.slow
def test_a_run_with_all_probes(main, no_pictures, tmp_path):
    """What the callbacks write is what the report reads: each heatmap, and the frames of the classes that clients hold."""
    probes = ("HeadByClass", "FeatureDrift", "RepresentationSimilarity", "ForgettingEvents")
    entries = "".join(f"    - class_path: fl_lightning.callbacks.{name}\n      init_args: {{every: 1}}\n" for name in probes)
    (tmp_path / "mine.yaml").write_text(f"trainer:\n  callbacks:\n{entries}")
    quick = ["--trainer.max_steps", "2", "--model.local_steps", "2", "--trainer.default_root_dir", "run", *NO_PICTURES]
    assert main("fit", "--config", "digits_wsm.yaml", "--config", "mine.yaml", *quick)[0] == 0
    assert main("report", "run", "--out", "report")[0] == 0
    page = (tmp_path / "report" / "report.md").read_text()
    section = page[page.index("## Why clients forget") : page.index("## Communication")]
    assert section.count(".png)") == len(HEATMAPS)
    for scalar in ("head/logit", "drift/absent", "cka/classifier", "events/mean"):
        assert scalar in section.replace("\\", "")
    log = read_log(tmp_path / "run" / "digits_wsm" / "version_0")
    drawn = {picture.tag: picture.draw(2) for picture in pictures(log) if picture.tag in HEATMAPS}
    assert drawn.keys() == HEATMAPS.keys()
    assert len(drawn["head/norms"].axes[0].patches) == len(drawn["drift/classes"].axes[0].patches) > 0
