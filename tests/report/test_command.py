"""The command: a whole report in a folder, what it refuses, and a report of real runs."""

import csv
import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image
from recorded import RecordWriter

from fl_lightning.report.commands import report
from fl_lightning.report.runs import read_runs
from fl_lightning.sweep.run_folder import final_metrics

CLASSES = {f"class_accuracy/{name}": {1: 0.25, 2: 0.5, 4: 0.75} for name in ("cat", "dog", "<b>owl</b>")}


@pytest.fixture
def all_kinds(write_run):
    """Two losses, two rates and two alphas on two seeds, with everything that a section is made of."""
    for loss in ("CrossEntropy", "TruncatedCrossEntropy"):
        for rate in (0.1, 0.3):
            for alpha in (0.1, 1.0):
                for seed in range(2):
                    scalars = CLASSES | {
                        "forgetting/round": {1: 0.5, 2: 0.25, 4: 0.125},
                        "forgetting/client_mean": {4: -0.25},
                        "communication/total_down": {1: 1e6, 4: 4e6},
                        "communication/total_up": {1: 1e6, 4: 4e6},
                    }
                    changes = {"model__loss": loss, "model__optimizer__lr": rate, "data__partition__alpha": alpha}
                    curve = {1: 0.25, 2: 0.5, 4: 0.5 + rate / 2 + seed / 8}
                    folder = write_run(f"{loss}_{rate}_{alpha}", curve, seed=seed, scalars=scalars, **changes)
                    with RecordWriter(folder) as more:
                        more.add_tensor("forgetting/local", [[0.105, 2.0], [0.505, 1.0]], 4)
                        for name, shape in (("accuracy_before", 3), ("accuracy_after", (3, 3))):
                            more.add_tensor(f"clients/{name}", torch.ones(shape) / 2, 4)
                        more.add_tensor("clients/class_cohort", torch.arange(3.0), 4)
                        more.add_tensor("clients/cohort", torch.arange(3.0), 4)
                        more.add_tensor("clients/class_accuracy", torch.ones(5, 3) / 2, 4)


