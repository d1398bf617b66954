"""Libraries that come with an extra of the package."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needing_extra(extra: str, what: str) -> Iterator[None]:
    """Import libraries that only an extra installs, in the block.

    >>> with needing_extra("sweep", "fl-lightning sweep"):
    ...     import no_such_library
    Traceback (most recent call last):
    ModuleNotFoundError: fl-lightning sweep needs the library no_such_library: pip install 'fl-lightning[sweep]'

    Args:
        extra: its name in pyproject.toml.
        what: needs it.

    Raises:
        ModuleNotFoundError: if a library is missing, with the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        line = f"{what} needs the library {library}: pip install 'fl-lightning[{extra}]'"
        raise ModuleNotFoundError(line, name=error.name) from error
