"""Does an update hide its image, or do the weights it started from? ``python studies/attack_control.py --ckpt_path CKPT``.

Attacks clients' updates as ``fl-lightning attack`` does, with the settings of the studies in ``studies/run.py``, and then the
plain gradient of the same image at the same weights, which nothing defends. ``--help`` lists the options.
"""

from dataclasses import replace
from pathlib import Path

import torch
from jsonargparse import auto_cli

from fl_lightning.attacks.inversion import Inversion, Inverter
from fl_lightning.attacks.observed_update import Observation, observe
from fl_lightning.attacks.scores import score
from fl_lightning.command_line.attack import load_run


def plain_gradient(inverter: Inverter, seen: Observation, net: torch.nn.Module) -> Observation:
    """The same image's gradient at the same weights."""
    weights = {name: weight.detach().requires_grad_() for name, weight in net.named_parameters() if name in seen.gradient}
    loss = inverter.mean_loss(weights, seen.inputs, seen.targets, seen.label_counts)
    return replace(seen, gradient=dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True)))


def main(
    ckpt_path: Path,
    clients: list[int],
    root: str | None = None,
    settings: Inversion = Inversion(distance="cosine", lr=0.1, tv=1e-3, labels="known", iterations=2000),
) -> None:
    """Print, of every client, how alike update and plain gradient are and the PSNR to which either is inverted.

    Args:
        ckpt_path: a checkpoint of a run.
        clients: whose updates are attacked.
        root: of the data, if it has moved.
        settings: of the attack.
    """
    run = load_run(ckpt_path, root)
    seen = observe(run.method, run.data, ckpt_path, clients, 1, accelerator="cpu", precision=run.precision)
    inverter = Inverter(seen.net, run.method.loss, seen.pixel_range, settings)
    for update in seen.observations:
        plain = plain_gradient(inverter, update, seen.net)
        both = (torch.cat([part.flatten() for part in one.gradient.values()]) for one in (update, plain))
        scores = [score(one, inverter.invert(one), seen.pixel_range, run.data.classes) for one in (update, plain)]
        psnr = [one.images[0].psnr for one in scores]
        cosine = torch.cosine_similarity(*both, dim=0).item()
        print(
            f"client {update.client}: cosine {cosine:.4f}, update {psnr[0]:.1f} dB, plain gradient {psnr[1]:.1f} dB", flush=True
        )


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
