"""Puts example inputs into a version: tensors in one file, strings in the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tfs.core.signature import ExampleSlot, Signature
from tfs.export.signatures.derived import Derived
from tfs.export.values import view_of

_ALIGNMENT_BYTES: Final = 64
"""Alignment of tensors in the file: a mapped example can be used as a tensor of any
type."""


def place_examples(
    derived: Mapping[str, Derived],
) -> tuple[dict[str, Signature], bytes]:
    """Returns the signatures with the places of their examples, and the file's bytes."""
    signatures = {}
    blob = bytearray()
    for key, each in derived.items():
        slots = {}
        for name, value in each.example.items():
            view = view_of(value)
            if isinstance(view.data, tuple):
                slots[name] = ExampleSlot(view.shape, 0, view.data)
                continue
            blob += bytes(-len(blob) % _ALIGNMENT_BYTES)
            slots[name] = ExampleSlot(view.shape, len(blob))
            blob += view.data
        signatures[key] = replace(each.signature, examples=slots)
    return signatures, bytes(blob)
