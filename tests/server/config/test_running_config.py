"""tfs.server.config.running_config."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.server.config.configs import PLATFORMS, base, override
from tests.server.environment import model
from tfs.core.errors import FailedPrecondition, InvalidArgument, NotFound
from tfs.server.config.running_config import (
    Change,
    Origin,
    RunningConfig,
    changes,
    first_running,
    require_model,
    with_base,
    with_override,
)

PIN = override("a", "traffic { primary: 1 }")


def running(*models: str) -> RunningConfig:
    """Returns what a server runs with an override of a."""
    return first_running(base(*models), {"a": PIN}, PLATFORMS)


def primaries(what: RunningConfig) -> dict[str, int | None]:
    """Returns the explicit primary of each model."""
    return {name: each.primary for name, each in what.effective.models.items()}


def test_an_override_survives_every_new_base() -> None:
    """The base is what somebody gave; what runs is more than that."""
    now = running(model("a"))
    assert primaries(now) == {"a": 1}
    now = with_base(
        now, base(model("a", "", "transition: RESOURCE_PRESERVING")), PLATFORMS
    )
    assert primaries(now) == {"a": 1}
    assert now.effective.models["a"].keeps_resources


def test_without_an_override_in_force_the_base_is_what_runs() -> None:
    """The same objects: a second set of them held everybody up at each collection."""
    plain = first_running(base(model("a"), model("b")), {}, PLATFORMS)
    assert plain.effective is plain.base.config
    first, second = plain.effective.models.values()
    assert first.policy is second.policy
    assert first.runtime is second.runtime
    gone = override("gone", "traffic { primary: 1 }")
    idle = with_override(plain, "gone", gone, PLATFORMS)
    assert idle.effective is idle.base.config
    assert primaries(with_override(idle, "a", PIN, PLATFORMS)) == {"a": 1, "b": None}
    assert primaries(idle) == {"a": None, "b": None}


def test_an_override_waits_for_its_model_to_come_back() -> None:
    """Gone, inactive and kept; back, in force."""
    now = with_base(running(model("a")), base(model("b")), PLATFORMS)
    assert now.active == frozenset()
    assert set(now.why_inactive) == {"a"}
    now = with_base(now, base(model("a")), PLATFORMS)
    assert primaries(now) == {"a": 1}


def test_an_override_the_base_agrees_with_is_dropped() -> None:
    """The file has taken it over."""
    now = with_base(
        running(model("a")), base(model("a", "", "traffic { primary: 1 }")), PLATFORMS
    )
    assert now.overrides == {}
    assert primaries(now) == {"a": 1}


def test_an_override_stays_over_a_base_that_ends_with_the_server() -> None:
    """Loading what config show printed must not lose a rollback with the next edit."""
    same = base(model("a", "", "traffic { primary: 1 }"), origin=Origin.APPLY_CONFIG)
    now = with_base(running(model("a")), same, PLATFORMS)
    assert now.overrides == {"a": PIN}
    assert primaries(now) == {"a": 1}
    edited = with_base(now, base(model("a"), model("b")), PLATFORMS)
    assert edited.overrides == {"a": PIN}
    assert primaries(edited) == {"a": 1, "b": None}
    other = override("a", "traffic { primary: 2 }")
    assert with_override(now, "a", other, PLATFORMS).overrides == {"a": other}
    assert with_override(now, "a", None, PLATFORMS).overrides == {}
    caught_up = base(model("a", "", "traffic { primary: 1 }"))
    assert with_base(now, caught_up, PLATFORMS).overrides == {}


def test_a_base_that_an_override_makes_invalid_is_refused() -> None:
    """The message says which override, and how to be rid of it."""
    clash = override("a", "traffic { canary { version: 2 } }")
    now = first_running(base(model("a")), {"a": clash}, PLATFORMS)
    hostile = override("a", "model_type: TENSORFLOW")
    now = with_override(now, "a", hostile, PLATFORMS)
    with pytest.raises(InvalidArgument, match="tfs config reset a"):
        with_base(now, base(model("a", "", 'model_platform: "tensorflow"')), PLATFORMS)


def test_a_server_starts_without_an_override_that_is_invalid() -> None:
    """It is set aside, says why, and stands in nobody's way."""
    wrong = override("a", "traffic { primary: -1 }")
    other = override("b", "traffic { primary: 2 }")
    now = first_running(base(model("a")), {"a": wrong, "b": other}, PLATFORMS)
    assert primaries(now) == {"a": None}
    assert "traffic.primary must be >= 0" in now.why_inactive["a"]
    assert set(now.overrides) == {"a", "b"}
    now = with_base(now, base(model("a"), model("b")), PLATFORMS)
    assert primaries(now) == {"a": None, "b": 2}
    now = with_override(now, "a", PIN, PLATFORMS)
    assert primaries(now)["a"] == 1


