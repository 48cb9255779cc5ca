"""What operators' commands choose, and the overrides that they make: pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tfs.core.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
)
from tfs.core.servable_state import ManagerState, ServableState
from tfs.proto.tfs.v1 import model_config_pb2
from tfs.server.config.overrides import ModelConfig, Override
from tfs.server.config.running_config import RunningConfig

CANARY = "canary"
PROMOTE = "promote"
ROLLBACK = "rollback"

_MAX_LISTED: Final = 10


def with_traffic(
    running: RunningConfig,
    name: str,
    traffic: model_config_pb2.Traffic,
    made_by: str,
    now_s: float,
) -> Override:
    """Returns the model's override with its traffic replaced, and all else as it is."""
    config = ModelConfig(name=name)
    before = running.overrides.get(name)
    if before is not None:
        config.CopyFrom(before.config)
    config.ClearField("traffic")
    config.traffic.CopyFrom(traffic)
    config.traffic.SetInParent()
    return Override(config=config, made_by=made_by, since_s=now_s)


def canary_override(
    running: RunningConfig,
    name: str,
    canary: model_config_pb2.Canary | None,
    now_s: float,
    primary: int | None = None,
) -> Override:
    """Returns the override that starts, changes or, with None, ends a trial.

    It names the primary: the one that the config names, or the version that answers
    now. So neither the trial nor its end makes another version the primary.

    Args:
        running: The config.
        name: The model.
        canary: The trial; None ends it.
        now_s: Seconds since the epoch.
        primary: The version that answers now; None if none does.

    Raises:
        NotFound: The model is not configured.
        FailedPrecondition: There is no trial to end.

    """
    settings = running.model(name)
    traffic = model_config_pb2.Traffic()
    if canary is None and settings.canary is None:
        raise FailedPrecondition(f"{name} has no canary whose trial could end")
    if canary is not None:
        traffic.canary.CopyFrom(canary)
    if settings.primary is not None:
        traffic.primary = settings.primary
    elif primary is not None and (canary is None or primary != canary.version):
        traffic.primary = primary
    return with_traffic(running, name, traffic, CANARY, now_s)


def promotion(
    running: RunningConfig,
    name: str,
    version: int | None,
    rejected: Mapping[int, str],
    available: Collection[int],
    *,
    force: bool,
) -> int:
    """Returns the version to promote.

    Args:
        running: The config.
        name: The model.
        version: The version that was asked for; None is the one on trial.
        rejected: Why versions were rejected, by version.
        available: Versions that can be requested.
        force: Whether a rejected version may be promoted.

    Raises:
        NotFound: The model is not configured.
        FailedPrecondition: No version is on trial, or it was rejected or cannot answer.

    """
    canary, wanted = running.model(name).canary, version
    if wanted is None and canary is not None:
        wanted = canary.version
    if wanted is None:
        raise FailedPrecondition(
            f"{name} has no canary to promote; say which version is to be the primary"
        )
    if wanted in rejected and not force:
        raise FailedPrecondition(
            f"version {wanted} of {name} was rejected ({rejected[wanted]}); --force "
            "promotes it all the same"
        )
    if wanted not in available:
        raise FailedPrecondition(
            f"version {wanted} of {name} is not available, so it cannot be the "
            f"primary; available: {_listed(available)}; tfs rollback {name} {wanted} "
            "loads a version first"
        )
    return wanted


