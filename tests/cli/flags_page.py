"""Prints docs/flags.md from tfs.server.options: python -m tests.cli.flags_page."""

from __future__ import annotations

import enum
import re
from dataclasses import fields
from pathlib import Path
from typing import Final

from tfs.cli.serving.serve_arguments import REFUSED, WITHOUT_MEANING
from tfs.server.flag import Flag
from tfs.server.options import FLAGS, ServerOptions

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "flags.md"

_HEAD = """\
# The flags of `tfs serve`

`--flag=value` and `--flag value` are the same; a boolean flag alone is true, `--noflag` is
false. Flags that TensorFlow Serving has keep their names and meaning, so that start scripts
work unchanged. An unknown flag is an error, and so is a word that is none. Beside these,
`--log_level` says what goes to stderr (debug, info, warning or error; info by default), and
`--version` prints versions and ends.

| flag | default | what it does |
|---|---|---|
"""

_REFUSED = """
## Refused

TensorFlow Serving has these; what they ask for is not supported. Leave them out, or set them to
false or nothing.

"""

_IGNORED = """
## Accepted, without meaning here

One warning line names those that were given.

"""

_TAIL = """
This page is printed by `python -m tests.cli.flags_page`.
"""


def page() -> str:
    """Returns docs/flags.md."""
    defaults = {field.name: field.default for field in fields(ServerOptions)}
    rows = "".join(_row(flag, defaults[flag.field]) for flag in FLAGS)
    refused = "".join(f"- `--{name}`: {room}\n" for name, room in REFUSED.items())
    ignored = "".join(f"- `--{name}`\n" for name in sorted(WITHOUT_MEANING))
    return _HEAD + rows + _REFUSED + refused + _IGNORED + ignored + _TAIL


def _row(flag: Flag, default: object) -> str:
    for unit, per_second in (("_micros", 1e6), ("_in_ms", 1e3)):
        if flag.name.endswith(unit) and isinstance(default, float):
            default = int(default * per_second)
    what = re.sub(r" \(default [^()]*\)$", "", flag.help).replace("|", "&#124;")
    return f"| `--{flag.name}` | {_shown(default)} | {what} |\n"


def _shown(value: object) -> str:
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, frozenset | tuple | set):
        return ", ".join(sorted(map(_shown, value)))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
