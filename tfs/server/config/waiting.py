"""Callers who wait for a config to take effect, when it has, and what they are told.

A model has settled when one of its versions is available, when all that were tried
have failed or hang, or when its base path cannot be read. (TensorFlow Serving waits for ever
for a model without versions: docs/divergences.md.)
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Final

from managers.state_monitor import ServableStateMonitor
from tfs.core.clock import Clock
from tfs.core.errors import (
    Aborted,
    Cancelled,
    DeadlineExceeded,
    ServingError,
    Unknown,
)
from tfs.core.executor import Executor
from tfs.core.loop.loop_entry import LoopEntry
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.config.running_config import Change, ModelChange
from tfs.server.model_sources import ModelSources

_MAX_NAMED: Final = 10  # models, or problems of models, that one sentence names
_LONGEST_MARGIN_S: Final = 0.25
_MOVING: Final = (ManagerState.START, ManagerState.LOADING)


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """What a new config means for one model. Immutable.

    Attributes:
        change: How its effective config changes.
        error: What is wrong in the config, or with its models; None if nothing is.
        available: Versions that answer requests now, newest first.
        pending: Versions that will answer soon, newest first.

    """

    change: ModelChange
    error: ServingError | None = None
    available: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigOutcome:
    """The outcome of a config. Immutable.

    Attributes:
        error: Why it was refused, or what is not available although it was accepted.
        is_applied: Whether it is in force.
        models: By name, including models that are removed.
        notes: Sentences for people.

    """

    error: ServingError | None
    is_applied: bool
    models: tuple[ModelOutcome, ...] = ()
    notes: tuple[str, ...] = ()


OnOutcome = Callable[[ConfigOutcome], None]


@dataclass(eq=False, slots=True, weakref_slot=True)
class Waiter:
    """A caller who wants to know when a change has taken effect.

    Attributes:
        on_done: Takes the outcome, once, on any thread.
        models: Names of the models to wait for.
        changes: What was changed, for the outcome.
        stale: States in which versions of its models had ended before.
        is_base: Whether the base was changed, rather than one model's override.
        version: The only version to wait for; None takes any.
        changed: The models that were there before, and for which everything that
            follows from the change is waited for, not only that some version serves.
        sought: The models in ``changed`` whose versions are looked for anew. If none is
            found, it is no success that a version from before goes on serving.
        notes: What the outcome tells beside the models.
        open: Whether it is still to be told; written by :class:`ConfigWaiters`.

    """

    on_done: OnOutcome
    models: frozenset[str]
    changes: tuple[ModelChange, ...]
    stale: frozenset[ServableState]
    is_base: bool
    version: int | None = None
    changed: frozenset[str] = frozenset()
    sought: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    open: bool = field(default=True)

    def supersedes(self, other: Waiter) -> bool:
        """Tells whether this change makes the other's change obsolete.

        A change that changes nothing makes none obsolete.
        """
        if all(each.change is Change.UNCHANGED for each in self.changes):
            return False
        if self.is_base:
            return True
        return not other.is_base and bool(
            {each.name for each in self.changes} & {each.name for each in other.changes}
        )


class ConfigWaiters:
    """All callers who wait. Thread-safe; ``on_done`` is called outside every lock.

    Args:
        monitor: Knows the states of versions.
        sources: Know what is wrong with base paths.
        is_taken_in: Whether everything that a config asks for is managed already.
        clock: Measures deadlines.
        loop: Has the timers for deadlines.
        executor: Does the work at a deadline, which takes long for many models.
        primary: Returns a model's primary, if its config names one, and the version
            that answers.
        on_demand: Returns the versions of a model that is loaded when somebody asks for
            it; none for any other.

    """

    def __init__(
        self,
        monitor: ServableStateMonitor,
        sources: ModelSources,
        is_taken_in: Callable[[], bool],
        clock: Clock,
        loop: LoopEntry,
        executor: Executor,
        primary: Callable[[str], tuple[int | None, int | None]],
        on_demand: Callable[[str], Collection[int]] = lambda _: (),
    ) -> None:
        self._on_demand = on_demand
        self._monitor = monitor
        self._sources = sources
        self._primary = primary
        self._is_taken_in = is_taken_in
        self._clock = clock
        self._loop = loop
        self._executor = executor
        # Guards _waiters and _ending; leaf. Their functions are called outside it.
        self._lock = threading.Lock()
        self._waiters: list[Waiter] = []
        # The error for all waiters, once waiting is over.
        self._ending: ServingError | None = None
        self._last_unsettled = ""

    def add(self, waiter: Waiter, deadline_s: float | None) -> None:
        """Adds a waiter, and tells those whose change this one supersedes."""
        with self._lock:
            superseded = [each for each in self._waiters if waiter.supersedes(each)]
            self._waiters.append(waiter)
            ending = self._ending
        for each in superseded:
            self._finish(each, Aborted("a newer configuration superseded this one"))
        if deadline_s is not None:
            # The answer has to leave some time before the caller's deadline.
            left_s = max(0.0, deadline_s - self._clock.now())
            at_s = deadline_s - min(_LONGEST_MARGIN_S, left_s / 10)
            # The timer lasts as long as the caller may wait, perhaps for hours. Who was
            # told goes at once, with what a large config changed.
            left = weakref.ref(waiter)
            self._loop.post_at(at_s, lambda: self._note_late(left()))
        if ending is not None:
            self._finish(waiter, ending)

    def tell(self) -> None:
        """Tells those whose models have all settled."""
        for waiter in self._all():
            failures = self._failures_for(waiter, waiter.models, waiter.version)
            if all(why is not None for why in failures.values()):
                settled = {name: why or "" for name, why in failures.items()}
                self._finish(waiter, error_of(settled))

    def abandon(self, error: ServingError) -> None:
        """Tells all waiters, and those who come later, that waiting is over."""
        with self._lock:
            self._ending = error
        for waiter in self._all():
            self._finish(waiter, error)

    def ended(self, names: Collection[str]) -> frozenset[ServableState]:
        """Returns the states that versions of these models have ended or failed in."""
        return frozenset(
            state
            for name in names
            for state in self._monitor.version_states(name)
            if state.manager_state is ManagerState.END or state.error is not None
        )

    def failures(self, names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
        """Yields each model and why it is not available; "" if it is; None if unsettled."""
        problems = self._sources.source.problems()
        for name in names:
            yield name, self._failure(name, problems)

    def have_settled(self, names: Collection[str]) -> bool:
        """Whether each of the models is available or has failed.

        While that is not so, it looks at only a few models: it begins with the one that
        was unsettled the last time.
        """
        problems = self._sources.source.problems()
        last = self._last_unsettled
        if last in names and self._failure(last, problems) is None:
            return False
        for name in names:
            if self._failure(name, problems) is None:
                self._last_unsettled = name
                return False
        return True

    def _failure(self, name: str, problems: Mapping[str, Sequence[str]]) -> str | None:
        if self._on_demand(name):
            return ""  # a request will have it loaded
        return failure_of(self._monitor.version_states(name), problems.get(name, ()))

    def _all(self) -> list[Waiter]:
        with self._lock:
            return list(self._waiters)

    def _failures_for(
        self, waiter: Waiter, names: Collection[str], version: int | None = None
    ) -> dict[str, str | None]:
        is_current = self._is_taken_in()  # must be read before states and problems
        problems = self._sources.source.problems()
        failures = {}
        for name in names:
            states = [
                state
                for state in self._monitor.version_states(name)
                if version is None or state.id.version == version
            ]
            told = problems.get(name, ())
            if self._on_demand(name) and all(
                each.manager_state is ManagerState.END for each in states
            ):
                failures[name] = "" if is_current else None
                continue
            if name in waiter.changed:
                source = self._sources.source
                outlook = source.outlook(name) if name in waiter.sought else True
                failures[name] = failure_of_change(
                    states, told, waiter.stale, is_current=is_current, outlook=outlook
                )
            else:
                failures[name] = failure_of(
                    states, told, waiter.stale, is_current=is_current
                )
            if failures[name] != "":
                continue
            wanted, answers = self._primary(name)
            if wanted is None or wanted == answers:
                continue
            at_hand = self._sources.source.at_hand(name)
            failures[name] = (
                failure_of_primary(wanted, answers, states, told, at_hand)
                if is_current
                else None
            )
        return failures

    def _note_late(self, waiter: Waiter | None) -> None:
        if waiter is not None and waiter.open:
            # The executor refuses work when the server shuts down; all waiters are told
            # of that.
            with contextlib.suppress(RuntimeError):
                self._executor.submit(lambda: self._expire(waiter))

    def _expire(self, waiter: Waiter) -> None:
        failures = self._failures_for(waiter, waiter.models, waiter.version)
        unsettled = sorted(name for name, why in failures.items() if why is None)
        listed = ", ".join(unsettled[:_MAX_NAMED])
        more = len(unsettled) - _MAX_NAMED
        late = DeadlineExceeded(
            f"the configuration is in force, but {len(unsettled)} model(s) are not "
            f"available yet: {listed}" + (f" and {more} more" if more > 0 else "")
        )
        self._finish(waiter, late)

    def _finish(self, waiter: Waiter, error: ServingError | None) -> None:
        with self._lock:
            if not waiter.open:
                return
            waiter.open = False
            self._waiters.remove(waiter)
        left = [c.name for c in waiter.changes if c.change is not Change.REMOVED]
        failures = self._failures_for(waiter, left)
        models = tuple(
            self._outcome(each, failures.get(each.name)) for each in waiter.changes
        )
        notes = (*waiter.notes, *self._left_to_tell(waiter, left, failures))
        waiter.on_done(ConfigOutcome(error, True, models, notes))

    def _left_to_tell(
        self,
        waiter: Waiter,
        names: Sequence[str],
        failures: Mapping[str, str | None],
    ) -> list[str]:
        """Returns problems with the base paths of models that are otherwise fine.

        For example, the policy names several versions, and one of them is not there.
        """
        if not waiter.is_base:
            return []
        problems = self._sources.source.problems()
        told = [
            problem
            for name in names
            if failures.get(name) == ""
            for problem in problems.get(name, ())
        ]
        left = len(told) - _MAX_NAMED
        return [*told[:_MAX_NAMED], *([f"and {left} more such"] if left > 0 else [])]

    def _outcome(self, change: ModelChange, failure: str | None) -> ModelOutcome:
        states = self._monitor.version_states(change.name)
        return ModelOutcome(
            change,
            Unknown(failure) if failure else None,
            tuple(
                each.id.version
                for each in states
                if each.manager_state is ManagerState.AVAILABLE
            ),
            tuple(
                each.id.version
                for each in states
                if each.manager_state in _MOVING or each.is_changing
            ),
        )


def failure_of(
    states: Sequence[ServableState],
    problems: Sequence[str],
    stale: Collection[ServableState] = (),
    *,
    is_current: bool = True,
) -> str | None:
    """Returns why a model will not become available; "" if it is; None if unsettled.

    Args:
        states: States of all its versions.
        problems: What the source says is wrong with its base path.
        stale: States in which versions had ended before the config. They count only if
            nothing else is known, that is, if the config had no effect.
        is_current: Whether states and problems show the effects of the config already.

    """
    if any(state.manager_state is ManagerState.AVAILABLE for state in states):
        return ""
    if any(
        state.manager_state is not ManagerState.END and not state.is_late
        for state in states
    ):
        return None
    late = [
        state
        for state in states
        if state.is_late and state.manager_state is not ManagerState.UNLOADING
    ]
    if late:
        newest = max(late, key=lambda state: state.id.version)
        return f"{newest.id} does not come to an end: {newest.note}"
    failed = [state for state in states if _has_failed(state)]
    fresh = [state for state in failed if state not in stale]
    if fresh:
        return _newest(fresh)
    if not is_current:
        return None
    if problems:
        return "; ".join(problems)
    return _newest(failed) if failed else None


def failure_of_change(
    states: Sequence[ServableState],
    problems: Sequence[str],
    stale: Collection[ServableState] = (),
    *,
    is_current: bool = True,
    outlook: bool | None = True,
) -> str | None:
    """Returns what went wrong with a model's change; "" if nothing; None if unsettled.

    A version from before may serve all the time, so a change is over when nothing more
    follows from it.

    Args:
        states: See ``failure_of``.
        problems: See ``failure_of``.
        stale: See ``failure_of``.
        is_current: See ``failure_of``.
        outlook: Whether there is a version to serve at the path in the config; None if
            there may still come one.

    """
    if not is_current or any(_is_on_its_way(state) for state in states):
        return None
    known = [state.error for state in stale]
    failed = [
        state
        for state in states
        if _has_failed(state)
        and not any(state.error is error for error in known)
        and state.manager_state in (ManagerState.AVAILABLE, ManagerState.END)
    ]
    if failed:
        return _newest(failed)
    if outlook is None:
        return None
    if not outlook and problems:
        return "; ".join(problems)
    return failure_of(states, problems, stale)


def failure_of_primary(
    primary: int,
    answers: int | None,
    states: Sequence[ServableState],
    problems: Sequence[str],
    at_hand: Collection[int],
) -> str | None:
    """Returns why a primary does not answer; "" if it does; None if unsettled.

    It is for a model with which nothing else is wrong. Requests that name no version
    get only the primary. So if it is missing, that is a failure, whatever serves beside
    it.

    Args:
        primary: The version that should answer.
        answers: The version that does answer; None for none.
        states: States of all its versions.
        problems: What the source says is wrong with its base path.
        at_hand: Versions that are under the base path.

    """
    state = next((each for each in states if each.id.version == primary), None)
    if primary == answers:
        return ""
    if state is not None and state.manager_state is ManagerState.AVAILABLE:
        return None  # requests are sent to it in a moment
    if state is not None and _is_on_its_way(state):
        return None
    if state is not None and _has_failed(state):
        why = f"failed: {state.error}"
    elif state is not None and state.is_late:
        why = f"does not come to an end: {state.note}"
    elif primary not in at_hand:
        why = "is not under the base path"
    elif problems:
        why = f"is not loaded: {'; '.join(problems)}"
    else:
        return None  # it is still settling, or still being copied
    meanwhile = (
        "requests that name no version get NOT_FOUND"
        if answers is None
        else f"version {answers} answers meanwhile"
    )
    return f"version {primary}, which is to be the primary, {why}; {meanwhile}"


def _has_failed(state: ServableState) -> bool:
    # A load that was cancelled is not a failure of the version: if the version is
    # wanted again, it is loaded anew when the cancelled load has ended.
    return state.error is not None and not isinstance(state.error, Cancelled)


def _is_on_its_way(state: ServableState) -> bool:
    is_coming = state.manager_state in _MOVING
    return (is_coming or state.is_changing) and not state.is_late


def _newest(failed: Sequence[ServableState]) -> str:
    newest = max(failed, key=lambda state: state.id.version)
    return f"{newest.id} due to error: {newest.error}"


def error_of(failures: Mapping[str, str]) -> ServingError | None:
    """Returns the error for models that will not become available; None if there are none."""
    bad = [why for _, why in sorted(failures.items()) if why]
    if not bad:
        return None
    listed = "".join(f"{{{why}}}, " for why in bad)
    return Unknown(f"{len(bad)} model(s) did not become available: {{{listed}}}")
