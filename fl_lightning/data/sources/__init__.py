"""Sources of samples. A source is one small class: ``load(root)`` returns a :class:`~fl_lightning.data.Dataset`."""
