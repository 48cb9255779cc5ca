"""Which test shows what a fleet does when something fails, and what always holds.

The failures and invariants are those that the fleet was designed by; each has a test with
real processes, or with real servers' answers where a process adds nothing. Tests of Envoy
and PostgreSQL run in ``make test-engines``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]

_UP, _CUT = "tests/e2e/test_hosted_up.py", "tests/e2e/test_fleet_failures.py"
_IDLE = "tests/e2e/test_hosted_idle.py"
_SERVER = "tests/e2e/test_rpc_source.py"
_SYNCHRONIZER = "tests/hosted/test_synchronizer.py"
_STORE = "tests/hosted/store/test_state_store.py"
_ROUTER = "tests/hosted/routing/test_fleet_router.py"
_PYTHON_ROUTER = "tests/hosted/routing/test_python_router.py"
_WORKER = "tests/runtime/process/test_worker_processes.py"
_PACKING = "tests/hosted/test_packing.py"

_KILLED = f"{_UP}::test_a_server_that_is_killed_or_frozen_fails_no_request"
_AWAY = f"{_UP}::test_nothing_fails_while_controller_and_store_are_away"
_PAUSED = f"{_CUT}::test_a_leader_that_was_paused_follows_who_took_its_place"
_NEWEST = f"{_SERVER}::test_only_the_newest_word_of_its_own_fleet_counts"

FAILURES: Final[Mapping[str, Sequence[str]]] = {
    "a server is killed": (_KILLED,),
    "a server is frozen": (_KILLED,),
    "a machine is lost, or cut off": (
        f"{_CUT}::test_a_server_that_is_cut_off_fails_no_request_and_comes_back",
        f"{_SYNCHRONIZER}::test_a_silent_job_is_replaced_and_comes_back",
    ),
    "the controller is dead": (
        _AWAY,
        "tests/hosted/test_crash_points.py::test_a_kill_at_every_step_changes_nothing_of_the_end",
    ),
    "a paused controller comes back": (
        _PAUSED,
        f"{_STORE}::test_who_lost_a_lease_changes_nothing",
    ),
    "the synchronizer is dead": (
        _AWAY,
        f"{_SERVER}::test_what_a_fleet_said_outlives_the_fleet_and_the_process",
    ),
    "two synchronizers": (_NEWEST, _PAUSED),
    "the store is down": (
        _AWAY,
        f"{_SYNCHRONIZER}::test_a_store_that_is_lost_takes_no_route_and_no_model_away",
        f"{_STORE}::test_what_was_acknowledged_survives_a_killed_database",
    ),
    "the disk of the store is full": (
        f"{_CUT}::test_a_store_whose_disk_is_full_refuses_changes_and_fails_no_request",
    ),
    "the disk of a server is full": (
        f"{_SERVER}::test_what_cannot_be_kept_is_not_acknowledged",
    ),
    "a model crashes": (
        f"{_WORKER}::test_a_version_that_keeps_crashing_is_quarantined_alone",
        f"{_WORKER}::test_who_is_ended_for_memory_again_and_again_is_quarantined",
        "tests/hosted/test_controller.py::test_a_load_that_failed_is_not_waited_for",
    ),
    "a model takes its server with it": (
        "tests/e2e/test_version_probe.py::test_a_server_that_dies_in_a_probe_is_no_answer_and_two_that_do_are",
    ),
    "a router hears of nothing": (
        _AWAY,
        f"{_UP}::test_envoy_serves_on_without_its_control_plane",
    ),
    "load falls, and servers go": (
        f"{_UP}::test_servers_come_ahead_of_a_hint_and_go_without_cutting_a_request",
        f"{_IDLE}::test_a_model_of_temp_goes_to_zero_and_its_next_request_is_answered",
    ),
    "a server says nothing of its load": (
        f"{_IDLE}::test_no_server_goes_while_another_says_nothing_of_its_load",
    ),
    "a clock is set": (f"{_STORE}::test_a_clock_that_is_set_makes_no_second_leader",),
}

INVARIANTS: Final[Mapping[str, Sequence[str]]] = {
    "I1: a transition never leaves a model without a replica": (
        _KILLED,
        "tests/e2e/test_hosted.py::test_a_fleet_serves_through_rollback_and_a_killed_server",
    ),
    "I2: what was acknowledged survives; a request id acts once": (
        "tests/hosted/test_crash_points.py::test_a_kill_at_every_step_changes_nothing_of_the_end",
        "tests/hosted/test_controller.py::test_ten_thousand_repetitions_act_once",
    ),
    "I3: never more is reserved than there is": (
        f"{_PACKING}::test_no_job_has_more_than_it_holds",
        "tests/hosted/jobs/test_job_runtime.py::test_limits_hold_for_each_replica",
    ),
    "I4: requests go only to who has the model": (
        f"{_UP}::test_servers_come_ahead_of_a_hint_and_go_without_cutting_a_request",
        f"{_SYNCHRONIZER}::test_a_job_is_told_once_and_routed_to_when_it_answers",
        f"{_ROUTER}::test_requests_go_by_their_model_to_who_has_it",
    ),
    "I5: a lower epoch never overrides a higher": (_NEWEST, _PAUSED),
    "I6: an incomplete message unloads nothing": (
        f"{_SERVER}::test_an_incomplete_message_unloads_nothing",
    ),
    "I7: requests need no control plane": (_AWAY,),
    "I8: what was seen can be dropped and is seen again": (
        _AWAY,
        f"{_SYNCHRONIZER}::test_a_start_without_the_store_goes_on_from_the_copy",
    ),
    "I9: Temp takes nothing of Prod's": (
        f"{_PACKING}::test_temp_has_what_prod_leaves",
        "tests/hosted/test_sighting_table.py::test_a_model_of_temp_that_lost_its_place_goes",
        "tests/hosted/test_identities.py::test_prod_takes_the_place_of_temp_and_not_the_other_way",
        "tests/hosted/test_identities.py::test_a_name_of_temp_changes_models_of_temp_and_nothing_else",
    ),
    "I10: a rollback needs nothing of the newest version": (
        "tests/e2e/test_hosted.py::test_a_fleet_serves_through_rollback_and_a_killed_server",
    ),
    "I11: second requests are a twentieth, and losers are cancelled": (
        "tests/hosted/routing/test_hedging.py::test_second_requests_are_a_twentieth_of_the_first",
        f"{_PYTHON_ROUTER}::test_a_late_request_is_sent_a_second_time_and_the_first_answer_wins",
        f"{_ROUTER}::test_a_late_request_is_answered_by_a_second_server",
    ),
}


@pytest.mark.parametrize("tests", [*FAILURES.values(), *INVARIANTS.values()])
def test_every_failure_and_invariant_has_its_tests(tests: Sequence[str]) -> None:
    """A test that is renamed or goes leaves the table with what shows it now."""
    for each in tests:
        path, name = each.split("::")
        text = (ROOT / path).read_text()
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), each
