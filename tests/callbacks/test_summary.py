"""Rounds to a target accuracy: in results.json, in the table, and after a resume."""

import json

import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.callbacks import RunSummary
from fl_lightning.callbacks.summary import _print_table


@pytest.fixture
def summarised(fit, toy_data, tmp_path, monkeypatch, capsys):
    """Six rounds whose test accuracies are given, round 0 first; gives ``rounds_to_target`` of the file, and the table."""

    def run(curve, targets, rounds=6, ckpt_path=None, **settings):
        summary = RunSummary(targets=targets)

        class Scripted(FedAvg):
            def log_round(self, metrics, round):
                script = {"test/accuracy": curve[round]} if "test/accuracy" in metrics else {}
                super().log_round({**metrics, **script}, round)

        method = Scripted(nn.Linear(4, 3).double())
        method.write_to(tmp_path)
        data = toy_data(**{"monitor_test": 1, **settings})
        trainer = fit(method, data, rounds, ckpt_path, precision="64-true", callbacks=[summary])
        return json.loads((tmp_path / "results.json").read_text())["rounds_to_target"], capsys.readouterr().out, trainer

    return run


CURVE = [0.95, 0.1, 0.5, 0.4, 0.75, 0.9, 0.6]


def test_the_first_round_that_reaches_it(summarised):
    """Equal is enough, a later fall does not matter, and the untrained model's .95 is no training."""
    reached, table, _ = summarised(CURVE, [0.5, 0.45, 0.9, 0.95, 1])
    assert reached == {"0.5": 2, "0.45": 2, "0.9": 5, "0.95": None, "1": None}
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in table.splitlines() if "reached" in line]
    assert rows == [
        ["0.5 of test accuracy reached", "in round 2"],
        ["0.45 of test accuracy reached", "in round 2"],
        ["0.9 of test accuracy reached", "in round 5"],
        ["0.95 of test accuracy reached", "not reached"],
        ["1 of test accuracy reached", "not reached"],
    ]


def test_rounds_without_an_evaluation_do_not_count(summarised):
    """Measured in 0, 3 and 6: the .5 of round 2 and the .9 of round 5 are not seen."""
    reached, _, _ = summarised(CURVE, [0.35, 0.5, 0.75], monitor_test=3)
    assert reached == {"0.35": 3, "0.5": 6, "0.75": None}


@pytest.mark.parametrize(("every", "shown"), [(1, "0.7500, mean of rounds 4 to 6"), (6, "0.6000, round 6")])
def test_the_final_accuracy_names_its_rounds(summarised, every, shown):
    """(.75 + .9 + .6) / 3 = .75 in the second half; a single evaluation is not called a mean."""
    _, table, _ = summarised(CURVE, [], monitor_test=every)
    (row,) = [line for line in table.splitlines() if "final test accuracy" in line]
    assert row.strip("│").split("│")[1].strip() == shown


@pytest.mark.parametrize("settings", [{"monitor_test": 0}, {"test_inputs": None, "test_targets": None}])
def test_without_a_test_curve_there_is_nothing_to_say(summarised, settings):
    reached, table, _ = summarised(CURVE, [0.5], **settings)
    assert reached == {}
    assert "reached" not in table


def test_no_targets_no_rows(summarised):
    reached, table, _ = summarised(CURVE, [])
    assert reached == {}
    assert "reached" not in table


def test_a_resumed_run_says_the_same(summarised, tmp_path):
    """Reached before the cut, after it, and never."""
    whole, _, _ = summarised(CURVE, [0.5, 0.75, 0.95])
    _, _, trainer = summarised(CURVE, [0.5, 0.75, 0.95], rounds=3)
    trainer.save_checkpoint(tmp_path / "cut.ckpt")
    resumed, _, _ = summarised(CURVE, [0.5, 0.75, 0.95], ckpt_path=tmp_path / "cut.ckpt")
    assert whole == resumed == {"0.5": 2, "0.75": 4, "0.95": None}


def test_an_unknown_reading_is_refused():
    """As the command line does: a word that no reading has would stand in results.json."""
    with pytest.raises(ValueError, match=r"^callbacks.summary.table_uses is 'first', must be one of best, last, "):
        RunSummary(table_uses="first")


@pytest.mark.parametrize("target", [0, -0.5, 90.0, float("nan")])
def test_targets_out_of_range_are_refused(target):
    """A percentage above all."""
    message = f"^callbacks.summary.targets has {target}, must be above 0 and at most 1: 0.9 is 90 %$"
    with pytest.raises(ValueError, match=message):
        RunSummary(targets=[0.5, target])


def test_a_folder_in_brackets_is_printed_as_it_is(fit, toy_data, tmp_path, capsys):
    """Not as markup of the terminal."""
    logger = TensorBoardLogger(tmp_path / "[a]", name="", version="")
    fit(FedAvg(nn.Linear(4, 3).double()), toy_data(), 1, precision="64-true", callbacks=[RunSummary()], logger=logger)
    assert f"See the curves: tensorboard --logdir {tmp_path / '[a]'}" in capsys.readouterr().out


def test_rows_of_the_table(capsys, monkeypatch):
    """Tags are in words. F_ki is logged with the other sign, and 0.00001 of it is 0.0000 and not -0.0000."""
    forgetting = {"forgetting/client_mean": 0.00001, "forgetting/every_5": 0.125}
    forgetting["forgetting/client_worst"] = -0.25
    results = {"method": "FedAvg", "loss": "CE()", "learner": None, "rounds": 3}
    results |= {"test_accuracy": {}, "val_accuracy": {}, "rounds_to_target": {}}
    results |= {"newest_forgetting": forgetting, "tasks": {"tasks/backward_transfer": -0.5}, "privacy": {}, "bytes_down": 0}
    results |= {
        "personal": {
            "personal/cohort_after_std": 0.5,
            "personal/held_out/mean": 0.5,
            "personal/held_out/new_clients_fine_tuned_mean": 0.75,
            "personal/validation/worst_decile": 0.25,
        },
        "reference": {"reference/old/accuracy": 0.25, "reference/old/accuracy_before": 0.75},
        "wise_ft": {},
        "ccvr": {},
    }
    results |= {"bytes_up": 0, "rounds_undone": [], "largest_update": None, "initial_weights": None}
    results["clients_left_out"] = {str(client): 2 for client in range(5)}
    results |= {"rounds_lost": [], "update_before_lost_rounds": None, "rounds_without_update": 0, "far_update": None}
    monkeypatch.setenv("COLUMNS", "120")
    _print_table(results)
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]
    left_out = "its update was not finite in 2 of its rounds"
    assert rows == [
        ["held-out accuracy, new clients, fine-tuned", "0.7500"],
        ["validation accuracy, worst tenth of clients", "0.2500"],
        ["client forgetting F_ki, last", "0.0000"],
        ["forgetting over 5 rounds F_t, last", "0.1250"],
        ["client forgetting F_k, worst, last", "0.2500"],
        ["accuracy on old", "0.2500, 0.7500 before"],
        ["tasks/backward_transfer", "-0.5000, negative is forgetting"],
        ["bytes sent", "0 bytes down, 0 bytes up"],
        *([f"client {client} left out", left_out] for client in range(3)),
        ["2 more clients left out", "see clients_left_out in results.json"],
    ]
    assert "Positive forgetting is a loss of accuracy." in out
    _print_table(results | {"newest_forgetting": {"forgetting/loss_after": 0.5}})
    assert "Positive" not in capsys.readouterr().out
