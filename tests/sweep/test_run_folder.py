"""What a sweep reads in the folder of a run."""

import json
import shutil

import pytest
import torch

from fl_lightning.run.record_logger import RecordLogger
from fl_lightning.sweep.run_folder import RunFolder, final_metrics


def test_a_run_may_remove_its_folder_while_it_is_watched(tmp_path):
    """As one does that fails before its first round; what another attempt writes there is read."""
    version, run = tmp_path / "digits" / "version_0", RunFolder(tmp_path, "digits")
    for accuracy in (0.25, 0.5):
        RecordLogger(version).log_metrics({"loss": 1.0}, 1)
        assert run.new_accuracies() == []
        shutil.rmtree(version)
        assert run.new_accuracies() == []
        RecordLogger(version).log_metrics({"val/accuracy": accuracy}, round(accuracy * 4))
        assert run.new_accuracies() == [(round(accuracy * 4), accuracy)]
        shutil.rmtree(version)


def test_the_newest_version_has_the_largest_number(tmp_path):
    """9 comes before 10."""
    run = RunFolder(tmp_path, "digits")
    for number, accuracy in ((9, 0.25), (10, 0.5)):
        RecordLogger(version := tmp_path / "digits" / f"version_{number}").log_metrics({"val/accuracy": accuracy}, 1)
        (version / "results.json").touch()
    assert run.new_accuracies() == [(1, 0.5)]
    assert run.finished() == version


def test_a_record_is_read_as_far_as_it_is_written(tmp_path):
    """A line that is half written is read when it is whole."""
    logger, run = RecordLogger(tmp_path / "digits" / "version_0"), RunFolder(tmp_path, "digits")
    assert run.new_accuracies() == []
    logger.log_metrics({"train/loss": 1.0}, 1)
    logger.log_metrics({"val/accuracy": 0.25}, 1)
    assert run.new_accuracies() == [(1, 0.25)]
    logger.log_tensors({"val/accuracy": torch.ones(2)}, 2)  # another's, of that name
    logger.log_metrics({"val/accuracy": 0.5}, 2)
    whole = logger.file.read_bytes()
    logger.file.write_bytes(whole[:-4])
    assert run.new_accuracies() == []
    logger.file.write_bytes(whole)
    assert run.new_accuracies() == [(2, 0.5)]
    assert run.new_accuracies() == []


def test_forgetting_is_the_last_and_the_mean(tmp_path):
    """By hand: without round 1 the mean of -1/4 and -3/4 is -1/2; what is NaN has none, as in a study's file."""
    version, run = tmp_path / "digits" / "version_0", RunFolder(tmp_path, "digits")
    logger = RecordLogger(version)
    for round, value in ((1, -1.0), (2, -0.25), (4, -0.75)):
        logger.log_metrics({"forgetting/client_mean": value, "test/accuracy": 0.5}, round)
    logger.log_metrics({"forgetting/from_best": float("nan")}, 4)
    logger.log_tensors({"forgetting/local": torch.ones(1, 2)}, 4)
    assert run.metrics() is None
    results = {"test_accuracy": {}, "val_accuracy": {}, "tasks": {}, "personal": {}}
    results["newest_forgetting"] = {"forgetting/client_mean": -0.75}
    (version / "results.json").write_text(json.dumps(results))
    assert run.metrics() == {"forgetting/client_mean/last": -0.75, "forgetting/client_mean/mean": -0.5}
    logger.file.write_bytes(logger.file.read_bytes().replace(b'"round": 2', b'"round": "forgetting/"'))
    with pytest.raises(ValueError, match=r"record\.jsonl is damaged: move the run's folder away"):
        run.metrics()


def test_a_fit_that_ended_in_lost_rounds_has_no_numbers(tmp_path):
    """It wrote results and then failed; it is not resumed from its last checkpoint, which has all rounds."""
    version, run = tmp_path / "digits" / "version_0", RunFolder(tmp_path, "digits")
    RecordLogger(version).log_metrics({"test/accuracy": 0.5}, 1)
    (version / "checkpoints").mkdir()
    (version / "checkpoints" / "last.ckpt").touch()
    assert run.prepare() == ["--ckpt_path", "last"]
    results = {"test_accuracy": {}, "val_accuracy": {}, "tasks": {}, "personal": {}, "newest_forgetting": {}}
    (version / "results.json").write_text(json.dumps(results | {"rounds_without_update": 2}))
    assert run.metrics() is None
    assert run.prepare() == []
    assert not version.exists()


def test_the_numbers_that_sweeps_compare():
    """The final accuracy is the mean over the last rounds; forgetting says that it is the last; personal models follow."""
    readings = {"best": 0.75, "best_round": 8, "last": 0.5, "last_round": 9, "last_rounds_mean": 0.625, "moving_average": 0.25}
    measured = {"test_accuracy": readings, "val_accuracy": {}, "newest_forgetting": {"forgetting/round": 0.125}, "tasks": {}}
    results = measured | {"personal": {}}
    assert final_metrics(results) == {
        "test_accuracy": 0.625,
        "test_accuracy_best": 0.75,
        "test_accuracy_last": 0.5,
        "test_accuracy_moving_average": 0.25,
        "forgetting/round/last": 0.125,
    }
    personal = {"personal/held_out/mean": 0.75}
    assert final_metrics(results | {"personal": personal}) == final_metrics(results) | personal
