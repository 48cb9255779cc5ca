"""The name of one loaded thing: a servable stream's name and a version."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ServableId:
    """One version of one servable stream. Immutable, ordered by (name, version).

    Attributes:
        name: The stream's name; non-empty.
        version: A number >= 0; higher is newer.

    """

    name: str
    version: int

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a servable needs a name")
        if self.version < 0:
            raise ValueError(f"version of {self.name} must be >= 0: {self.version}")

    def __str__(self) -> str:
        """The form clients see, as TensorFlow Serving prints it."""
        return f"{{name: {self.name} version: {self.version}}}"

    @property
    def slashed(self) -> str:
        """``name/version``: the short form for logs and messages."""
        return f"{self.name}/{self.version}"
