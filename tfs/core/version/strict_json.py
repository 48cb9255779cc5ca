"""JSON in which no key is repeated.

Python's reader keeps the last of several equal keys without a word. In a file that
people write, a repeated key is a mistake: a copied line of which one half was to be
changed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence


def read_strict(text: str) -> object:
    """Returns the value of a JSON text.

    Raises:
        ValueError: It is not JSON, or an object has a key twice; names the key.
        RecursionError: Lists or objects are nested too deeply.

    """
    value: object = json.loads(text, object_pairs_hook=_object)
    return value


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found
