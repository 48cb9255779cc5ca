"""tfs.servables.measuring.profiles."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.threads import run_together
from tfs.core.version.model_profile import ModelProfile
from tfs.servables.measuring.host_load import CpuSample
from tfs.servables.measuring.profiles import FIRST_PAUSE_S, LAST_PAUSE_S, Profiles
from tfs.testing.fake_clock import FakeClock

PID = 4711
PROFILE = ModelProfile(code_digest="abc", load_s=0.25)


def test_profile_is_remembered_in_memory() -> None:
    """Without a state directory profiles last as long as the server."""
    profiles = Profiles()
    assert profiles.get("abc") is None
    assert profiles.needs_measuring("abc", PID)
    profiles.put(PROFILE)
    assert profiles.get("abc") is PROFILE
    assert not profiles.needs_measuring("abc", PID)


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


class Host:
    """A machine whose processors others use or leave alone."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.is_busy = True
        self.profiles = Profiles(clock=self.clock, sample=self.sample)

    def sample(self, pids: Sequence[int]) -> CpuSample:
        """Returns a million seconds per second of waiting while others are at it."""
        return CpuSample(self.clock.now() * (1e6 if self.is_busy else 0.0), 0.0)

    def load(self) -> bool:
        """Loads a version in a second; returns whether it should be measured."""
        self.profiles.get("abc")
        self.clock.advance(1.0)
        return self.profiles.needs_measuring("abc", PID)


def test_code_is_left_alone_until_the_pause_is_over_and_the_host_quiet() -> None:
    """Busy callers are not made to wait for a measurement that would be spoiled."""
    host = Host()
    host.is_busy = False
    host.profiles.put(PROFILE, is_quiet=False)
    assert not host.load()
    assert host.profiles.get("abc") is PROFILE
    host.clock.advance(FIRST_PAUSE_S)
    assert host.load()


def test_busy_host_puts_the_measurement_off_by_another_pause() -> None:
    """A look at the processors costs nothing; a measurement does."""
    host = Host()
    host.profiles.put(PROFILE, is_quiet=False)
    host.clock.advance(FIRST_PAUSE_S)
    assert not host.load()
    host.is_busy = False
    assert not host.load()
    host.clock.advance(FIRST_PAUSE_S)
    assert host.load()


def test_pause_doubles_with_every_spoiled_measurement_up_to_a_limit() -> None:
    """A host that is always busy is measured ever more seldom, but never given up."""
    host = Host()
    host.is_busy = False
    pauses_s = []
    for _ in range(7):
        host.profiles.put(PROFILE, is_quiet=False)
        begun_s = host.clock.now()
        while not host.load():
            host.clock.advance(1.0)
        pauses_s.append(host.clock.now() - begun_s)
    assert pauses_s[0] < FIRST_PAUSE_S + 4
    assert pauses_s[1] >= 2 * FIRST_PAUSE_S
    assert LAST_PAUSE_S <= pauses_s[-1] < LAST_PAUSE_S + 4


def test_proper_measurement_ends_the_provisional_one(tmp_path: Path) -> None:
    """What is known for good needs no substitute, and only that is written down."""
    profiles = Profiles(str(tmp_path))
    profiles.put(PROFILE, is_quiet=False)
    assert not (tmp_path / "profiles").exists()
    profiles.put(PROFILE)
    assert (tmp_path / "profiles").exists()
    assert not profiles.needs_measuring("abc", PID)


def test_one_version_of_each_code_has_its_turn_and_no_more_than_a_few() -> None:
    """However many threads load versions, the first two of each code come alone."""
    profiles = Profiles(num_turns=2)
    lock = threading.Lock()
    running: list[str] = []
    most: list[int] = []

    def load(code: str) -> None:
        with profiles.turn(code) as known:
            if known is not None:
                return
            with lock:
                assert code not in running
                running.append(code)
                most.append(len(running))
            with lock:
                running.remove(code)
            if profiles.num_taken(code) == 2:
                profiles.put(ModelProfile(code_digest=code))

    codes = "abcd" * 4
    run_together(*(lambda code=code: load(code) for code in codes))
    assert max(most) <= 2
    assert len(most) == 8
    assert all(profiles.num_taken(code) <= 2 for code in "abcd")


def test_others_do_not_wait_for_code_whose_first_versions_fail() -> None:
    """A turn that fails ends, and after two of them nobody takes turns any more."""
    profiles = Profiles(num_turns=1)
    for _ in range(3):
        with pytest.raises(OSError, match="gone"), profiles.turn("a"):
            raise OSError("gone")
    assert profiles.num_taken("a") == 2
