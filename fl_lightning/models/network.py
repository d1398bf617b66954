"""The common base of the papers' networks."""

from torch import nn


class Network(nn.Module):
    """A classifier built from ``(input_shape, num_classes, ...)``; your own nets need not derive from it.

    It returns ``net.classifier(net.features(inputs))``.
    """
