"""The transition table whole, and the attempts to load."""

from __future__ import annotations

import logging
import weakref

import pytest

from managers.versions.harness_state import END_STATES, TRANSITIONS, HarnessState
from managers.versions.load_attempts import (
    load_once,
)
from managers.versions.version import RetryOptions, Version
from tfs.core.errors import (
    Code,
    DataLoss,
    FailedPrecondition,
    Internal,
    Unavailable,
)
from tfs.core.servable_id import ServableId
from tfs.core.source import ServableData
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loader import FakeLoader

ID = ServableId("half_plus_two", 7)
S = HarnessState
RETRIES = RetryOptions(max_num_retries=3, interval_s=1.0, max_interval_s=3.0)

PATH_TO = {
    S.NEW: (),
    S.LOAD_REQUESTED: (S.LOAD_REQUESTED,),
    S.LOAD_APPROVED: (S.LOAD_REQUESTED, S.LOAD_APPROVED),
    S.LOADING: (S.LOAD_REQUESTED, S.LOAD_APPROVED, S.LOADING),
}
PATH_TO[S.READY] = (*PATH_TO[S.LOADING], S.READY)
PATH_TO[S.UNLOAD_REQUESTED] = (*PATH_TO[S.READY], S.UNLOAD_REQUESTED)
PATH_TO[S.QUIESCING] = (*PATH_TO[S.UNLOAD_REQUESTED], S.QUIESCING)
PATH_TO[S.QUIESCED] = (*PATH_TO[S.QUIESCING], S.QUIESCED)
PATH_TO[S.UNLOADING] = (*PATH_TO[S.QUIESCED], S.UNLOADING)
PATH_TO[S.DISABLED] = (*PATH_TO[S.UNLOADING], S.DISABLED)
PATH_TO[S.ERROR] = (S.ERROR,)


def make(loader: FakeLoader | None = None, clock: FakeClock | None = None) -> Version:
    return Version(
        ServableData(ID, loader or FakeLoader(ID)),
        retry=RETRIES,
        clock=clock or FakeClock(),
    )


def harness_in(state: HarnessState) -> Version:
    version = make()
    for each in PATH_TO[state]:
        version.transition(each)
    return version


def loading(loader: FakeLoader, clock: FakeClock | None = None) -> Version:
    version = make(loader, clock)
    for each in PATH_TO[S.LOADING]:
        version.transition(each)
    return version


@pytest.mark.parametrize("to", list(S))
@pytest.mark.parametrize("source", list(S))
def test_transition_follows_the_table_or_changes_nothing(
    source: HarnessState, to: HarnessState
) -> None:
    """Allowed moves move; every other raises INTERNAL and changes nothing.

    The cases Init, LoadRequested, LoadApproved, UnloadRequested and Quiesce upstream.
    """
    version = harness_in(source)
    if to in TRANSITIONS[source]:
        version.transition(to)
        assert version.state is to
        return
    error = version.error
    with pytest.raises(Internal, match="Illegal request to transition from state"):
        version.transition(to)
    assert version.state is source
    assert version.error is error


def test_table_leaves_no_end_state_and_reaches_every_other() -> None:
    """End states are never left; every state can be reached from NEW."""
    assert {s for s in S if not TRANSITIONS[s]} == END_STATES
    reached = {S.NEW}
    for _ in S:
        reached |= {to for source in reached for to in TRANSITIONS[source]}
    assert reached == set(S)


@pytest.mark.parametrize("state", [s for s in S if s is not S.NEW])
def test_second_load_request_is_refused(state: HarnessState) -> None:
    """MultipleLoadRequestsOnlyFirstOneSucceeds: only NEW may be asked to load."""
    version = harness_in(state)
    with pytest.raises(FailedPrecondition, match="Duplicate load request"):
        version.request_load()
    assert version.state is state


@pytest.mark.parametrize("state", [s for s in S if s is not S.READY])
def test_unload_request_is_refused_unless_ready(state: HarnessState) -> None:
    """Only READY may be asked to unload.

    MultipleUnloadRequestsOnlyFirstOneSucceeds, UnloadWithoutLoad upstream.
    """
    version = harness_in(state)
    with pytest.raises(
        FailedPrecondition,
        match="Servable not loaded, or unload already requested/ongoing",
    ):
        version.request_unload()
    assert version.state is state


