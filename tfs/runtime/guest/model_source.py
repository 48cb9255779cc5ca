"""Everything an interpreter needs to load one version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfs.core.errors import InvalidArgument
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.core.version.version_layout import LAYOUTS, RUN_PLATFORMS

_ENTRY_KEYS = ("arguments", "concurrency", "flattened")
"""What a manifest's entry may hold, whatever the platform."""

MAX_CONCURRENCY = 256
"""Most threads that a version may ask for."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One version, described for the interpreter that loads it. Immutable.

    Attributes:
        id: The version; every error names it.
        path: The version directory, absolute.
        platform: Which guest module loads it, one of :data:`RUN_PLATFORMS`.
        entry: The manifest's platform-specific part.
        signatures: The signatures by key, at least one.
        device: Where the model computes: "cpu" or "cuda[:i]".
        intra_op_threads: Threads of one call, >= 1. With more than one interpreter
            anything but 1 oversubscribes the cores.
        code_digest: The same for versions that differ only in the bytes of their
            weights; empty if unknown.
        was_measured: Whether a version of the same code was measured before, so that
            nobody asks what loading this one changes in its process.
        staged_rows: Most rows that are computed together, by signature that is computed
            in stages, which its interpreter cuts it into; empty computes it whole.

    """

    id: ServableId
    path: str
    platform: str
    entry: Mapping[str, object]
    signatures: Mapping[str, Signature]
    device: str = "cpu"
    intra_op_threads: int = 1
    code_digest: str = ""
    was_measured: bool = False
    staged_rows: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        who = self.id.slashed
        if self.platform not in RUN_PLATFORMS:
            raise InvalidArgument(
                f"{who}: no interpreter runs platform {self.platform!r}; "
                f"known: {', '.join(RUN_PLATFORMS)}"
            )
        if not self.signatures:
            raise InvalidArgument(f"{who}: a model needs a signature")
        if self.intra_op_threads < 1:
            raise InvalidArgument(f"{who}: intra_op_threads must be >= 1")
        _ = self.concurrency
        self._check_entry()
        self.check_methods(self.texts("methods"))

    @property
    def concurrency(self) -> int:
        """How many requests the model takes at once in one interpreter.

        Entry "concurrency"; 1 if it is absent. A backend may give it fewer. A model in
        stages takes those that run and as many that wait to join.

        Raises:
            InvalidArgument: It is no such number.

        """
        if self.staged_rows:
            most = max(self.staged_rows.values())
            return min(max(2, 2 * most), MAX_CONCURRENCY)
        return concurrency_of(self.entry, self.id.slashed)

    def text(self, key: str, default: str) -> str:
        """Returns a string of ``entry``.

        Raises:
            InvalidArgument: It is there and not a string.

        """
        value = self.entry.get(key, default)
        if not isinstance(value, str):
            raise InvalidArgument(
                f"{self.id.slashed}: entry {key!r} of the manifest must be a string"
            )
        return value

    def texts(self, key: str) -> Mapping[str, str]:
        """Returns a string-to-string object of ``entry``, empty if absent.

        Raises:
            InvalidArgument: It is there and something else.

        """
        value = self.entry.get(key, {})
        if not isinstance(value, Mapping) or not all(
            isinstance(part, str) for pair in value.items() for part in pair
        ):
            raise InvalidArgument(
                f"{self.id.slashed}: entry {key!r} of the manifest must map names "
                "to names"
            )
        return dict(value)

    def _check_entry(self) -> None:
        known = sorted((*_ENTRY_KEYS, *(LAYOUTS[self.platform].entry_keys or ())))
        unknown = sorted(self.entry.keys() - known)
        if unknown:
            raise InvalidArgument(
                f"{self.id.slashed}: the manifest's entry has unknown keys "
                f"{', '.join(map(repr, unknown))}; {self.platform} knows "
                f"{', '.join(known)}"
            )

    def check_methods(self, methods: Mapping[str, str]) -> None:
        """Refuses methods of signatures that do not exist, which are misspelt.

        Raises:
            InvalidArgument: Names them, and the signatures that there are.

        """
        unknown = sorted(methods.keys() - self.signatures.keys())
        if unknown:
            raise InvalidArgument(
                f"{self.id.slashed}: methods names {', '.join(map(repr, unknown))}, "
                f"which is no signature; there are {', '.join(sorted(self.signatures))}"
            )


def concurrency_of(entry: Mapping[str, object], who: str) -> int:
    """Returns how many requests at once a manifest's entry asks for, 1 if none.

    Raises:
        InvalidArgument: It is not a number from 1 to :data:`MAX_CONCURRENCY`.

    """
    value = entry.get("concurrency", 1)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{who}: concurrency must be a number, not {value!r}")
    if not 1 <= value <= MAX_CONCURRENCY:
        raise InvalidArgument(
            f"{who}: concurrency must be from 1 to {MAX_CONCURRENCY}, not {value}"
        )
    return value