class Page(HTMLParser):
    """Headings, cells, and everything that a page could load."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.loads, self.ids, self.text = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        values = dict(attributes)
        self.loads += [values[key] for key in ("src", "href", "xlink:href", "data", "action") if key in values]
        self.ids += [values["id"]] if "id" in values else []

    def handle_data(self, data):
        self.text.append(data.strip())


@pytest.mark.slow
def test_a_report_of_all_sections(all_kinds, write_run, main, tmp_path):
    """Files, sections, the same numbers in all three forms; nothing from elsewhere; a second report replaces the first."""
    code, out, err = main("report", str(tmp_path / "runs"), "--out", "out", "--rounds", "[4,7]")
    assert (code, out) == (0, "Report of 16 runs of 8 methods: out/report.html\n")
    assert err == "--rounds has 7, but this round has no heatmap: give 4\n"
    folder = tmp_path / "out"
    pictures = {
        "accuracy",
        "ablation_alpha",
        "ablation_learning_rate",
        "forgetting_round_over_rounds",
        "forgetting_client_mean_over_rounds",
        "forgetting_round",
        "forgetting_local",
        "class_accuracy",
    }
    pictures |= {"who_forgets_whose_data_4", "one_round_by_class_4", "communication"}
    assert {path.name for path in (folder / "figures").iterdir()} == {
        f"{name}.{end}" for name in pictures for end in ("png", "svg", "pdf")
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.glob("figures/*.png"))

    with open(folder / "tables" / "final_accuracy.csv", newline="") as file:
        final = {row["method"]: row for row in csv.DictReader(file)}
    row = final["FedAvg, CrossEntropy, lr 0.3, alpha 1"]
    mean = np.mean([0.5 + 0.15 + seed / 8 for seed in range(2)])  # round 4 alone is of the second half
    assert float(row["final_mean"]) == pytest.approx(mean)
    assert row["p"] == ""
    text = (folder / "report.md").read_text()
    assert "| FedAvg, CrossEntropy, lr 0.3, alpha 1 | 2 | **0.713 ± 0.088** |" in text  # of .65 and .775
    named = set(re.findall(r"\]\(((?:figures|tables)/[^)]+)\)", text))
    assert named == {str(path.relative_to(folder)) for path in folder.glob("*/*")}

    page = Page((folder / "report.html").read_text())
    assert "0.713 ± 0.088" in page.text
    assert [load for load in page.loads if not load.startswith(("#", "data:image/png;base64,"))] == []
    assert not {"script", "link", "iframe", "img"} & set(page.tags)
    assert "url(" not in re.sub(r"url\(#", "", (folder / "report.html").read_text())
    assert [name for name, times in Counter(page.ids).items() if times > 1] == []
    assert page.tags.count("svg") == len(pictures)
    headings = ["Accuracy over rounds", "Final accuracy", "Rounds to a target accuracy", "Robustness to the learning rate"]
    headings += ["Ablation: alpha", "Ablation: learning rate", "Forgetting", "Accuracy by class", "Who forgets"]
    headings += ["Communication and model size", "Time", "Runs"]
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == headings
    assert [heading for heading in headings if heading not in page.text] == []

    write_run("one", {1: 0.5}, model="FedNova")  # a report of this alone has fewer files
    assert main("report", str(tmp_path / "runs" / "seed_0" / "one"), "--out", "out")[0] == 0
    assert {path.name for path in folder.glob("figures/*")} == {"accuracy.png", "accuracy.svg", "accuracy.pdf"}
    assert Image.open(folder / "figures" / "accuracy.png").width == 1650  # 5.5 inches of 300 dots
    tables = ("final_accuracy", "rounds_to_target", "time", "runs")
    assert {path.name for path in folder.glob("tables/*")} == {f"{name}.{end}" for name in tables for end in ("csv", "tex")}
    text = (folder / "report.md").read_text()
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == [*headings[:3], "Time", "Runs"]
    assert "With one seed, variation cannot be estimated" in text


def test_a_folder_of_something_else_is_left_alone(write_run, main, tmp_path):
    write_run("a", {1: 0.5})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("my thesis")
    code, _, err = main("report", "runs", "--out", "mine")
    assert (code, err) == (
        1,
        "fl-lightning: error: --out is mine, which holds something other than a report: give another folder\n",
    )
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["report.html"]
    (tmp_path / "file").write_text("")
    for out in ("file", "file/x"):
        assert f"--out is {out}, which is a file or is inside one" in main("report", "runs", "--out", out)[2]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["gone"], "RUNS has gone, which is not a folder"),
        (["runs", "--target", "90"], "--target is 90.0, must be above 0 and at most 1"),
        (["runs", "--baseline", "TCE"], "--baseline is TCE, must be one of: FedAvg"),
        (["runs", "--metrics", "x"], "metrics is not an option here"),
        (["runs", "--rounds", "few"], "rounds"),
        ([], "runs"),
    ],
)
def test_a_mistake_is_one_line(write_run, main, tmp_path, arguments, error):
    write_run("a", {1: 0.5})
    code, _, err = main("report", *arguments)
    assert code == 1
    assert err.startswith("fl-lightning: error: ")
    assert error in err
    assert err.count("\n") == 1
    assert not (tmp_path / "report").exists()


def test_help_names_the_options(main):
    code, out, _ = main("report", "--help")
    assert code == 0
    assert all(option in out for option in ("RUNS", "--out", "--baseline", "--target", "--rounds"))


def test_names_with_markup_are_text(write_run, tmp_path):
    write_run("a", {1: 0.5}, data__source="<script>alert(1)</script>")
    report([tmp_path / "runs"], out=tmp_path / "out")
    assert "<script>" not in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_real_runs(main, tmp_path):
    """Two seeds of a run on digits, five rounds each: the report's numbers are those of results.json and sweeps."""
    fit = ["fit", "--config", "digits_tce.yaml", "--trainer.max_steps", "5", "--trainer.val_check_interval", "1"]
    fit += ["--callbacks.client_forgetting.rounds", "[5]", "--callbacks.per_class_accuracy.clients_every", "5"]
    fit += ["--model.net", "MLP", "--callbacks.label_counts.every", "0", "--callbacks.round_forgetting.every", "0"]
    for seed in ("1", "2"):
        assert main(*fit, "--seed_everything", seed)[0] == 0
    assert main("report", "runs") == (0, "Report of 2 runs of 1 method: report/report.html\n", "")
    runs, _ = read_runs([tmp_path / "runs"])
    with open(tmp_path / "report" / "tables" / "final_accuracy.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    finals = [final_metrics(run.results)["test_accuracy"] for run in runs]  # what a sweep shows
    assert float(row["final_mean"]) == pytest.approx(np.mean(finals), abs=1e-6)
    assert float(row["final_sd"]) == pytest.approx(np.std(finals, ddof=1), abs=1e-6)
    for one in runs:
        # The numbers of the heatmap give back the scalar: the mean of after - before without the diagonal.
        tensors = {name: by_round[5] for name, by_round in one.log.tensors.items()}
        difference = tensors["clients/accuracy_after"] - tensors["clients/accuracy_before"]
        others = ~np.eye(len(difference), dtype=bool)
        assert difference[others].mean() == pytest.approx(one.log.scalars["forgetting/client_mean"].values[-1], abs=1e-6)
        assert tensors["clients/class_accuracy"].shape == (len(tensors["clients/class_cohort"]) + 2, 10)
        assert one.results["model_megabytes"] > 0
    names = {path.name for path in (tmp_path / "report" / "figures").glob("*.png")}
    assert {"accuracy.png", "who_forgets_whose_data_5.png", "one_round_by_class_5.png", "class_accuracy.png"} <= names
