"""tfs.server.admin.choices."""

from __future__ import annotations

import pytest

from tests.server.config.configs import PLATFORMS, base
from tests.server.environment import model
from tfs.core.errors import FailedPrecondition, NotFound
from tfs.proto.tfs.v1 import model_config_pb2
from tfs.server.admin.choices import (
    canary_override,
    promotion,
    rollback_target,
    with_traffic,
)
from tfs.server.config.overrides import Override
from tfs.server.config.running_config import RunningConfig, laid_over


def running(extra: str = "") -> RunningConfig:
    """Returns a config of one model."""
    return laid_over(base(model("a", "", extra)), {}, PLATFORMS)


def with_override(running: RunningConfig, override: Override) -> RunningConfig:
    """Returns the config with an override of a."""
    return laid_over(running.base, {"a": override}, PLATFORMS, "a")


CANARY = model_config_pb2.Canary(version=2, tee_fraction=0.5)
ON_TRIAL = "traffic { primary: 1 canary { version: 2 } }"


def test_a_trial_leaves_the_primary_alone() -> None:
    """The primary stays the same, whether it was named or followed by default."""
    override = canary_override(running("traffic { primary: 1 }"), "a", CANARY, 5.0, 3)
    assert (override.config.traffic.primary, override.made_by) == (1, "canary")
    override = canary_override(running(), "a", CANARY, 5.0, 3)
    assert override.config.traffic.primary == 3
    # What is on trial is no primary, and there need not be one.
    for answering in (2, None):
        override = canary_override(running(), "a", CANARY, 5.0, answering)
        assert not override.config.traffic.HasField("primary")
    assert override.config.traffic.canary == CANARY
    assert not override.config.base_path


def test_the_end_of_a_trial_in_the_base_is_an_override_too() -> None:
    """An empty traffic replaces the base's."""
    now = running("traffic { canary { version: 2 } }")
    override = canary_override(now, "a", None, 5.0)
    assert override.config.HasField("traffic")
    now = with_override(now, override)
    assert now.effective.models["a"].canary is None


def test_the_end_of_a_trial_makes_nothing_the_primary() -> None:
    """The newest would be it by default, though a guard may have rejected it."""
    now = with_override(running(), canary_override(running(), "a", CANARY, 5.0))
    for primary in (1, 3, None):
        override = canary_override(now, "a", None, 6.0, primary)
        assert override.config.traffic.primary == (primary or 0)
        assert override.config.traffic.HasField("primary") is bool(primary)
    explicit = running("traffic { primary: 3 canary { version: 4 } }")
    override = canary_override(explicit, "a", None, 6.0, 1)
    assert override.config.traffic.primary == 3


def test_there_must_be_a_trial_to_end() -> None:
    """Ending a trial is refused if the model, or its trial, does not exist."""
    with pytest.raises(FailedPrecondition, match="no canary"):
        canary_override(running(), "a", None, 5.0)
    with pytest.raises(NotFound):
        canary_override(running(), "b", CANARY, 5.0)


def test_other_fields_of_an_override_stay() -> None:
    """Somebody may have written them into the file by hand."""
    now = running()
    by_hand = with_traffic(now, "a", model_config_pb2.Traffic(primary=1), "x", 1.0)
    by_hand.config.transition = model_config_pb2.RESOURCE_PRESERVING
    now = with_override(now, by_hand)
    override = canary_override(now, "a", CANARY, 5.0)
    assert override.config.transition == model_config_pb2.RESOURCE_PRESERVING


@pytest.mark.parametrize(
    ("extra", "version", "rejected", "force", "expected"),
    [
        (ON_TRIAL, None, "", False, 2),
        (ON_TRIAL, 1, "", False, 1),
        (ON_TRIAL, None, "guard", True, 2),
        (ON_TRIAL, 1, "guard", False, 1),
        ("", 2, "", False, 2),
        (ON_TRIAL, None, "guard", False, "rejected"),
        (ON_TRIAL, 2, "guard", False, "rejected"),
        ("", 2, "guard", False, "rejected"),
        ("", 2, "guard", True, 2),
        ("", None, "", False, "no canary"),
        ("", 9, "", False, "not available"),
        ("", 9, "", True, "not available"),
    ],
)
def test_what_may_be_promoted(
    extra: str, version: int | None, rejected: str, force: bool, expected: int | str
) -> None:
    """The version on trial or the one named; available; rejected ones by force."""
    now = running(extra)
    reasons = {2: rejected} if rejected else {}
    if isinstance(expected, int):
        chosen = promotion(now, "a", version, reasons, {1, 2}, force=force)
        assert chosen == expected
        return
    with pytest.raises(FailedPrecondition, match=expected):
        promotion(now, "a", version, reasons, {1, 2}, force=force)


@pytest.mark.parametrize(
    ("version", "primary", "at_hand", "available", "known", "expected"),
    [
        (None, 3, {1, 2, 3}, {3}, {3}, 2),
        # The newest version's files are gone; it still serves from memory.
        (None, 3, {1, 2}, {3}, {3}, 2),
        # The newest version is damaged and nothing serves.
        (None, None, {1, 2, 3}, set(), {3}, 2),
        (None, None, {1, 2}, set(), {3}, 2),
        (None, 3, set(), {2, 3}, {2, 3}, 2),
        (1, 3, {1, 2, 3}, {3}, {3}, 1),
        (4, 3, {3, 4}, {3}, {3}, 4),
        (None, 1, {1, 2}, {1}, {1}, None),
        (None, None, set(), set(), set(), None),
        (7, 3, {1, 2, 3}, {3}, {3}, None),
    ],
)
def test_where_a_rollback_goes(
    version: int | None,
    primary: int | None,
    at_hand: set[int],
    available: set[int],
    known: set[int],
    expected: int | None,
) -> None:
    """A rollback goes to the named version, or to the one before what answers."""
    if expected is None:
        with pytest.raises(FailedPrecondition):
            rollback_target("a", version, primary, at_hand, available, known)
        return
    target = rollback_target("a", version, primary, at_hand, available, known)
    assert target == expected


def test_a_rollback_passes_over_what_was_rejected() -> None:
    """Only who names a rejected version gets it back."""
    at_hand = {1, 2, 3}
    assert rollback_target("a", None, 3, at_hand, {3}, {3}, {2}) == 1
    assert rollback_target("a", 2, 3, at_hand, {3}, {3}, {2}) == 2
    with pytest.raises(FailedPrecondition, match="before 3 that was not rejected"):
        rollback_target("a", None, 3, at_hand, {3}, {3}, {1, 2})


def test_a_rollback_of_what_never_had_a_version_says_so() -> None:
    """There is no version to be before."""
    with pytest.raises(FailedPrecondition, match="a has no version at all"):
        rollback_target("a", None, None, (), (), ())


def test_a_refused_rollback_lists_the_newest_versions_only() -> None:
    """A base path may hold thousands; a message is for people."""
    with pytest.raises(FailedPrecondition, match=r"990 older ones, 991, .*, 1000$"):
        rollback_target("a", 5000, 1000, range(1, 1001), (), ())
