"""Python source as an archive holds it: UTF-8, whatever encoding its file has."""

from __future__ import annotations

import os
import re
import tokenize
from typing import Final

_COOKIE: Final = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII)


def read_source(path: str | os.PathLike[str]) -> str:
    """Returns the text of a file in the encoding that its mark or its first lines name.

    Raises:
        SyntaxError: It is in no such encoding.

    """
    with tokenize.open(path) as file:
        return in_utf8(file.read())


def in_utf8(source: str) -> str:
    """Returns the source without a comment that names another encoding.

    An archive's files are UTF-8, and Python would believe such a comment.
    """
    lines = source.split("\n", 2)
    for index, line in enumerate(lines[:2]):
        if _COOKIE.match(line):
            lines[index] = "# saved as UTF-8"
    return "\n".join(lines)
