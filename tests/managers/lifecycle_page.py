"""Prints docs/lifecycle.md from the tables: python -m tests.managers.lifecycle_page."""

from __future__ import annotations

import sys
from pathlib import Path

from managers.loading.version_executor import PATIENCE_S
from managers.versions.harness_state import END_STATES, TRANSITIONS, HarnessState
from managers.versions.version import PERMANENT_CODES, RetryOptions
from tfs.core.errors import Unavailable
from tfs.core.servable_state import ManagerState

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md"

MEANINGS = {
    HarnessState.NEW: "managed, nothing asked for",
    HarnessState.LOAD_REQUESTED: "waits for a thread, an estimate or memory",
    HarnessState.LOAD_APPROVED: "memory is reserved",
    HarnessState.LOADING: "the loader runs, or waits for its next attempt",
    HarnessState.READY: "loaded and published",
    HarnessState.UNLOAD_REQUESTED: "chosen to go",
    HarnessState.QUIESCING: "withdrawn; requests that hold it finish",
    HarnessState.QUIESCED: "nothing holds it; waits for a thread",
    HarnessState.UNLOADING: "the loader frees it",
    HarnessState.DISABLED: "over; memory given back",
    HarnessState.ERROR: "over; holds why",
}

PUBLISHED = {
    ManagerState.START: (
        "when it is first managed",
        "nothing",
    ),
    ManagerState.LOADING: (
        "before its loader runs, once, whatever the number of attempts",
        "memory is reserved",
    ),
    ManagerState.AVAILABLE: (
        "after it can be requested, before any other version is unloaded for it; "
        "again when something is noted about it",
        "whoever has seen it can request the version",
    ),
    ManagerState.UNLOADING: (
        "before it can no longer be requested",
        "whoever has not seen it may still request the version",
    ),
    ManagerState.END: (
        "after its memory is free, or when it failed, with the error",
        "nothing of it is left",
    ),
}


def lifecycle_page() -> str:
    """Returns the page."""
    retry = RetryOptions()
    permanent = ", ".join(sorted(code.name for code in PERMANENT_CODES))
    return "\n".join(
        [
            "# The life of a version",
            "",
            "Printed from the tables in `managers/` by",
            "`python -m tests.managers.lifecycle_page`; a test keeps it fresh.",
            "",
            "## Published states",
            "",
            "What status, logs and the event bus show "
            "(`tfs/core/servable_state.py`). START, LOADING, AVAILABLE,",
            "UNLOADING, END is the order; what fails goes to END from wherever it is.",
            "",
            "| state | number | published | promise |",
            "|---|---|---|---|",
            *(
                f"| {state.name} | {state.value} | {when} | {promise} |"
                for state, (when, promise) in PUBLISHED.items()
            ),
            "",
            "Every state carries why it came about (the source's reason, the policy's,",
            "an edit), the error if there is one, and notes. A version whose files",
            "changed stays AVAILABLE while the new contents load beside the old ones;",
            "if they fail, it stays AVAILABLE with their error.",
            "",
            "## States of a loader harness",
            "",
            "The manager's own, finer bookkeeping (`managers/versions/harness_state.py`).",
            "Any other move raises and changes nothing.",
            "",
            "| state | meaning | goes to |",
            "|---|---|---|",
            *(
                f"| {state.value} | {MEANINGS[state]} | {_targets(state)} |"
                for state in HarnessState
            ),
            "",
            "## Order and threads",
            "",
            "- Decisions are made in one place, `AspiredVersionsManager.step()`, on the",
            "  manager's thread. Loads and unloads run on two pools of their own.",
            "- A published serving map never changes; requests read it without a lock",
            "  and pin the version they use.",
            "- An unload publishes UNLOADING, takes the version out of the map, waits",
            "  until its last pin is released, destroys it on the unload pool, and",
            "  publishes END.",
            "- A pause before a retry, a pin and a wait for memory hold no thread.",
            "- Loads that wait for memory are decided in order. One that can never fit,",
            "  or finds no room while nothing loads or unloads, ends with",
            "  RESOURCE_EXHAUSTED, and the other versions go on serving. Whenever a load or",
            "  an unload ends, refused versions that could fit some day are looked at",
            "  again, in the order in which they were refused, and what fits is loaded.",
            "- What a version takes is known once it is loaded. If it takes clearly more",
            "  than was expected, and more than is left beside the others, it is unloaded",
            "  again before anybody can request it, and ends in the same way.",
            "- A version that unloads before its heir loads (`resource_preserving`) is",
            "  unloaded only if the heir's files are complete, as far as that shows without",
            "  loading them, and the heir will fit in its place. No other version gets that",
            "  room.",
            "  If the heir's first attempt to load fails for another reason, the heir ends:",
            "  the old version is loaded again and serves, though no source aspires it, until",
            "  there is another one to try. The heir's state says why it failed, the old",
            "  one's that it stands in. Further attempts, for each of which the old version",
            f"  is unloaded again, come after {_long_pauses(retry)}.",
            "  If several versions are aspired, this applies if all of them fail, and if",
            "  those fail that were to take its place: as the primary, for a label, or as",
            "  its own new contents. While the heir hangs, nothing serves.",
            f"- A failed load is tried {retry.max_num_retries} more times, the first",
            f"  time after {retry.interval_s:g} s, then after pauses twice as long, up",
            f"  to {retry.max_interval_s:g} s (flags change this);",
            f"  {permanent} are not tried again.",
            f"- A load or an unload that takes more than {PATIENCE_S:g} s may go on, but",
            "  nobody waits for it any more. Its state is published again, with a note,",
            "  another thread takes the place of its own in the pool (up to 32 at once),",
            "  and readiness and reloads count it as failed until it ends.",
            "- Giving up a version ends its pause at once. An attempt that is running is",
            "  allowed to finish, and what it loaded is unloaded.",
            "- An aspired version is never unloaded. A version that comes back while it is",
            "  still being unloaded is loaded when that is over, or beside it if that takes",
            f"  more than {PATIENCE_S:g} s. (`resource_preserving` goes on waiting, because",
            "  what hangs may hold its memory.)",
            "",
            "## Transition policies",
            "",
            "`availability_preserving` (default) loads first, then unloads;",
            "`resource_preserving` unloads first. Each case of theirs is a row of the",
            "tables in `tests/managers/transition_policy/`, under upstream's name where it",
            "has one.",
            "",
        ]
    )


def _long_pauses(retry: RetryOptions) -> str:
    pauses_s = [
        retry.long_pause_s(num, Unavailable("")) or 0.0
        for num in range(1, retry.max_num_retries + 1)
    ]
    *first, last = (f"{pause_s / 60:g}" for pause_s in pauses_s)
    return f"pauses of {', '.join(first)} and {last} minutes"


def _targets(state: HarnessState) -> str:
    if state in END_STATES:
        return "nowhere"
    return ", ".join(s.value for s in HarnessState if s in TRANSITIONS[state])


if __name__ == "__main__":
    if sys.argv[1:] == ["--stdout"]:
        sys.stdout.write(lifecycle_page())
    else:
        PAGE.write_text(lifecycle_page())
