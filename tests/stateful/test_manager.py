"""The aspired-versions manager under random wishes, faults, pins and time.

A model of the rules is kept beside it: what was aspired last, which loaders work,
what is pinned. Whatever happens, the promises of ARCHITECTURE.md hold at every event.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from managers.aspired_versions_manager import AspiredVersionsManagerOptions
from managers.transition_policy import resource_preserving
from managers.versions.version import RetryOptions
from tests.managers.environment import Environment, Pools
from tfs.core.errors import InvalidArgument, NotFound, ServingError, Unavailable
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState
from tfs.testing.fake_loader import FakeLoader, FakeServable

AVAILABILITY = ("a", "b")
RESOURCE = "r"
RETRY = RetryOptions(max_num_retries=2, interval_s=4.0)
NEXT: dict[ManagerState | None, set[ManagerState]] = {
    None: {ManagerState.START},
    # START again: other contents came before these were loaded.
    ManagerState.START: {ManagerState.START, ManagerState.LOADING, ManagerState.END},
    ManagerState.LOADING: {ManagerState.AVAILABLE, ManagerState.END},
    # AVAILABLE again: something was noted, or changed contents took over.
    ManagerState.AVAILABLE: {ManagerState.AVAILABLE, ManagerState.UNLOADING},
    ManagerState.UNLOADING: {ManagerState.END},
    ManagerState.END: {ManagerState.START},
}

names = st.sampled_from((*AVAILABILITY, RESOURCE))
versions = st.integers(1, 4)
faults = st.sampled_from(("none", "none", "permanent", "passing", "lasting"))
FAULTS: dict[str, list[BaseException | None]] = {
    "none": [],
    "permanent": [InvalidArgument("corrupt")],
    "passing": [Unavailable("busy")],
    "lasting": [Unavailable("gone")] * 9,
}


class ManagerMachine(RuleBasedStateMachine):
    """Wishes, breaks, pins, waits, and looks."""

    @initialize()
    def set_up(self) -> None:
        self.env = Environment(
            Pools(0, 0),
            options=AspiredVersionsManagerOptions(retry=RETRY, release_memory=None),
        )
        self.env.manager.set_transition_policy(RESOURCE, resource_preserving)
        self.wanted: dict[str, dict[int, FakeLoader | ServingError]] = {}
        self.pins: list[ServableHandle[object]] = []
        self.covered: set[str] = set()
        self.last: dict[ServableId, ManagerState] = {}
        self.loaders: list[FakeLoader] = []
        self.faults: list[str] = []
        self.env.monitor.listen(lambda event: self.check_event(event.event.id))

    # -- what may happen ---------------------------------------------------------------

    @rule(name=names, numbers=st.sets(versions, max_size=3), fault=faults)
    def aspire(self, name: str, numbers: set[int], fault: str) -> None:
        """Wants these versions; those wanted before keep their loader."""
        if name == RESOURCE:
            numbers = set(list(numbers)[:1])
        before = self.wanted.get(name, {})
        self.wanted[name] = {
            number: before.get(number) or self.make(name, number, fault)
            for number in numbers
        }
        self.tell(name)

    @rule(name=names, number=versions, fault=faults)
    def change_files(self, name: str, number: int, fault: str) -> None:
        """A version comes with another loader."""
        if number in self.wanted.get(name, {}):
            self.wanted[name][number] = self.make(name, number, fault)
            self.tell(name)

    @rule(name=names, number=versions)
    def break_files(self, name: str, number: int) -> None:
        """A version comes with an error instead of a loader."""
        if number in self.wanted.get(name, {}):
            self.wanted[name][number] = InvalidArgument("no manifest")
            self.tell(name)

    @rule()
    def settle(self) -> None:
        self.env.settle()

    @rule(duration_s=st.sampled_from((0.5, 4.0, 9.0)))
    def advance(self, duration_s: float) -> None:
        self.env.clock.advance(duration_s)
        self.env.settle()

    @rule(name=names)
    def request(self, name: str) -> None:
        """Whoever answers is alive, and it is the highest available version."""
        try:
            handle = self.env.manager.acquire(ServableRequest.latest(name))
        except NotFound:
            assert self.env.available(name) == ()
            return
        assert handle.id.version == max(self.env.available(name))
        handle.release()

    @rule(name=names)
    def pin(self, name: str) -> None:
        if self.env.available(name) and len(self.pins) < 4:
            self.pins.append(self.env.manager.acquire(ServableRequest.latest(name)))

    @precondition(lambda self: self.pins)
    @rule(index=st.integers(0, 3))
    def unpin(self, index: int) -> None:
        self.pins.pop(index % len(self.pins)).release()

    # -- what must hold ----------------------------------------------------------------

    def check_event(self, servable_id: ServableId) -> None:
        """Runs at every published state, in the middle of whatever happens.

        Faults are collected: the bus would swallow an exception.
        """
        state = self.env.state(servable_id.name, servable_id.version)
        assert state is not None
        before = self.last.get(servable_id)
        if state not in NEXT[before]:
            self.faults.append(f"{servable_id.slashed}: {before} -> {state}")
        self.last[servable_id] = state
        if servable_id.name in self.covered and not self.is_closing:
            if not self.env.available(servable_id.name):
                self.faults.append(f"{servable_id.slashed} {state}: nothing available")
            aspired = self.wanted[servable_id.name]
            statuses = self.env.monitor.version_states(servable_id.name)
            if not any(s.manager_state is ManagerState.AVAILABLE for s in statuses):
                self.faults.append(f"{servable_id.slashed} {state}: none is shown")
            assert aspired

    @invariant()
    def pinned_servables_live(self) -> None:
        for handle in getattr(self, "pins", ()):
            assert isinstance(handle.servable, FakeServable)
            assert handle.servable.is_alive

    @invariant()
    def saving_policy_never_has_two(self) -> None:
        if hasattr(self, "env"):
            assert self.env.log.max_num_resident.get(RESOURCE, 0) <= 1

    @invariant()
    def no_event_broke_a_promise(self) -> None:
        assert getattr(self, "faults", []) == []

    @invariant()
    def loaders_were_treated_well(self) -> None:
        for loader in getattr(self, "loaders", ()):
            assert loader.breaches == []

    def teardown(self) -> None:
        """Lets everything come to rest: what is wanted and works is available."""
        if not hasattr(self, "env"):
            return
        for handle in self.pins:
            handle.release()
        for _ in range(4):
            self.env.settle()
            self.env.clock.advance(20.0)
        self.env.settle()
        for name, wanted in self.wanted.items():
            works = {
                number
                for number, what in wanted.items()
                if isinstance(what, FakeLoader)
                and what.num_loads > what.num_unloads
                and self.env.available(name)
                and what.is_loaded
            }
            available = set(self.env.available(name))
            assert works <= available
            left_over = available - wanted.keys()
            if not wanted or works:
                assert left_over == set()
            elif name == RESOURCE:  # one came back in place of those that all failed
                assert len(left_over) <= 1
            if not wanted:
                assert available == set()
        assert self.env.close()
        assert self.env.log.resident == []
        assert self.faults == []
        for loader in self.loaders:
            assert loader.breaches == []

    # -- pieces ------------------------------------------------------------------------

    def make(self, name: str, number: int, fault: str) -> FakeLoader:
        loader: FakeLoader = self.env.loader(
            name,
            number,
            errors=list(FAULTS[fault]),
            on_unload=lambda: self.check_unload(loader),
        )
        self.loaders.append(loader)
        return loader

    def check_unload(self, loader: FakeLoader) -> None:
        """Nothing aspired is ever unloaded."""
        now_wanted = self.wanted.get(loader.id.name, {}).get(loader.id.version)
        if now_wanted is loader and not self.is_closing:
            self.faults.append(f"{loader.id.slashed} was unloaded while it was aspired")

    @property
    def is_closing(self) -> bool:
        return self.env.manager.is_closing

    def tell(self, name: str) -> None:
        """Tells the manager; from here on the name must stay available, if it may."""
        if name in AVAILABILITY:
            if self.wanted[name] and self.env.available(name):
                self.covered.add(name)
            else:
                self.covered.discard(name)
        self.env.aspire(
            name,
            *(
                (number, what) if isinstance(what, ServingError) else what
                for number, what in sorted(self.wanted[name].items())
            ),
        )


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
