"""Where a name in code may be continued in the next line: at its dots, underscores, slashes and capitals."""

import re

_CODE = re.compile(r'(?:(?<=<h1>)|(?<=<span class="pre">))[^<]+')
_BETWEEN = re.compile(r"(?<=[._/=,])(?=\w)|(?<=[a-z])(?=[A-Z])")


def with_line_breaks(page: str) -> str:
    """A page's HTML with ``<wbr>`` in its title and its names, which a browser breaks there rather than within a word.

    Args:
        page: as Sphinx writes it, with each word of code in a span of class ``pre``.
    """
    return _CODE.sub(lambda code: _BETWEEN.sub("<wbr>", code[0]), page)
