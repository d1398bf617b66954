"""Methods under their former names, for one release: classes, as the command line finds short names among those."""

from fl_lightning.methods.moon import MOON
from fl_lightning.methods.scaffold import SCAFFOLD


class Moon(MOON):
    """:class:`MOON`."""


class Scaffold(SCAFFOLD):
    """:class:`SCAFFOLD`."""
