from __future__ import annotations

from collections.abc import Sequence

from tfs.core.model_profile import ModelProfile
from tfs.servables.measuring.host_load import CpuSample
from tfs.servables.measuring.provisional_profiles import (
    FIRST_PAUSE_S,
    LAST_PAUSE_S,
    ProvisionalProfiles,
)
from tfs.testing.fake_clock import FakeClock

PID = 4711
SHARE = 0.15


class Host:
    """A machine whose processors others use or leave alone."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.is_busy = True
        self.profiles = ProvisionalProfiles(self.clock, self.sample)

    def sample(self, pids: Sequence[int]) -> CpuSample:
        """Returns a million seconds per second of waiting while others are at it."""
        return CpuSample(self.clock.now() * (1e6 if self.is_busy else 0.0), 0.0)

    def load(self, digest: str = "d") -> bool:
        """Loads a version in a second; returns whether it should be measured."""
        self.profiles.get(digest)
        self.clock.advance(1.0)
        return self.profiles.is_time_to_measure(digest, PID, SHARE)


def profile(digest: str = "d") -> ModelProfile:
    return ModelProfile(code_digest=digest)


def test_unknown_code_is_always_worth_measuring() -> None:
    """Nothing stands in for it."""
    host = Host()
    assert host.profiles.get("d") is None
    assert host.load()


def test_code_is_left_alone_until_the_pause_is_over_and_the_host_quiet() -> None:
    """Busy callers are not made to wait for a measurement that would be spoiled."""
    host = Host()
    host.is_busy = False
    spoiled = profile()
    host.profiles.put(spoiled)
    assert not host.load()
    assert host.profiles.get("d") is spoiled
    host.clock.advance(FIRST_PAUSE_S)
    assert host.load()


def test_busy_host_puts_the_measurement_off_by_another_pause() -> None:
    """A look at the processors costs nothing; a measurement does."""
    host = Host()
    host.profiles.put(profile())
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
        host.profiles.put(profile())
        begun_s = host.clock.now()
        while not host.load():
            host.clock.advance(1.0)
        pauses_s.append(host.clock.now() - begun_s)
    assert pauses_s[0] < FIRST_PAUSE_S + 4
    assert pauses_s[1] >= 2 * FIRST_PAUSE_S
    assert LAST_PAUSE_S <= pauses_s[-1] < LAST_PAUSE_S + 4


def test_proper_measurement_ends_the_stand_in() -> None:
    """What is known for good needs no substitute."""
    host = Host()
    host.profiles.put(profile())
    host.profiles.forget("d")
    assert host.profiles.get("d") is None
    assert host.load()
