"""What the syntheses of TARGET and LANDER have in common, written out: the generator's images, Adam and the divergence."""

import torch
from torch import nn

PLAN = {"warm_up": 1, "kept_rounds": 2, "synthesis_batch": 4, "generator_steps": 2, "student_steps": 2, "student_rate": 0.01}


def batch_norm(values, mean, variance, weight, bias):
    """With given moments of each channel."""
    shape = (1, -1, *[1] * (values.ndim - 2))
    scaled = (values - mean.view(shape)) / (variance.view(shape) + 1e-5).sqrt()
    return scaled * weight.view(shape) + bias.view(shape)


def moments(values):
    """Mean and variance of each channel, by counting."""
    channels = values.transpose(0, 1).flatten(1)
    mean = channels.sum(dim=1) / channels.shape[1]
    return mean, ((channels - mean[:, None]) ** 2).sum(dim=1) / channels.shape[1]


def normal(w, values, name):
    """BatchNorm of this name, with the moments of the values."""
    return batch_norm(values, *moments(values), w[f"{name}.weight"], w[f"{name}.bias"])


def plain_images(w, inputs):
    """The generator's images, 2x3x5 of 4x8 that it makes from 1x2 maps; ``inputs`` are those of its linear layer."""
    maps = normal(w, (inputs @ w["linear.weight"].T + w["linear.bias"]).view(-1, 128, 1, 2), "normalise")
    for block in ("first", "second"):
        maps = maps.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        maps = normal(w, nn.functional.conv2d(maps, w[f"{block}.0.weight"], padding=1), f"{block}.1")
        maps = torch.where(maps > 0, maps, 0.2 * maps)
    maps = nn.functional.conv2d(maps, w["last.0.weight"], w["last.0.bias"], padding=1)
    return (1 / (1 + (-maps).exp()))[:, :, :3, :5]


def plain_divergence(teacher, student):
    """KL of each sample, (B,)."""
    p, q = (of.exp() / of.exp().sum(1, keepdim=True) for of in (teacher, student))
    return (p * (p / q).log()).sum(dim=1)


class PlainAdam:
    """With betas .5 and .999, a rate for each weight."""

    def __init__(self):
        self.step, self.first, self.second = 0, {}, {}

    def move(self, weights, gradients, rates):
        """The weights after a step."""
        self.step += 1
        moved = {}
        for name, gradient in gradients.items():
            self.first[name] = 0.5 * self.first.get(name, 0) + 0.5 * gradient
            self.second[name] = 0.999 * self.second.get(name, 0) + 0.001 * gradient**2
            scale = (self.second[name] / (1 - 0.999**self.step)).sqrt() + 1e-8
            moved[name] = weights[name] - rates[name] * self.first[name] / (1 - 0.5**self.step) / scale
        return moved
