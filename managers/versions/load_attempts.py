"""What calls a version's loader: estimates, attempts to load, and the unload.

A failed attempt does not keep its thread until the next one. The version says *when* to
try again, and its manager comes back then. So a broken model occupies no load thread,
and giving it up takes effect at once. (TensorFlow Serving's harness sleeps on the load
thread, up to a minute at a time.)

These functions block as the loader does, and are called by whoever owns the version's next
step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from managers.versions.harness_state import HarnessState
from managers.versions.version import Version, is_transient
from tfs.core.errors import (
    BY_CODE,
    Internal,
    ServingError,
    forget_frames,
    serving_error,
)
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation

log = logging.getLogger(__name__)


def estimate_once(version: Version) -> bool:
    """Asks the loader what the version takes; returns whether it answered.

    Otherwise ``retry_at_s`` is set, or the version is in ERROR.
    """

    def ask(loader: Loader[object]) -> None:
        version.estimate = _estimate(loader)

    what = (
        f"Error while attempting to reserve resources to load servable {version.id}: "
    )
    if not _attempt(version, ask, what):
        return False
    version.num_failures = 0
    return True


def estimate_ahead(version: Version) -> None:
    """Asks the loader what the version takes before a load is requested, in NEW.

    A permanent fault is kept in ``flaw``. Any other failure is ignored, because the load
    will ask again.
    """
    loader = version.loader
    if loader is None or version.state is not HarnessState.NEW:
        return
    try:
        version.estimate = _estimate(loader)
    except (Exception, SystemExit) as error:
        log.info(
            "event=estimate_failed servable=%s error=%s", version.id.slashed, error
        )
        found = serving_error(error, f"cannot load {version.id.slashed}")
        if not is_transient(found):
            forget_frames(found)
            version.flaw = found


def estimate_again(version: Version) -> ResourceAllocation:
    """Returns what the loaded version takes; the first estimate if that is unknown.

    Once loaded, a version may take less than was estimated (its transient peak is
    over), or more (as measured).
    """
    before = version.estimate or ResourceAllocation()
    if version.loader is None:
        return before
    try:
        version.estimate = _estimate(version.loader)
    except Exception:
        log.exception("event=estimate_failed servable=%s", version.id.slashed)
        return before
    return version.estimate


def load_once(version: Version) -> bool:
    """Runs one attempt to load, from LOADING; returns whether the servable is loaded.

    Then the version is still in LOADING; the manager publishes it and moves to READY.
    Otherwise ``retry_at_s`` is set, or the version is in ERROR with nothing loaded. A
    load that succeeded although it was cancelled has been unloaded again, and ends in
    ERROR with CANCELLED.
    """
    with version.lock:
        if version.is_cancelled:
            version.fail_locked(version.cancelled_error())
            return False
    begun_s = version.clock.now()
    if not _attempt(version, lambda loader: loader.load(version.id), ""):
        return False
    version.load_s = version.clock.now() - begun_s
    with version.lock:
        if not version.is_cancelled:
            version.is_loaded = True
            return True
    abandon_load(version, version.cancelled_error())
    return False


def abandon_load(version: Version, error: ServingError) -> None:
    """Undoes a load that was DONE but cannot be used; ends in ERROR."""
    assert version.loader is not None
    try:
        version.loader.unload()
    except (Exception, SystemExit):
        log.exception("event=unload_failed servable=%s", version.id.slashed)
    version.fail(error)


def unload(version: Version) -> None:
    """QUIESCED to UNLOADING to DISABLED, or ERROR if the loader raises.

    The loader is dropped here, on the unloading thread.
    """
    version.transition(HarnessState.UNLOADING)
    loader, version.loader = version.loader, None
    try:
        if loader is not None:
            loader.unload()
    except (Exception, SystemExit) as error:
        log.exception("event=unload_failed servable=%s", version.id.slashed)
        version.fail(serving_error(error, f"unloading {version.id.slashed} failed"))
        return
    version.transition(HarnessState.DISABLED)


def _attempt(
    version: Version, attempt: Callable[[Loader[object]], None], prefix: str
) -> bool:
    with version.lock:
        version.retry_at_s = None
        loader = version.loader
    assert loader is not None
    try:
        attempt(loader)
    except (Exception, SystemExit) as error:
        # A model that calls sys.exit() while it is imported is a broken model.
        failure = serving_error(error, f"cannot load {version.id.slashed}")
        _note_failure(version, failure, prefix)
        return False
    return True


def _note_failure(version: Version, error: ServingError, prefix: str) -> None:
    is_retry, is_unexpected = version.num_failures > 0, isinstance(error, Internal)
    version.num_failures += 1
    pause_s = version.retry.pause_s(version.num_failures, error)
    log.warning(
        "event=load_attempt_failed servable=%s attempt=%d retry_in_s=%s error=%s",
        version.id.slashed,
        version.num_failures,
        pause_s,
        error,
        # The message of any other error says enough. A retry usually fails in the
        # same way, so one traceback is enough.
        exc_info=error.__cause__ if is_unexpected and not is_retry else None,
    )
    # The error is kept with the state, but what the attempt had loaded must not be.
    forget_frames(error)
    if prefix:
        error = BY_CODE[error.code](prefix + error.message)
    with version.lock:
        if version.state not in (HarnessState.LOAD_REQUESTED, HarnessState.LOADING):
            return  # it was cancelled during the estimate
        if pause_s is None or version.is_cancelled:
            version.fail_locked(error)
            return
        version.error = error  # a cancellation during the pause reports it
        version.retry_at_s = version.clock.now() + pause_s


def _estimate(loader: Loader[object]) -> ResourceAllocation:
    """Asks a loader what its version takes; None counts as nothing.

    Raises:
        TypeError: The answer is no allocation. Adding it up would make other loads fail
            too.
        Exception: What the loader raises.

    """
    estimate: object = loader.estimate_resources() or ResourceAllocation()
    if not isinstance(estimate, ResourceAllocation):
        raise TypeError(
            f"{type(loader).__name__}.estimate_resources returned "
            f"{type(estimate).__name__}, not a ResourceAllocation"
        )
    return estimate
