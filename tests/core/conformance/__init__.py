"""Checks of the core's protocols, for every implementor to run.

Each protocol's numbered promises are functions here, one per promise, collected in
a tuple per protocol. An implementor's test parametrizes over the tuple, so that a
broken promise fails under its own name:

    @pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=check_name)
    def test_my_transport_keeps_the_promises(check: TransportCheck) -> None:
        check(make_my_transport)

``check_servable`` and its kin run all of them in a row.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.core.conformance.clock import CLOCK_CHECKS, ClockCheck, check_clock
from tests.core.conformance.executor import (
    EXECUTOR_CHECKS,
    ExecutorCheck,
    check_executor,
)
from tests.core.conformance.loader import (
    LOADER_CHECKS,
    LoaderCheck,
    LoaderUnderTest,
    check_loader,
)
from tests.core.conformance.manager import (
    MANAGER_CHECKS,
    UNLOADING_MANAGER_CHECKS,
    ManagerCheck,
    ManagerUnderTest,
    UnloadingManagerCheck,
    UnloadingManagerUnderTest,
    check_manager,
)
from tests.core.conformance.servable import (
    SERVABLE_CHECKS,
    ServableCheck,
    check_servable,
    example_inputs,
    run_task,
)
from tests.core.conformance.source import (
    ADAPTER_CHECKS,
    SOURCE_CHECKS,
    TARGET_CHECKS,
    AdapterCheck,
    SourceCheck,
    SourceUnderTest,
    TargetCheck,
    check_source,
    check_source_adapter,
    check_target,
)
from tests.core.conformance.transport import (
    STREAM_CHECKS,
    TRANSPORT_CHECKS,
    MakeTransport,
    TransportCheck,
    check_transport,
)

__all__ = [
    "ADAPTER_CHECKS",
    "CLOCK_CHECKS",
    "EXECUTOR_CHECKS",
    "LOADER_CHECKS",
    "MANAGER_CHECKS",
    "SERVABLE_CHECKS",
    "SOURCE_CHECKS",
    "STREAM_CHECKS",
    "TARGET_CHECKS",
    "TRANSPORT_CHECKS",
    "UNLOADING_MANAGER_CHECKS",
    "AdapterCheck",
    "ClockCheck",
    "ExecutorCheck",
    "LoaderCheck",
    "LoaderUnderTest",
    "MakeTransport",
    "ManagerCheck",
    "ManagerUnderTest",
    "ServableCheck",
    "SourceCheck",
    "SourceUnderTest",
    "TargetCheck",
    "TransportCheck",
    "UnloadingManagerCheck",
    "UnloadingManagerUnderTest",
    "check_clock",
    "check_executor",
    "check_loader",
    "check_manager",
    "check_name",
    "check_servable",
    "check_source",
    "check_source_adapter",
    "check_target",
    "check_transport",
    "example_inputs",
    "run_task",
]


def check_name(check: Callable[..., None]) -> str:
    """Returns a test id for a check: its name without the shared first words."""
    return check.__name__
