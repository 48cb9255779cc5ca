"""In what the two servers may differ: a written list, each with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_MEASURED: Final = "measured anew by each server"
_TIME: Final = "when it happened"

IGNORED_FIELDS: Final = {
    **{
        f"tfs.v1.{field}": _TIME
        for field in (
            "ServerReport.started_s",
            "VersionReport.since_s",
            "InterpreterReport.since_s",
            "CanaryReport.since_s",
            "BaseReport.since_s",
            "OverrideReport.since_s",
            "RefusalReport.at_s",
            "LoadReport.next_attempt_s",
        )
    },
    **{
        f"tfs.v1.{field}": _MEASURED
        for field in (
            "ServerReport.memory_limit_bytes",
            "ServerReport.memory_reserved_bytes",
            "ServerReport.resident_bytes",
            "ServerReport.reserve_bytes",
            "ServerReport.num_reserve_processes",
            "ServerReport.stats",
            "VersionReport.memory",
            "LoadReport.duration_s",
            "LoadReport.import_s",
            "SignatureReport.call_s_by_rows",
            "RequestStats.latency_s",
            "ModelReport.request_s",
            "BatchingReport.queues",
            "BatchingReport.bypass",
            "CanaryReport.total",
            "CanaryReport.by_signature",
            "CanaryReport.guards",
            "InterpreterReport.pid",
            "InterpreterReport.private_bytes",
        )
    },
    **{
        f"tensorflow.serving.BatchingParameters.{field}": _MEASURED
        for field in ("max_execution_batch_size", "max_enqueued_batches")
    },
}
"""Fields of AdminService that two runs of one server do not agree on either."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """A difference that is meant. Immutable.

    Attributes:
        where: Matches, whole, the name of the observation.
        line: Found in each line that differs, whichever server said it.
        reason: For people.

    """

    where: str
    line: str
    reason: str

    def covers(self, where: str, line: str) -> bool:
        """Whether a differing line of an observation is this difference."""
        return bool(re.fullmatch(self.where, where) and re.search(self.line, line))


ALLOWED: Final = (
    Allowed(
        r"tfs (status|promote|rollback|canary|retry)\b.*",
        r"MODEL  PRIMARY|^[+-] [a-z]+  [\d-]",
        "tables of models show what half and 99 % of their requests took",
    ),
    Allowed(
        r"tfs models\b.*",
        r"^[+-] damaged .*(END|FAILED)",
        "what failed is called FAILED",
    ),
    Allowed(
        r"tfs .* --json",
        r'"quarantined": false|^[+-] +("signatures": \[\]|"code_digest": ""|\]),?$'
        r'|"num_warmup_requests": 0|"waiting": ""|"notes": \[\]|"residency": "ALWAYS"'
        r'|"request_s": 0|"skew": ""|"example_error": ""|"excluded_versions": \[\]'
        r'|"version_labels": {}|"model_platform": ""|^[+-] +},?$'
        r'|^\+ +"(revision|newest|since)": "(DIGEST|0)",|^\+ +"gone": \[\]'
        r'|^\+ +"behind": false',
        "models and versions have fields more, so a comma more before them",
    ),
    Allowed(
        r".*",
        r"not shown to be independent|not asked for: --enable_batching",
        "a version says first that batching was not asked for",
    ),
    Allowed(
        r"(would apply|reload|apply) .*: (models|config)",
        r'^- +notes: "label new is for version 9',
        "that a label leads nowhere is said by the label, not by a note as well",
    ),
    Allowed(
        r"tfs status.*",
        r"resident memory N MiB",
        "no process is kept ready for a version to come",
    ),
    Allowed(
        r"tfs status --batching",
        r"ids \[(up to N|any)\]",
        "lengths that share a batch are named by what may come, not by what came",
    ),
    Allowed(
        r"tfs metadata nobody",
        r"Servable not found for request: Latest\(nobody\)",
        "who asks a fleet is told of its own command",
    ),
    Allowed(
        r"tfs config validate .*",
        r"^\+ note: empty: base path \S+ holds no version$",
        "base paths that lead nowhere are noted",
    ),
    Allowed(
        r"models",
        r"^\+ (revision|newest): ",
        "a list of models says of which state it is",
    ),
    Allowed(
        r"apply (nonsense|nothing): (models|config)",
        r"^\+ ",
        "a configuration that was refused is told of until the next one is taken",
    ),
    Allowed(
        r"rollback ended",
        r".*",
        "a rollback takes a promotion's place, so that its end leaves the configuration",
    ),
)
