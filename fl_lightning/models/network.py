"""What the papers' networks have in common."""

from torch import nn


class Network(nn.Module):
    """A classifier built from ``(input_shape, num_classes, ...)``; nets of yours need not derive from it.

    ``net.classifier(net.features(inputs))`` is what it gives.
    """
