"""Which version a caller wants, before anything is looked up."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Choice(enum.Enum):
    """How to choose when no version is named."""

    LATEST = "Latest"
    EARLIEST = "Earliest"


@dataclass(frozen=True, slots=True)
class ServableRequest:
    """A servable stream, and either one version of it or a rule to choose one.

    Labels are resolved to versions before a request is made.
    """

    name: str
    version: int | None = None
    choice: Choice = Choice.LATEST

    @classmethod
    def specific(cls, name: str, version: int) -> ServableRequest:
        """Returns a request for exactly this version."""
        return cls(name, version)

    @classmethod
    def latest(cls, name: str) -> ServableRequest:
        """Returns a request for the highest available version."""
        return cls(name)

    @classmethod
    def earliest(cls, name: str) -> ServableRequest:
        """Returns a request for the lowest available version."""
        return cls(name, None, Choice.EARLIEST)

    def __str__(self) -> str:
        """The form clients see in NOT_FOUND messages, as TensorFlow Serving's."""
        if self.version is not None:
            return f"Specific({self.name}, {self.version})"
        return f"{self.choice.value}({self.name})"
