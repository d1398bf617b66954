"""Small inputs of texts and images, and their federation, for nets of libraries."""

import torch
from options import NO_PICTURES

from fl_lightning import Trainer
from fl_lightning.data import from_arrays

GENERATOR = torch.Generator().manual_seed(0)
TARGETS = torch.randint(0, 3, (60,), generator=GENERATOR)
IDS = torch.randint(3, 30, (60, 8), generator=GENERATOR)
IDS[:, 0] = TARGETS + 3
MASK = (torch.arange(8) < torch.randint(4, 9, (60, 1), generator=GENERATOR)).long()
IMAGES = torch.randn(60, 3, 16, 16, generator=GENERATOR)
RATE, STEPS, BATCH = 0.1, 3, 5
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
INPUTS = {"bert": {"input_ids": IDS, "attention_mask": MASK}, "vit": IMAGES}


def federation(kind, **settings):
    parts = INPUTS[kind]
    train, test = (
        {name: part[rows] for name, part in parts.items()} if isinstance(parts, dict) else parts[rows]
        for rows in (slice(40), slice(40, 60))
    )
    tested = {"test_inputs": test, "test_targets": TARGETS[40:]}
    return from_arrays(train, TARGETS[:40], [range(20), range(20, 40)], batch_size=BATCH, **tested, **settings)


def fitted(method, data, rounds=2, *callbacks):
    trainer = Trainer(max_steps=rounds, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[*callbacks])
    trainer.fit(method, datamodule=data)
    return trainer


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=RATE)


DIGITS = " ".join(["fit --config digits_wsm.yaml --trainer.max_steps 1 --model.optimizer.lr 0.5", *NO_PICTURES])
