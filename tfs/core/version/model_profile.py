"""What was measured of a version, every part optional.

A profile belongs to a code digest (of everything in the version except tensor bytes) on
one host, so a new version with the same code reuses it. Whatever was not measured
within the probe's budget is None or absent, and the static defaults apply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from tfs.core.signature import Signature


@dataclass(frozen=True, slots=True)
class SignatureProfile:
    """Measurements of one signature.

    Attributes:
        rows_independent: Whether each row's result stays the same when rows are
            permuted and padded; None if that could not be shown either way.
        why_dependent: What was observed if they are not independent, for the status.
        why_padding: How a row's answer changed when the row was padded to the length of
            another, so that only rows of equal length may be joined; empty if it did
            not change.
        call_s_by_rows: Median seconds of one call by number of rows.
        full_batch_s: Median seconds of one call with the largest batch.
        peak_bytes: Transient memory of a call with the largest batch.
        max_rows: Rows of the largest batch that worked, where a larger one failed; None
            where none failed.
        was_answered: Whether any call was answered.
        death: How a call ended its process; empty if none did.

    """

    rows_independent: bool | None = None
    why_dependent: str = ""
    why_padding: str = ""
    call_s_by_rows: Mapping[int, float] = field(default_factory=dict)
    full_batch_s: float | None = None
    peak_bytes: int | None = None
    max_rows: int | None = None
    was_answered: bool = False
    death: str = ""


def row_limit(signature: Signature, measured: SignatureProfile) -> int | None:
    """Returns the most rows of a batch: what the model's file or measuring allows."""
    limits = [n for n in (signature.max_rows, measured.max_rows) if n is not None]
    return min(limits, default=None)


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Everything a load measures. Immutable.

    Attributes:
        code_digest: Hex digest of the code the profile belongs to.
        import_s: Processor time of importing and unpickling, without reading weights.
        load_s: The whole load.
        load_peak_bytes: Highest memory during the load, above what stayed.
        resident_bytes: Memory held after the load.
        process_changes: What loading it changed of its whole process, for people.
        two_thread_scaling: Calls per second of two threads over one.
        is_repeatable: Whether the same inputs got the same answers after all other
            calls, from the same random numbers; not those of a model that remembers calls.
        signatures: What was measured of each signature, by its key.

    """

    code_digest: str = ""
    import_s: float | None = None
    load_s: float | None = None
    load_peak_bytes: int | None = None
    resident_bytes: int | None = None
    process_changes: str = ""
    two_thread_scaling: float | None = None
    is_repeatable: bool = True
    signatures: Mapping[str, SignatureProfile] = field(default_factory=dict)

    def how_it_died(self, *, at_every_call: bool = False) -> str:
        """Returns how a call ended its process; empty if none did.

        Args:
            at_every_call: Whether only signatures count that answered no call.

        """
        for found in self.signatures.values():
            if found.death and not (at_every_call and found.was_answered):
                return found.death
        return ""

    def to_json(self) -> str:
        """Returns the form kept in the state directory."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ModelProfile:
        """Reads ``to_json``'s form; unknown fields are skipped.

        Raises:
            ValueError: Not such a form, or a signature lacks what is measured today.

        """
        form = json.loads(text)
        if not isinstance(form, dict):
            raise ValueError("a profile is an object")
        parts = form.get("signatures", {})
        if not isinstance(parts, dict) or not all(
            isinstance(part, dict) and isinstance(part.get("call_s_by_rows", {}), dict)
            for part in parts.values()
        ):
            raise ValueError("a profile's signatures are objects by name")
        known = {f.name for f in fields(cls)} - {"signatures"}
        signature_fields = {f.name for f in fields(SignatureProfile)}
        signatures = {}
        for name, part in parts.items():
            if missing := signature_fields - part.keys():
                raise ValueError(
                    f"signature {name!r} lacks {', '.join(sorted(missing))}"
                )
            kept = {key: part[key] for key in signature_fields}
            table = kept["call_s_by_rows"]
            kept["call_s_by_rows"] = {int(rows): s for rows, s in table.items()}
            signatures[name] = SignatureProfile(**kept)
        return cls(
            **{key: form[key] for key in known & form.keys()}, signatures=signatures
        )
