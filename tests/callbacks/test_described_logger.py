"""The command line's TensorBoard logger, for those who watch a run."""

import time

from fl_lightning.callbacks import DescribedTensorBoardLogger, described_logger


def test_what_is_logged_is_soon_in_the_file(tmp_path, monkeypatch, read_scalars):
    """Without a word from the run; after 0.2 s here, where torch's default is two minutes."""
    monkeypatch.setattr(described_logger, "_FLUSHED_AFTER", 0.2)
    logger = DescribedTensorBoardLogger(tmp_path, "run", "version_0")
    logger.log_metrics({"val/accuracy": 0.5}, step=1)
    deadline = time.monotonic() + 20
    while "val/accuracy" not in read_scalars(tmp_path / "run" / "version_0"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    logger.finalize("success")
