"""tfs.server.loading: the copies of versions behind URLs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tfs.server.loading import RemoteCopies
from tfs.server.options import ServerOptions


def test_copies_of_a_killed_server_are_removed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a configured directory nobody else would ever remove them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "tfs-cache-0123"
    left.mkdir()
    (left / "lock").touch()
    os.utime(left / "lock", (0, 0))
    copies = RemoteCopies(ServerOptions(model_base_path="/m"))
    copies.remove_left()
    assert not left.exists()
    copies.close()
