"""What goes first while it is measured, and no longer."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.benchmarks.priority import ahead_of_others

PRINT_POLICY = "import os; print(os.sched_getscheduler(0))"


def policy_of_a_child() -> int:
    result = subprocess.run(
        [sys.executable, "-S", "-c", PRINT_POLICY],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(result.stdout)


def test_what_is_started_meanwhile_goes_first_and_later_nothing() -> None:
    """Servers and generators inherit the thread's place; it is given back after."""
    before = os.sched_getscheduler(0)
    with ahead_of_others() as is_ahead:
        expected = os.SCHED_RR if is_ahead else before
        assert os.sched_getscheduler(0) == expected
        assert policy_of_a_child() == expected
    assert os.sched_getscheduler(0) == before
    assert policy_of_a_child() == before


def test_who_may_not_go_first_is_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the right to it nothing changes, and it is said."""

    def refuse(pid: int, policy: int, parameters: os.sched_param) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with ahead_of_others() as is_ahead:
        assert not is_ahead
