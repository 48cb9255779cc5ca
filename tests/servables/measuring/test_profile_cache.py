from __future__ import annotations

from pathlib import Path

import pytest

from tfs.core.model_profile import ModelProfile
from tfs.servables.measuring.profile_cache import ProfileCache

PROFILE = ModelProfile(code_digest="abc", load_s=0.25)


def test_profile_is_remembered_in_memory() -> None:
    """Without a state directory the cache lasts as long as the server."""
    cache = ProfileCache()
    assert cache.get("abc") is None
    cache.put(PROFILE)
    assert cache.get("abc") is PROFILE


def test_profile_survives_a_restart_in_the_state_directory(tmp_path: Path) -> None:
    """What was measured once is known to the next server on this host."""
    ProfileCache(str(tmp_path)).put(PROFILE)
    assert ProfileCache(str(tmp_path)).get("abc") == PROFILE
    assert [p.name for p in (tmp_path / "profiles").iterdir()] == ["abc.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"signatures": 3}', "{}"])
def test_damaged_file_counts_as_absent(tmp_path: Path, text: str) -> None:
    """A profile can be measured again; a load must not fail for it."""
    ProfileCache(str(tmp_path)).put(PROFILE)
    (tmp_path / "profiles" / "abc.json").write_text(text)
    assert ProfileCache(str(tmp_path)).get("abc") is None


def test_state_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """A full or read-only disk costs the memory of a restart, nothing else."""
    (tmp_path / "profiles").write_text("a file where the folder should be")
    cache = ProfileCache(str(tmp_path))
    cache.put(PROFILE)
    assert cache.get("abc") is PROFILE


def test_profile_without_digest_is_refused() -> None:
    """Nobody could ever find it again."""
    with pytest.raises(ValueError, match="code digest"):
        ProfileCache().put(ModelProfile())
