"""A control group whose processes the kernel ends together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfs.server.system.group_kills import kills_whole_group


@pytest.mark.parametrize(
    ("text", "kills"), [("1\n", True), ("0\n", False), ("", False)]
)
def test_a_group_that_dies_as_a_whole_is_noticed(
    tmp_path: Path, text: str, kills: bool
) -> None:
    """Kubernetes sets memory.oom.group for containers unless told otherwise."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/pod/container\n")
    folder = tmp_path / "groups" / "pod" / "container"
    folder.mkdir(parents=True)
    if text:
        (folder / "memory.oom.group").write_text(text)
    found = kills_whole_group(tmp_path / "proc", tmp_path / "groups")
    assert found is kills
