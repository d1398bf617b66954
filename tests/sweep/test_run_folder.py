"""What a sweep reads in the folder of a run."""

import shutil

from torch.utils.tensorboard import SummaryWriter

from fl_lightning.sweep.run_folder import RunFolder


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
