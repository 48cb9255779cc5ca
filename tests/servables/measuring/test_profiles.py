"""tfs.servables.measuring.profiler."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.threads import run_together
from tfs.core.version.model_profile import ModelProfile
from tfs.servables.measuring.profiler import Profiles

PROFILE = ModelProfile(code_digest="abc", load_s=0.25)


def test_profile_is_remembered_in_memory() -> None:
    """Without a state directory profiles last as long as the server."""
    profiles = Profiles()
    assert profiles.get("abc") is None
    profiles.put(PROFILE)
    assert profiles.get("abc") is PROFILE


def test_profile_survives_a_restart_in_the_state_directory(tmp_path: Path) -> None:
    """What was measured once is known to the next server on this host."""
    Profiles(str(tmp_path)).put(PROFILE)
    assert Profiles(str(tmp_path)).get("abc") == PROFILE
    assert [p.name for p in (tmp_path / "profiles").iterdir()] == ["abc.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"signatures": 3}', "{}"])
def test_damaged_file_counts_as_absent(tmp_path: Path, text: str) -> None:
    """A profile can be measured again; a load must not fail for it."""
    Profiles(str(tmp_path)).put(PROFILE)
    (tmp_path / "profiles" / "abc.json").write_text(text)
    assert Profiles(str(tmp_path)).get("abc") is None


def test_state_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """A full or read-only disk costs the memory of a restart, nothing else."""
    (tmp_path / "profiles").write_text("a file where the folder should be")
    profiles = Profiles(str(tmp_path))
    profiles.put(PROFILE)
    assert profiles.get("abc") is PROFILE


def test_profile_without_digest_is_refused() -> None:
    """Nobody could ever find it again."""
    with pytest.raises(ValueError, match="code digest"):
        Profiles().put(ModelProfile())


def test_what_a_busy_host_measured_lasts_as_long_as_the_server(tmp_path: Path) -> None:
    """It is good enough for the next versions, and the next server measures anew."""
    profiles = Profiles(str(tmp_path))
    profiles.put(PROFILE, is_quiet=False)
    assert profiles.get("abc") is PROFILE
    assert Profiles(str(tmp_path)).get("abc") is None


def test_one_version_of_each_code_has_its_turn_and_no_more_than_a_few() -> None:
    """However many threads load versions, the first two of each code come alone."""
    profiles = Profiles(num_turns=2)
    lock = threading.Lock()
    running: list[str] = []
    begun: list[str] = []
    most: list[int] = []

    def load(code: str) -> None:
        with profiles.turn(code) as known:
            if known is not None:
                return
            with lock:
                assert code not in running
                running.append(code)
                begun.append(code)
                most.append(len(running))
                is_second = begun.count(code) == 2
            with lock:
                running.remove(code)
            if is_second:
                profiles.put(ModelProfile(code_digest=code))

    codes = "abcd" * 4
    run_together(*(lambda code=code: load(code) for code in codes))
    assert max(most) <= 2
    assert sorted(begun) == sorted("abcd" * 2)


def test_others_do_not_wait_for_code_whose_first_versions_fail() -> None:
    """A turn that fails ends, and after two of them nobody takes turns any more."""
    profiles = Profiles(num_turns=1)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"), profiles.turn("a"):
            raise OSError("gone")
    with profiles.turn("b"), profiles.turn("a") as known:  # though "b" has the turn
        assert known is None
