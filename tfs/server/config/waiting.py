"""Callers who wait for a config to take effect, when it has, and what they are told.

A model has settled when it answers as the config says, or when it is known why it will
not: what was tried has failed or hangs, or its base path cannot be read. A caller who
changed a model waits until nothing more comes of that, because the version from before may
serve all the time. (TensorFlow Serving waits for ever for a model without versions:
docs/divergences.md.)
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

from tfs.core.clock import Clock
from tfs.core.errors import Aborted, DeadlineExceeded, ServingError, Unknown
from tfs.core.executor import Executor
from tfs.core.loop.serving_loop import LoopEntry
from tfs.core.servable_state import ManagerState, ServableState
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.messages import fill_error

_REST: Final = 10  # the pause after a look, in multiples of its length


class Recheck:
    """Takes one look after all changes of a round of the loop. Thread-safe.

    While a thousand models load, a check of all of them after each event would use most of
    a core. So each look is followed by a pause of several times its own length. With tens of
    thousands of models it takes a second, so it never runs on the serving loop.

    Args:
        look: Looks at everything, on the executor, one look at a time.
        after: Called on the loop after each look.
        executor: Where looks are taken.
        loop: Runs what follows them.
        clock: Tells how long a look takes.

    """

    def __init__(
        self,
        look: Callable[[], None],
        after: Callable[[], None],
        executor: Executor,
        loop: LoopEntry,
        clock: Clock,
    ) -> None:
        self._look = look
        self._after = after
        self._executor = executor
        self._loop = loop
        self._clock = clock
        self._is_posted = False
        self._rests_until_s = 0.0
        # Only used on the loop: whether a look is under way, and whether another was
        # asked for since it began.
        self._is_looking = False
        self._is_next = False

    def ask(self) -> None:
        """Has a look begin after this call; returns at once, on any thread."""
        if self._is_posted:
            return
        self._is_posted = True
        if self._clock.now() < self._rests_until_s:
            self._loop.post_at(self._rests_until_s, self._begin)
        else:
            self._loop.post(self._begin)

    def _begin(self) -> None:
        if self._is_looking:
            self._is_next = True
            return
        self._is_looking = True
        # The executor refuses work when the server shuts down. Waiters are told of that
        # elsewhere, so no look is needed.
        with contextlib.suppress(RuntimeError):
            self._executor.submit(self._run)

    def _run(self) -> None:
        self._is_posted = False
        begun_s = self._clock.now()
        try:
            self._look()
        finally:
            took_s = self._clock.now() - begun_s
            self._loop.post(lambda: self._end(took_s))

    def _end(self, took_s: float) -> None:
        begun_s = self._clock.now()
        try:
            self._after()
        finally:
            ended_s = self._clock.now()
            self._rests_until_s = ended_s + _REST * (took_s + ended_s - begun_s)
            self._is_looking = False
            if self._is_next:
                self._is_next = self._is_posted = False
                self.ask()


_MAX_NAMED: Final = 10  # models, or problems of models, that one sentence names
_LONGEST_MARGIN_S: Final = 0.25
_MOVING: Final = (ManagerState.START, ManagerState.LOADING)


@dataclass(frozen=True, slots=True)
class ModelLook:
    """What is known of a model at one moment. Immutable.

    Attributes:
        states: States of all its versions.
        failed: Versions that are asked for and have failed.
        problems: What is wrong with its base path.
        at_hand: Versions that are under the base path.
        outlook: Whether there is a version to serve; None if there may still come one.
        primary: The version that the config names as primary; None if it names none.
        answers: The version that answers by default; None if none does.
        is_on_demand: Whether a request will have it loaded.

    """

    states: Sequence[ServableState] = ()
    failed: Collection[int] = ()
    problems: Sequence[str] = ()
    at_hand: Collection[int] = ()
    outlook: bool | None = True
    primary: int | None = None
    answers: int | None = None
    is_on_demand: bool = False


@dataclass(frozen=True, slots=True)
class ConfigOutcome:
    """The outcome of a config. Immutable.

    Attributes:
        error: Why it was refused, or what is not available although it was accepted.
        is_applied: Whether it is in force.
        models: By name, including models that are removed; each with how its effective
            config changes, what is wrong in it or with its versions, and which of these
            answer now, or soon, newest first.
        notes: Sentences for people.

    """

    error: ServingError | None
    is_applied: bool
    models: Sequence[pb.ModelOutcome] = ()
    notes: tuple[str, ...] = ()


OnOutcome = Callable[[ConfigOutcome], None]


@dataclass(eq=False, slots=True, weakref_slot=True)
class Waiter:
    """A caller who wants to know when a change has taken effect.

    Attributes:
        on_done: Takes the outcome, once, on any thread.
        models: Names of the models to wait for.
        changes: What was changed, for the outcome.
        is_base: Whether the base was changed, rather than one model's override.
        changed: The models of which everything that follows is waited for, not only
            that they answer.
        notes: What the outcome tells beside the models.
        open: Whether it is still to be told; written by :class:`ConfigWaiters`.

    """

    on_done: OnOutcome
    models: frozenset[str]
    changes: Sequence[pb.ModelOutcome]
    is_base: bool
    changed: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    open: bool = field(default=True)

    def supersedes(self, other: Waiter) -> bool:
        """Tells whether this change makes the other's change obsolete.

        A change that changes nothing makes none obsolete.
        """
        if all(each.change == pb.ModelOutcome.UNCHANGED for each in self.changes):
            return False
        if self.is_base:
            return True
        return not other.is_base and bool(
            {each.model for each in self.changes}
            & {each.model for each in other.changes}
        )


class ConfigWaiters:
    """All callers who wait. Thread-safe; ``on_done`` is called outside every lock.

    Args:
        look: Returns what is known of a model.
        is_taken_in: Whether everything that a config asks for is managed already.
        clock: Measures deadlines.
        loop: Has the timers for deadlines.
        executor: Does the work at a deadline, which takes long for many models.

    """

    def __init__(
        self,
        look: Callable[[str], ModelLook],
        is_taken_in: Callable[[], bool],
        clock: Clock,
        loop: LoopEntry,
        executor: Executor,
    ) -> None:
        self._look = look
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
            failures = self._failures_for(waiter, waiter.models)
            if all(why is not None for why in failures.values()):
                settled = {name: why or "" for name, why in failures.items()}
                self._finish(waiter, error_of(settled))

    def abandon(self, error: ServingError) -> None:
        """Tells all waiters, and those who come later, that waiting is over."""
        with self._lock:
            self._ending = error
        for waiter in self._all():
            self._finish(waiter, error)

    def failures(self, names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
        """Yields each model and why it is not available; "" if it is; None if unsettled."""
        for name in names:
            yield name, self._failure(name)

    def have_settled(self, names: Collection[str]) -> bool:
        """Whether each of the models is available or has failed.

        While that is not so, it looks at only a few models: it begins with the one that
        was unsettled the last time.
        """
        last = self._last_unsettled
        if last in names and self._failure(last) is None:
            return False
        for name in names:
            if self._failure(name) is None:
                self._last_unsettled = name
                return False
        return True

    def _failure(self, name: str) -> str | None:
        look = self._look(name)
        return "" if look.is_on_demand else failure_of(look)

    def _all(self) -> list[Waiter]:
        with self._lock:
            return list(self._waiters)

    def _failures_for(
        self, waiter: Waiter, names: Collection[str]
    ) -> dict[str, str | None]:
        is_current = self._is_taken_in()  # must be read before anything else
        return {
            name: failure_of(
                self._look(name),
                is_changed=name in waiter.changed,
                is_current=is_current,
            )
            for name in names
        }

    def _note_late(self, waiter: Waiter | None) -> None:
        if waiter is not None and waiter.open:
            # The executor refuses work when the server shuts down; all waiters are told
            # of that.
            with contextlib.suppress(RuntimeError):
                self._executor.submit(lambda: self._expire(waiter))

    def _expire(self, waiter: Waiter) -> None:
        failures = self._failures_for(waiter, waiter.models)
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
        left = [
            each.model
            for each in waiter.changes
            if each.change != pb.ModelOutcome.REMOVED
        ]
        failures = self._failures_for(waiter, left)
        for each in waiter.changes:
            self._fill(each, failures.get(each.model))
        notes = (*waiter.notes, *self._left_to_tell(waiter, failures))
        waiter.on_done(ConfigOutcome(error, True, waiter.changes, notes))

    def _left_to_tell(
        self, waiter: Waiter, failures: Mapping[str, str | None]
    ) -> list[str]:
        """Returns problems with the base paths of models that are otherwise fine.

        For example, the policy names several versions, and one of them is not there.
        """
        if not waiter.is_base:
            return []
        told = [
            problem
            for name, why in failures.items()
            if why == ""
            for problem in self._look(name).problems
        ]
        left = len(told) - _MAX_NAMED
        return [*told[:_MAX_NAMED], *([f"and {left} more such"] if left > 0 else [])]

    def _fill(self, outcome: pb.ModelOutcome, failure: str | None) -> None:
        """Adds what is wrong with a model, and which of its versions answer."""
        fill_error(outcome.status, Unknown(failure) if failure else None)
        for state in self._look(outcome.model).states:
            if state.manager_state is ManagerState.AVAILABLE:
                outcome.available_versions.append(state.id.version)
            if state.manager_state in _MOVING or state.is_changing:
                outcome.pending_versions.append(state.id.version)


def failure_of(
    look: ModelLook, *, is_changed: bool = False, is_current: bool = True
) -> str | None:
    """Returns why a model does not answer; "" if it does; None if that is open.

    One that is loaded on demand answers while none of its versions is about to.

    Args:
        look: What is known of it.
        is_changed: Whether the caller changed it: then nothing more must come of it, and
            what is asked for and failed counts although another version serves.
        is_current: Whether the look shows the effects of the config already.

    """
    states = look.states
    if look.is_on_demand and all(
        each.manager_state is ManagerState.END for each in states
    ):
        return "" if is_current else None
    serves = any(each.manager_state is ManagerState.AVAILABLE for each in states)
    answers = serves if look.primary is None else look.primary == look.answers
    if answers and not is_changed:
        return ""
    if not is_current or any(map(_is_on_its_way, states)):
        return None
    if is_changed and look.outlook is None:
        return None
    if is_changed or not serves:
        why = _what_is_wrong(look, serves)
        if why or not serves:
            return why or None
    return "" if answers else _primary_is_missing(look)


def _what_is_wrong(look: ModelLook, serves: bool) -> str:
    """Returns why nothing more comes of a model; "" if nothing is wrong."""
    if look.problems and not look.outlook:
        return "; ".join(look.problems)
    tried = [
        state
        for state in look.states
        if state.is_late and state.manager_state in _MOVING
    ]
    if tried and not serves:
        newest = max(tried, key=lambda state: state.id.version)
        return f"{newest.id} does not come to an end: {newest.note}"
    failed = [
        state
        for state in look.states
        if state.error is not None and state.id.version in look.failed
    ]
    if failed:
        newest = max(failed, key=lambda state: state.id.version)
        return f"{newest.id} due to error: {newest.error}"
    return "" if serves else "; ".join(look.problems)


def _primary_is_missing(look: ModelLook) -> str | None:
    """Returns why a named primary does not answer, whatever else does; None if it may yet."""
    wanted = look.primary
    state = next((each for each in look.states if each.id.version == wanted), None)
    if state is not None and state.error is not None and wanted in look.failed:
        why = f"failed: {state.error}"
    elif state is not None and state.is_late:
        why = f"does not come to an end: {state.note}"
    elif state is not None and state.manager_state is ManagerState.AVAILABLE:
        return None  # requests are sent to it in a moment
    elif wanted not in look.at_hand:
        why = "is not under the base path"
    elif look.problems:
        why = f"is not loaded: {'; '.join(look.problems)}"
    else:
        return None  # it is still settling, or still being copied
    meanwhile = (
        "requests that name no version get NOT_FOUND"
        if look.answers is None
        else f"version {look.answers} answers meanwhile"
    )
    return f"version {wanted}, which is to be the primary, {why}; {meanwhile}"


def _is_on_its_way(state: ServableState) -> bool:
    is_coming = state.manager_state in _MOVING
    return (is_coming or state.is_changing) and not state.is_late


def error_of(failures: Mapping[str, str]) -> ServingError | None:
    """Returns the error for models that will not become available; None if there are none."""
    bad = [why for _, why in sorted(failures.items()) if why]
    if not bad:
        return None
    listed = "".join(f"{{{why}}}, " for why in bad)
    return Unknown(f"{len(bad)} model(s) did not become available: {{{listed}}}")
