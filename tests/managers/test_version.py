"""The transition table whole, and the attempts to load."""

from __future__ import annotations

import logging
import weakref

import pytest

from managers.versions.harness_state import END_STATES, TRANSITIONS, HarnessState
from managers.versions.load_attempts import (
    estimate_once,
    load_once,
    unload,
)
from managers.versions.version import RetryOptions, Version
from tfs.core.errors import (
    Cancelled,
    Code,
    DataLoss,
    FailedPrecondition,
    Internal,
    InvalidArgument,
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
    """MultipleUnloadRequestsOnlyFirstOneSucceeds: only READY may be asked to unload."""
    version = harness_in(state)
    with pytest.raises(
        FailedPrecondition,
        match="Servable not loaded, or unload already requested/ongoing",
    ):
        version.request_unload()
    assert version.state is state


def test_load_gives_the_loader_its_id() -> None:
    """Load: the attempt passes the id on and leaves a servable."""
    loader = FakeLoader(ID)
    version = loading(loader)
    assert load_once(version)
    assert version.servable is loader.servable
    assert version.state is S.LOADING  # READY is the manager's to declare
    version.transition(S.READY)


def test_unload_disables_and_drops_the_loader() -> None:
    """Unload: QUIESCED goes to DISABLED through UNLOADING, the loader is let go."""
    loader = FakeLoader(ID)
    version = loading(loader)
    load_once(version)
    version.transition(S.READY)
    version.request_unload()
    version.transition(S.QUIESCING)
    version.transition(S.QUIESCED)
    unload(version)
    assert version.state is S.DISABLED
    assert loader.num_unloads == 1
    with pytest.raises(Internal):
        _ = version.servable


def stuck() -> None:
    """Stands for what no unload gets past."""
    raise RuntimeError("stuck")


def test_unload_that_raises_ends_in_error() -> None:
    """A loader that cannot unload is over all the same, with its error."""
    loader = FakeLoader(ID, on_unload=stuck)
    version = loading(loader)
    load_once(version)
    for each in (S.READY, S.UNLOAD_REQUESTED, S.QUIESCING, S.QUIESCED):
        version.transition(each)
    unload(version)
    assert version.state is S.ERROR
    assert version.error is not None
    assert "stuck" in version.error.message


def test_permanent_error_fails_at_the_first_attempt() -> None:
    """LoadError, UnloadDueToNonRetriableError: what cannot pass is not retried."""
    loader = FakeLoader(ID, errors=[InvalidArgument("corrupt")])
    version = loading(loader)
    assert not load_once(version)
    assert version.state is S.ERROR
    assert version.state is S.ERROR
    assert version.error is not None
    assert version.error.code is Code.INVALID_ARGUMENT
    assert loader.num_loads == 1


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


def test_retries_end_after_their_number() -> None:
    """RetryOnLoadErrorFinallyFails: exactly 1 + max_num_retries attempts are made."""
    loader = FakeLoader(ID, errors=[Unavailable("never")] * 10)
    version = loading(loader)
    while not load_once(version) and not version.is_over:
        pass
    assert loader.num_loads == 1 + RETRIES.max_num_retries
    assert version.error == Unavailable("never") or version.error is not None


def test_cancel_between_attempts_ends_the_load_at_once() -> None:
    """A pause before a retry is over the moment the version is given up."""
    version = loading(FakeLoader(ID, errors=[Unavailable("not yet")]))
    assert not load_once(version)
    assert version.retry_at_s is not None
    assert version.cancel() is True
    assert version.state is S.ERROR
    assert version.error is not None
    assert version.error.code is Code.UNAVAILABLE


def test_cancel_during_a_failing_attempt_stops_the_retries() -> None:
    """RetryOnLoadErrorCancelledLoad: the error of the attempt is the outcome."""
    version: Version
    loader = FakeLoader(
        ID, errors=[Unavailable("not yet")] * 9, on_load=lambda: version.cancel()
    )
    version = loading(loader)
    assert not load_once(version)
    assert version.state is S.ERROR
    assert version.error is not None
    assert version.error.code is Code.UNAVAILABLE
    assert loader.num_loads == 1


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


def test_cancel_before_the_attempt_never_calls_the_loader() -> None:
    """A load cancelled in the pool's queue does not begin."""
    loader = FakeLoader(ID)
    version = loading(loader)
    assert version.cancel() is False
    assert not load_once(version)
    assert version.state is S.ERROR
    assert loader.num_loads == 0
    assert isinstance(version.error, Cancelled)


@pytest.mark.parametrize(
    "state", [s for s in S if s not in (S.LOAD_REQUESTED, S.LOAD_APPROVED, S.LOADING)]
)
def test_cancel_outside_a_load_does_nothing(state: HarnessState) -> None:
    """Only a load can be cancelled."""
    version = harness_in(state)
    assert version.cancel() is False
    assert version.state is state


def test_estimate_is_retried_with_its_own_message() -> None:
    """EstimateResources errors are retried, and say what was attempted."""
    loader = FakeLoader(ID, ram_bytes=5, estimate_errors=[Unavailable("busy")])
    version = make(loader)
    version.request_load()
    assert not estimate_once(version)
    assert version.retry_at_s is not None
    assert estimate_once(version)
    assert version.estimate is not None
    loader = FakeLoader(ID, estimate_errors=[InvalidArgument("bad archive")])
    version = make(loader)
    version.request_load()
    assert not estimate_once(version)
    assert version.state is S.ERROR
    assert version.error is not None
    assert version.error.message == (
        "Error while attempting to reserve resources to load servable "
        f"{ID}: bad archive"
    )


def test_error_signalled_from_outside_is_kept() -> None:
    """ExternallySignalledError: fail() moves to ERROR with that status."""
    version = make()
    version.fail(Unavailable("told so"))
    assert version.state is S.ERROR
    assert version.snapshot().error is not None
    with pytest.raises(Internal):
        version.fail(Unavailable("again"))
    assert "told so" in str(version.error)


def test_erroneous_data_starts_in_error() -> None:
    """A version that carries an error is over before it begins."""
    version = Version(
        ServableData(ID, None, Unavailable("no adapter")),
        retry=RETRIES,
        clock=FakeClock(),
    )
    assert version.state is S.ERROR
    assert version.holds(ServableData(ID, None, Unavailable("no adapter")))
    assert not version.holds(ServableData(ID, None, Unavailable("other")))
    assert not version.holds(ServableData(ID, FakeLoader(ID)))


def test_harness_holds_its_own_loader_only() -> None:
    """The same loader says nothing new; another one means that files changed."""
    loader = FakeLoader(ID)
    version = make(loader)
    assert version.holds(ServableData(ID, loader))
    assert not version.holds(ServableData(ID, FakeLoader(ID)))
    assert not version.holds(ServableData(ID, None, Unavailable("x")))


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