def test_a_repository_is_served_without_an_override_that_does_not_fit() -> None:
    """Nobody gave the base, so nobody would hear of the refusal: the others are served."""
    wrong = override("a", "traffic { primary: -1 }")
    now = first_running(base(), {"a": wrong}, PLATFORMS)
    found = base(model("a"), model("b"))
    with pytest.raises(InvalidArgument, match="tfs config reset a"):
        with_base(now, found, PLATFORMS)
    found = replace(found, origin=Origin.MODEL_REPOSITORY)
    now = with_base(now, found, PLATFORMS)
    assert primaries(now) == {"a": None, "b": None}
    assert "traffic.primary must be >= 0" in now.why_inactive["a"]


def test_an_invalid_override_is_refused() -> None:
    """An override that does not hold changes nothing."""
    with pytest.raises(InvalidArgument):
        with_override(
            running(model("a")),
            "a",
            override("a", "traffic { primary: -1 }"),
            PLATFORMS,
        )


def test_dropping_an_override_brings_the_base_back() -> None:
    """Without its override a model is as if there had never been one."""
    now = with_override(running(model("a")), "a", None, PLATFORMS)
    assert (primaries(now), now.overrides) == ({"a": None}, {})


def test_a_platform_never_changes() -> None:
    """Neither a base nor an override can change a model's platform."""
    with pytest.raises(FailedPrecondition, match="change a model's platform"):
        with_base(
            running(model("a")),
            base(model("a", "", 'model_platform: "hashmap"')),
            PLATFORMS,
        )
    with pytest.raises(FailedPrecondition, match="change a model's platform"):
        with_override(
            running(model("a")),
            "a",
            override("a", 'model_platform: "hashmap"'),
            PLATFORMS,
        )


def test_changes_are_told_by_model() -> None:
    """Added, changed with its fields, unchanged, removed."""
    old = first_running(base(model("a"), model("b"), model("c")), {}, PLATFORMS)
    new = with_base(old, base(model("b"), model("c", "/other"), model("d")), PLATFORMS)
    assert [(each.name, each.change, each.fields) for each in changes(old, new)] == [
        ("a", Change.REMOVED, ()),
        ("b", Change.UNCHANGED, ()),
        ("c", Change.CHANGED, ("base_path",)),
        ("d", Change.ADDED, ()),
    ]


def test_a_model_that_is_asked_for_must_be_there() -> None:
    """An operator's typo is named."""
    now = running(model("a"))
    assert require_model(now, "a").name == "a"
    with pytest.raises(NotFound, match="typo"):
        require_model(now, "typo")
    with pytest.raises(InvalidArgument):
        require_model(now, "")
    with pytest.raises(FailedPrecondition):
        require_model(None, "a")


@pytest.mark.parametrize(
    ("origin", "survives"),
    [
        (Origin.COMMAND_LINE, True),
        (Origin.CONFIG_FILE, True),
        (Origin.MODEL_REPOSITORY, True),
        (Origin.RELOAD_REQUEST, False),
        (Origin.APPLY_CONFIG, False),
    ],
)
def test_only_what_the_server_reads_at_its_start_survives(
    origin: Origin, survives: bool
) -> None:
    """Replies tell operators whether a change outlives a restart."""
    assert origin.survives_restart is survives
