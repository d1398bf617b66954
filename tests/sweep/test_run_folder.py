"""What a sweep reads in the folder of a run."""

import shutil

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

from fl_lightning.sweep.run_folder import RunFolder, final_metrics
from fl_lightning.training.record_logger import RecordLogger


def test_a_run_may_remove_its_folder_while_it_is_watched(tmp_path):
    """As one does that fails before its first round; what another attempt writes there is read."""
    version, run = tmp_path / "digits" / "version_0", RunFolder(tmp_path, "digits")
    for accuracy in (0.25, 0.5):
        with SummaryWriter(version) as writer:
            writer.add_scalar("loss", 1.0, 1)
        assert run.new_accuracies() == []
        shutil.rmtree(version)
        assert run.new_accuracies() == []
        with SummaryWriter(version) as writer:
            writer.add_scalar("val/accuracy", accuracy, round(accuracy * 4))
        assert run.new_accuracies() == [(round(accuracy * 4), accuracy)]
        shutil.rmtree(version)


def test_a_record_is_read_as_far_as_it_is_written(tmp_path):
    """With another logger than TensorBoard's a run has that alone; a line that is half written is read when it is whole."""
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


@pytest.mark.parametrize("final", ["last_rounds_mean", "last_100_round_mean"])
def test_the_final_accuracy_under_its_name_and_its_former_one(final):
    """Runs of earlier versions, whose results.json has the former, are compared with new ones."""
    readings = {"best": 0.75, "best_round": 8, "last": 0.5, "last_round": 9, final: 0.625, "moving_average": 0.25}
    results = {"test_accuracy": readings, "val_accuracy": {}, "newest_forgetting": {"forgetting/round": 0.125}, "tasks": {}}
    assert final_metrics(results) == {
        "test_accuracy": 0.625,
        "test_accuracy_best": 0.75,
        "test_accuracy_last": 0.5,
        "test_accuracy_moving_average": 0.25,
        "forgetting/round": 0.125,
    }
    personal = {"personal/held_out/mean": 0.75}
    assert final_metrics(results | {"personal": personal}) == final_metrics(results) | personal
