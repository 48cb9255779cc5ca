"""tfs.server.config.overrides: what they say, and the file that keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.config.configs import config_of, override
from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.server.config.overrides import (
    OverridesFile,
    changed_fields,
    overridden,
    overrides_text,
    read_overrides,
)
from tfs.server.config.server_config import Message, config_text

BASE = (
    'traffic { primary: 1 canary { version: 2 } } version_labels { key: "x" value: 1 }'
)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (
            "traffic { primary: 3 }",
            'traffic { primary: 3 } version_labels { key: "x" value: 1 }',
        ),
        ("traffic { }", 'traffic { } version_labels { key: "x" value: 1 }'),
        (
            'version_labels { key: "y" value: 2 }',
            'traffic { primary: 1 canary { version: 2 } } version_labels { key: "y" value: 2 }',
        ),
        ("transition: RESOURCE_PRESERVING", f"{BASE} transition: RESOURCE_PRESERVING"),
    ],
)
def test_a_set_field_replaces_the_bases_whole(extra: str, expected: str) -> None:
    """Nothing of the base's field is left, and nothing of its other fields is lost."""
    base = config_of("a", BASE)
    laid = overridden(base, override("a", extra).config)
    assert laid == config_of("a", expected)
    assert base == config_of("a", BASE)


def test_the_fields_that_differ_are_named() -> None:
    """Top-level fields, in the order of the message."""
    old = config_of("a", "traffic { primary: 1 }")
    new = config_of("a", "transition: RESOURCE_PRESERVING", "/other")
    assert changed_fields(old, new) == ("base_path", "traffic", "transition")
    assert changed_fields(old, old) == ()


def test_the_file_reads_back_equal() -> None:
    """Fields, maker and time survive; the text is a ModelServerConfig."""
    kept = {
        "a": override("a", "traffic { primary: 1 }"),
        "b": override("b", "traffic {}"),
    }
    text = overrides_text(kept)
    assert read_overrides(text, "test") == kept
    assert read_overrides(overrides_text({}), "test") == {}


@pytest.mark.parametrize(
    "text",
    [
        "model_config_list { config {",
        "\x00\x01",
        config_text(Message()) + "custom_model_config {}",
        "model_config_list { config { base_path: '/m' } }",
        "model_config_list { config { name: 'a' } config { name: 'a' } }",
    ],
)
def test_damage_is_told(text: str) -> None:
    """Half of the overrides would be worse than none."""
    with pytest.raises(InvalidArgument):
        read_overrides(text, "overrides.pbtxt")


def test_damaged_comments_cost_only_themselves() -> None:
    """Who made it is nice to know; what it says matters."""
    text = overrides_text({"a": override("a", "traffic { primary: 1 }")})
    text = text.replace('"made_by": "rollback"', '"made_by"')
    (read,) = read_overrides(text, "test").values()
    assert (read.made_by, read.since_s) == ("", 0.0)
    assert read.config.traffic.primary == 1


def test_nothing_kept_reads_as_nothing(tmp_path: Path) -> None:
    """The first start has no file; without a directory there is never one."""
    assert OverridesFile(str(tmp_path / "new")).read() == {}
    memory = OverridesFile("")
    memory.write({"a": override("a", "traffic {}")})
    assert (memory.path, memory.read()) == ("", {})


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Across restarts; the directory is made, nothing else is left in it."""
    kept = {"a": override("a", "traffic { primary: 1 }")}
    state_dir = tmp_path / "new" / "state"
    OverridesFile(str(state_dir)).write(kept)
    assert OverridesFile(str(state_dir)).read() == kept
    assert [path.name for path in state_dir.iterdir()] == ["overrides.pbtxt"]


def test_a_damaged_file_stays_until_it_is_replaced(tmp_path: Path) -> None:
    """Every start says so again; the first new override moves it aside."""
    path = tmp_path / "overrides.pbtxt"
    path.write_text("damaged {")
    for _ in range(2):
        file = OverridesFile(str(tmp_path))
        assert file.read() == {}
        assert str(path) in file.problem
    file.write({})
    assert file.problem == ""
    assert (tmp_path / "overrides.pbtxt.unreadable").read_text() == "damaged {"
    assert OverridesFile(str(tmp_path)).read() == {}


def test_whether_a_directory_can_be_written_is_told_as_it_is_now(
    tmp_path: Path,
) -> None:
    """A disk that fills up shows after the first attempt, one that is mended too."""
    state = tmp_path / "state"
    file = OverridesFile(str(state))
    file.read()
    state.rmdir()
    state.write_text("a file")
    with pytest.raises(FailedPrecondition):
        file.write({})
    assert file.obstacle == f"nothing can be kept in {state}: File exists"
    state.unlink()
    file.write({})
    assert file.obstacle == ""


def test_overrides_that_cannot_be_reached_are_not_taken_for_none(
    tmp_path: Path,
) -> None:
    """A start without the rollback that there may be says so."""
    state = tmp_path / "state"
    state.symlink_to(state)
    file = OverridesFile(str(state))
    assert file.read() == {}
    assert "none is in force: Failed to read" in file.problem
