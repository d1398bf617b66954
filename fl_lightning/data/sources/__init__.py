"""Where samples come from. A source is one small class: ``load(root)`` gives a :class:`Dataset`."""
