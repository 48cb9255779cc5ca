"""tfs.server.config.running_config."""

from __future__ import annotations

import pytest

from tests.server.config.configs import PLATFORMS, base, override
from tests.server.environment import model
from tfs.core.errors import FailedPrecondition, InvalidArgument, NotFound
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.config.overrides import Override
from tfs.server.config.running_config import (
    Base,
    Origin,
    RunningConfig,
    changes,
    laid_over,
)
from tfs.server.config.server_config import check_change

PIN = override("a", "traffic { primary: 1 }")


def running(*models: str) -> RunningConfig:
    """Returns what a server runs with an override of a."""
    return laid_over(base(*models), {"a": PIN}, PLATFORMS)


def with_base(now: RunningConfig, new: Base) -> RunningConfig:
    """Returns what runs after a new base."""
    return laid_over(new, now.overrides, PLATFORMS)


def with_override(
    now: RunningConfig, name: str, override: Override | None
) -> RunningConfig:
    """Returns what runs after an override is made, or dropped."""
    overrides = {k: v for k, v in now.overrides.items() if k != name}
    if override is not None:
        overrides[name] = override
    return laid_over(now.base, overrides, PLATFORMS, name)


def primaries(what: RunningConfig) -> dict[str, int | None]:
    """Returns the explicit primary of each model."""
    return {name: each.primary for name, each in what.effective.models.items()}


def test_an_override_survives_every_new_base() -> None:
    """The base is what somebody gave; what runs is more than that."""
    now = running(model("a"))
    assert primaries(now) == {"a": 1}
    now = with_base(now, base(model("a", "", "transition: RESOURCE_PRESERVING")))
    assert primaries(now) == {"a": 1}
    assert now.effective.models["a"].keeps_resources


def test_without_an_override_in_force_the_base_is_what_runs() -> None:
    """The same objects: a second set of them held everybody up at each collection."""
    plain = laid_over(base(model("a"), model("b")), {}, PLATFORMS)
    assert plain.effective is plain.base.config
    first, second = plain.effective.models.values()
    assert first.policy is second.policy
    assert first.runtime is second.runtime
    gone = override("gone", "traffic { primary: 1 }")
    idle = with_override(plain, "gone", gone)
    assert idle.effective is idle.base.config
    assert primaries(with_override(idle, "a", PIN)) == {"a": 1, "b": None}
    assert primaries(idle) == {"a": None, "b": None}


def test_an_override_holds_until_it_is_dropped() -> None:
    """A base that says the same, or another thing later, changes nothing about it."""
    now = with_base(running(model("a")), base(model("a", "", "traffic { primary: 1 }")))
    assert now.overrides == {"a": PIN}
    now = with_base(now, base(model("a", "", "traffic { primary: 2 }")))
    assert primaries(now) == {"a": 1}
    other = override("a", "traffic { primary: 2 }")
    assert with_override(now, "a", other).overrides == {"a": other}
    assert with_override(now, "a", None).overrides == {}


def test_an_override_that_does_not_fit_is_set_aside() -> None:
    """The others are served; it says why, and how to be rid of it."""
    wrong = override("a", "traffic { primary: -1 }")
    other = override("b", "traffic { primary: 2 }")
    now = laid_over(base(model("a")), {"a": wrong, "b": other}, PLATFORMS)
    assert primaries(now) == {"a": None}
    assert "traffic.primary must be >= 0" in now.why_inactive["a"]
    assert "tfs config reset a" in now.why_inactive["a"]
    assert set(now.overrides) == {"a", "b"}
    now = with_base(now, base(model("a"), model("b")))
    assert primaries(now) == {"a": None, "b": 2}
    assert primaries(with_override(now, "a", PIN))["a"] == 1
    hostile = override("a", "model_type: TENSORFLOW")
    now = with_override(now, "a", hostile)
    now = with_base(now, base(model("a", "", 'model_platform: "tensorflow"')))
    assert not now.active


def test_an_invalid_override_is_refused() -> None:
    """An override that does not hold changes nothing."""
    with pytest.raises(InvalidArgument):
        with_override(
            running(model("a")), "a", override("a", "traffic { primary: -1 }")
        )


def test_a_platform_never_changes() -> None:
    """A model's platform stays what it was, whoever asks for another."""
    now = running(model("a"))
    other = base(model("a", "", 'model_platform: "hashmap"'))
    with pytest.raises(FailedPrecondition, match="change a model's platform"):
        check_change(now.effective, with_base(now, other).effective)


def test_changes_are_told_by_model() -> None:
    """Added, changed with its fields, unchanged, removed."""
    old = laid_over(base(model("a"), model("b"), model("c")), {}, PLATFORMS)
    new = with_base(old, base(model("b"), model("c", "/other"), model("d")))
    assert [
        (each.model, each.change, tuple(each.changed_fields))
        for each in changes(old, new)
    ] == [
        ("a", pb.ModelOutcome.REMOVED, ()),
        ("b", pb.ModelOutcome.UNCHANGED, ()),
        ("c", pb.ModelOutcome.CHANGED, ("base_path",)),
        ("d", pb.ModelOutcome.ADDED, ()),
    ]


def test_a_model_that_is_asked_for_must_be_there() -> None:
    """An operator's typo is named."""
    now = running(model("a"))
    assert now.model("a").name == "a"
    with pytest.raises(NotFound, match="typo"):
        now.model("typo")
    with pytest.raises(InvalidArgument):
        now.model("")


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
