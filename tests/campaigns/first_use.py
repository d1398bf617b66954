"""What the first command line and the first picture of a process take longest for, done before the server forks it."""

import contextlib
import gc
import io
import sys

import torch
from asked_once import answers
from torch.utils.tensorboard._utils import figure_to_image

from fl_lightning.callbacks.figures import over_rounds
from fl_lightning.command_line.cli import main

for answer in answers():
    setattr(*answer)
sys.argv = ["fl-lightning", *"fit --config digits_tce.yaml --print_config".split()]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(sys.argv[1:])
figure_to_image(over_rounds(torch.rand(2, 2), ["cat", "dog"], [1, 2], "accuracy"))
gc.collect()
gc.freeze()  # what forks share is no garbage of theirs, and is copied where the collector writes to it
gc.enable()
