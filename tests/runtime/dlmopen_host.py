"""Whether this machine runs backend dlmopen; tests of it skip with the reason if not."""

from __future__ import annotations

import pytest

from tfs.runtime.dlmopen import dlmopen_probe

NUM_INTERPRETERS = 2
"""No test uses more at once: each takes 145 MB of the test process for good."""


def needs_dlmopen() -> None:
    """Skips the test where the backend cannot run; says why."""
    reason = dlmopen_probe.refusal(NUM_INTERPRETERS)
    if reason:
        pytest.skip(f"backend dlmopen does not work here: {reason}")