def rollback_target(
    name: str,
    version: int | None,
    primary: int | None,
    at_hand: Collection[int],
    available: Collection[int],
    known: Collection[int],
    rejected: Collection[int] = (),
) -> int:
    """Returns the version to return to.

    Args:
        name: The model.
        version: The version that was asked for; None is the one before the present
            primary.
        primary: The version that answers now; None if none does.
        at_hand: Versions whose files are there.
        available: Versions that can be requested.
        known: Versions that the server has tried, including those that failed.
        rejected: Versions that a guard rejected: only if ``version`` is one.

    Raises:
        FailedPrecondition: There is no such version, and so nothing to return to.

    """
    candidates = set(at_hand) | set(available)
    if version is not None:
        if version < 0:
            raise InvalidArgument(f"no such version: {version}")
        if version not in candidates:
            raise FailedPrecondition(
                f"version {version} of {name} is neither loaded nor on disk; there are: "
                f"{_listed(candidates)}"
            )
        return version
    # If no version answers, the newest known one counts as the one to go back from.
    present = primary if primary is not None else max({*known, *at_hand}, default=None)
    older = [
        each
        for each in candidates - set(rejected)
        if present is not None and each < present
    ]
    if not candidates:
        raise FailedPrecondition(f"{name} has no version at all")
    if not older:
        raise FailedPrecondition(
            f"{name} has no version before {present} that was not rejected; there are: "
            f"{_listed(candidates)}"
            if rejected
            else f"{name} has no version before {present}; there are: "
            f"{_listed(candidates)}"
        )
    return max(older)


def note_on_rollback(
    name: str, primary: int | None, states: Sequence[ServableState]
) -> str:
    """Returns a note on a rollback that named no version; "" if there is none.

    If the newest version failed to load, the one before it answers already. A user who
    wants to leave the newest then goes back one version further than intended.

    Args:
        name: The model.
        primary: The version that answered before; None if none did.
        states: States of all its versions at that time.

    """
    failed = [
        state.id.version
        for state in states
        if state.manager_state is ManagerState.END
        and state.error is not None
        and primary is not None
        and state.id.version > primary
    ]
    if not failed:
        return ""
    return (
        f"version {max(failed)} had failed, and version {primary} answered in its place; "
        f"tfs rollback {name} {primary} stays with that one"
    )


def _listed(versions: Collection[int]) -> str:
    """Returns the newest versions for a message: a directory may hold thousands."""
    newest = sorted(versions)[-_MAX_LISTED:]
    more = len(versions) - len(newest)
    older = f"{more} older ones, " if more else ""
    return older + ", ".join(map(str, newest)) if newest else "none"


def versions_to_retry(
    name: str,
    wanted: int | None,
    failed: Collection[int],
    states: Sequence[ServableState],
    problem: str,
) -> list[int]:
    """Returns which versions of a model to try again, lowest first.

    Args:
        name: The model.
        wanted: The only version to try; None for all versions that failed.
        failed: Versions that have failed and can be tried again.
        states: States of all its versions.
        problem: What is wrong with its base path, "" if nothing.

    Raises:
        FailedPrecondition: No version has failed, or not the wanted one; says what
        state it is in.

        NotFound: Nothing is known of the wanted version.

    """
    if wanted is None:
        if not failed:
            told = f": {problem}" if problem else ""
            raise FailedPrecondition(
                f"no version of {name} that is asked for has failed{told}"
            )
        return sorted(failed)
    if wanted in failed:
        return [wanted]
    state = next((each for each in states if each.id.version == wanted), None)
    if state is None:
        raise NotFound(
            f"version {wanted} of {name} is not known: "
            + (problem or "see its base path and model_version_policy")
        )
    if state.manager_state is ManagerState.END:
        raise FailedPrecondition(
            f"version {wanted} of {name} has ended and is not asked for: see "
            "model_version_policy"
        )
    raise FailedPrecondition(
        f"version {wanted} of {name} has not failed: it is {state.manager_state.name}"
    )


def problem_of_retried(
    versions: Sequence[int], states: Sequence[ServableState]
) -> ServingError | None:
    """Returns the error of the first version that does not answer; None if all do."""
    by_number = {state.id.version: state for state in states}
    for version in versions:
        state = by_number.get(version)
        if state is None:
            return Unavailable(f"version {version} is not asked for any more")
        if state.error is not None:
            return state.error
        if state.manager_state is not ManagerState.AVAILABLE:
            return Unavailable(f"version {version} is {state.manager_state.name}")
    return None