@pytest.mark.parametrize("fault", [ValueError("no"), SystemExit(3)])
def test_foreign_exception_becomes_internal(fault: BaseException) -> None:
    """Whatever model code raises, sys.exit() too, is an INTERNAL of its version."""
    version = loading(FakeLoader(ID, errors=[fault] * 4))
    while not load_once(version) and not version.is_over:
        pass
    assert version.error is not None
    assert version.error.code is Code.INTERNAL
    assert "half_plus_two/7" in version.error.message


@pytest.mark.parametrize("is_expected", [True, False])
def test_a_traceback_is_logged_only_of_what_nobody_expected(
    caplog: pytest.LogCaptureFixture, is_expected: bool
) -> None:
    """An error that was understood says in its message what there is to know."""
    cause = ValueError("cut off")
    fault: Exception = cause
    if is_expected:
        fault = DataLoss("model.pt is damaged")
        fault.__cause__ = cause
    load_once(loading(FakeLoader(ID, errors=[fault])))
    (record,) = caplog.records
    assert "event=load_attempt_failed" in record.getMessage()
    assert bool(record.exc_info) is not is_expected


def test_retries_back_off_up_to_the_cap_and_then_succeed() -> None:
    """RetryOnLoadErrorFinallySucceeds: pauses double from the interval to the cap."""
    clock = FakeClock()
    loader = FakeLoader(ID, errors=[Unavailable("not yet")] * 3)
    version = loading(loader, clock)
    pauses_s = []
    while not load_once(version) and not version.is_over:
        assert version.retry_at_s is not None
        pauses_s.append(version.retry_at_s - clock.now())
    assert pauses_s == [1.0, 2.0, 3.0]
    assert version.error is None or version.state is S.LOADING
    version.transition(S.READY)
    assert version.error is None


def test_cancel_between_attempts_ends_the_load_at_once() -> None:
    """A pause before a retry is over the moment the version is given up."""
    version = loading(FakeLoader(ID, errors=[Unavailable("not yet")]))
    assert not load_once(version)
    assert version.retry_at_s is not None
    assert version.cancel() is True
    assert version.state is S.ERROR
    assert version.error is not None
    assert version.error.code is Code.UNAVAILABLE


def test_cancel_during_an_attempt_that_succeeds_unloads_it() -> None:
    """UnloadDueToCancelledLoad: Unload is called, the end is ERROR, CANCELLED."""
    version: Version
    loader = FakeLoader(ID, on_load=lambda: version.cancel())
    version = loading(loader)
    assert not load_once(version)
    assert version.state is S.ERROR
    assert loader.num_unloads == 1
    assert version.state is S.ERROR
    assert version.error is not None
    assert version.error.code is Code.CANCELLED
    assert "Loading of servable cancelled" in version.error.message


@pytest.mark.parametrize(
    "state", [s for s in S if s not in (S.LOAD_REQUESTED, S.LOAD_APPROVED, S.LOADING)]
)
def test_cancel_outside_a_load_does_nothing(state: HarnessState) -> None:
    """Only a load can be cancelled."""
    version = harness_in(state)
    assert version.cancel() is False
    assert version.state is state


def test_error_signalled_from_outside_is_kept() -> None:
    """ExternallySignalledError: fail() moves to ERROR with that status."""
    version = make()
    version.fail(Unavailable("told so"))
    assert version.state is S.ERROR
    assert version.snapshot().error is not None
    with pytest.raises(Internal):
        version.fail(Unavailable("again"))
    assert "told so" in str(version.error)


class Weights:
    """Stands for what a load had made when it failed."""


def test_an_error_that_is_kept_keeps_nothing_that_the_attempt_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The frames that it was raised through hold parts of the model."""
    made: list[weakref.ref[Weights]] = []
    # pytest keeps what is logged, tracebacks included.
    monkeypatch.setattr(
        logging.getLogger("managers.versions.load_attempts"), "disabled", True
    )

    class Loader(FakeLoader):
        def load(self, servable_id: ServableId) -> None:
            weights = Weights()
            made.append(weakref.ref(weights))
            try:
                raise KeyError("layer.weight")
            except KeyError as error:
                raise ValueError("cannot read the weights") from error

    version = Version(
        ServableData(ID, Loader(ID)),
        retry=RetryOptions(max_num_retries=0),
        clock=FakeClock(),
    )
    version.request_load()
    version.approve_load()
    version.transition(HarnessState.LOADING)
    assert not load_once(version)
    assert version.state is S.ERROR
    assert "cannot read the weights" in str(version.error)
    assert made[0]() is None
