"""Help as plain text: docstrings have Sphinx's markup, which a terminal does not render."""

import re
from argparse import Action, HelpFormatter
from typing import Any

from jsonargparse import DefaultHelpFormatter
from lightning.pytorch.cli import LightningArgumentParser


def plain(text: str) -> str:
    """Without roles, double backquotes and targets of links: ``:class:`~a.B``` is a.B."""
    text = re.sub(r":\w+(?::\w+)*:`~?\.?([^`]+)`", r"\1", text)
    text = re.sub(r"`([^`<]+?)\s*<[^`>]*>`_+", r"\1", text)
    return re.sub(r"`{1,2}([^`]+)`{1,2}", r"\1", text)


class PlainFormatter(DefaultHelpFormatter):
    """jsonargparse's formatter, without markup."""

    def add_text(self, text: str | None) -> None:
        """Add a paragraph, without markup."""
        super().add_text(plain(text) if isinstance(text, str) else text)

    def start_section(self, heading: str | None) -> None:
        """Begin a section under a heading, without markup."""
        super().start_section(plain(heading) if isinstance(heading, str) else heading)

    def _get_help_string(self, action: Action) -> str:
        return plain(super()._get_help_string(action))


class PlainHelpParser(LightningArgumentParser):
    """Lightning's parser, with plain help, that of classes included: jsonargparse makes parsers of the same type for it."""

    def __init__(self, *args: Any, formatter_class: type[HelpFormatter] = PlainFormatter, **kwargs: Any) -> None:
        super().__init__(*args, formatter_class=formatter_class, **kwargs)
