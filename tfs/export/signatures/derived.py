"""A signature that was found by calling a module, with the example that showed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfs.core.signature import Signature
from tfs.export.values import Values
from tfs.runtime.guest.platforms.nested_values import Form


@dataclass(frozen=True, slots=True)
class Derived:
    """A signature and the example it was found with.

    Attributes:
        signature: Complete, except for the example's place in the version.
        example: Inputs by name; at least two rows that differ, where the author's
            example could be turned into that.
        outputs: The outputs of the module for ``example``.
        forms: How arguments that are containers are made of inputs.
        is_nested: Whether the module's result has to be made flat.
        is_own_type: Whether the result is an object of a class that is neither Python's
            nor torch's, for example a named tuple.

    """

    signature: Signature
    example: Values
    outputs: Values
    forms: Mapping[str, Form] = field(default_factory=dict)
    is_nested: bool = False
    is_own_type: bool = False
