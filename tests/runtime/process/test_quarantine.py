"""Whose crashes are held against them, and what comes of it."""

from __future__ import annotations

from tests.runtime.packaged import signature
from tests.runtime.process.idle_host import IdleHost
from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.process.crash_policy import CrashPolicy
from tfs.runtime.process.process_model import ProcessModel, VersionHealth
from tfs.runtime.process.quarantine import Quarantine
from tfs.testing.fake_clock import FakeClock


class World:
    """A version on two interpreters, and what is said when it crashes."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.refused: list[tuple[ServingError, ProcessModel]] = []
        self.told: list[tuple[ServableId, str]] = []
        health = VersionHealth(CrashPolicy(max_crashes=2, window_s=60))
        source = ModelSource(
            ServableId("a", 1),
            "/models/a/1",
            "python",
            {},
            {"serving_default": signature()},
        )
        host = IdleHost()
        self.models = [
            ProcessModel(source, VersionFiles({}), number, health, host)
            for number in range(2)
        ]
        self.quarantine = Quarantine(
            self.clock,
            lambda error, model: self.refused.append((error, model)),
            self.tell,
        )

    def tell(self, servable: ServableId, reason: str) -> None:
        self.told.append((servable, reason))
        raise ValueError("what listens fails")


def test_one_crash_too_many_within_the_window_quarantines_a_version() -> None:
    """Wherever it crashed; what waits for it is told why, and once, and so is the server."""
    world = World()
    first, second = world.models
    world.quarantine.note_crash(first, "was ended by SIGSEGV")
    world.clock.advance(61)
    world.quarantine.note_crash(first, "was ended by SIGSEGV")
    assert first.refusal() is None
    world.clock.advance(1)
    world.quarantine.note_crash(second, "was ended by SIGBUS")
    reason = "crashed 2 times within 60 s; the last time its interpreter was ended by "
    assert world.told == [(ServableId("a", 1), reason + "SIGBUS")]
    ((error, model),) = world.refused
    assert model is second
    assert isinstance(error, FailedPrecondition)
    assert isinstance(first.refusal(), FailedPrecondition)
    world.quarantine.note_crash(first, "was ended by SIGBUS")
    assert len(world.told) == len(world.refused) == 1


def test_a_version_that_does_not_load_again_is_quarantined_at_once() -> None:
    """A worker's next one would not get any further."""
    world = World()
    world.quarantine.impose(world.models[0], "does not load again: no memory")
    refusal = world.models[1].refusal()
    assert refusal is not None
    assert "it does not load again: no memory" in refusal.message
