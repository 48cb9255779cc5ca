"""A worker's life where no process can be started."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from tests.runtime.packaged import signature
from tfs.core.errors import ServingError, Unavailable
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.process_version import ProcessVersion
from tfs.runtime.process.worker import TRANSITIONS, Worker, WorkerState, transition
from tfs.runtime.process.zygote import OnForked, Zygote
from tfs.testing.fake_clock import FakeClock


class BarrenZygote:
    """Forks nothing: tests answer its requests themselves."""

    def __init__(self) -> None:
        self.num_users = 0
        self.asked: list[OnForked] = []

    def acquire(self) -> None:
        self.num_users += 1

    def release(self) -> None:
        self.num_users -= 1

    def fork(
        self,
        options: WorkerOptions,
        fds: tuple[int, ...],
        on_done: OnForked,
        *,
        platform: str,
    ) -> None:
        self.asked.append(on_done)


class World:
    """A worker, and what whoever wants it is told."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.loop = ServingLoop(self.clock)
        self.zygote = BarrenZygote()
        self.told: list[ServingError | None] = []
        source = ModelSource(
            ServableId("a", 1), "/a/1", "python", {}, {"serving_default": signature()}
        )
        options, files = ProcessOptions(), VersionFiles({})
        version = ProcessVersion(source, files, options, self.clock, 1)
        zygote = cast("Zygote", self.zygote)
        self.worker = Worker("w", self.loop, zygote, options, version)

    def lose_worker(self) -> None:
        """Has it be as after the death of a process that was ready."""
        self.worker._was_ready = True


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    if world.worker.state is not WorkerState.CLOSED:
        world.worker.close()
    for answer in world.zygote.asked:
        answer("it ended")  # frees what was made for the fork
    world.loop.close()
    assert world.zygote.num_users == 0


def test_who_waits_is_told_why_there_is_no_process(world: World) -> None:
    """Nobody wants one any more then, so that the zygote is not kept either."""
    world.worker.want(world.told.append)
    assert world.zygote.num_users == 1
    world.zygote.asked.pop()("no memory")
    (error,) = world.told
    assert isinstance(error, Unavailable)
    assert "no memory" in error.message
    assert world.worker.state is WorkerState.ABSENT
    assert world.zygote.num_users == 0


def test_a_start_that_failed_is_tried_again_if_there_was_a_worker(world: World) -> None:
    """After a pause of a second: what refused it may not be over at once."""
    world.lose_worker()
    world.worker.want(world.told.append)
    world.zygote.asked.pop()("no memory")
    assert world.worker.state is WorkerState.DEAD
    world.clock.advance(0.9)
    world.loop.step()
    assert not world.zygote.asked
    world.clock.advance(0.2)
    world.loop.step()
    assert len(world.zygote.asked) == 1


@pytest.mark.parametrize("why", [None, "it ended"])
def test_a_fork_lost_with_its_zygote_is_asked_of_the_next(
    world: World, why: str | None
) -> None:
    """Three times at most: whatever ends zygotes may go on for ever."""
    world.worker.want(world.told.append)
    num_asked = 0
    while world.zygote.asked:
        world.zygote.asked.pop()(why)
        num_asked += 1
    assert num_asked == (3 if why is None else 1)
    assert isinstance(world.told[0], Unavailable)


def test_a_worker_that_closes_while_it_is_forked_answers_whoever_waits(
    world: World,
) -> None:
    """What the zygote answers later is for nobody."""
    world.worker.want(world.told.append)
    world.worker.close()
    assert isinstance(world.told[0], Unavailable)
    answer: Callable[[str], None] = world.zygote.asked.pop()
    answer("late")
    assert world.worker.state is WorkerState.CLOSED


@pytest.mark.parametrize(
    ("state", "to"), list(itertools.product(WorkerState, WorkerState))
)
def test_only_the_moves_of_the_table_are_made(
    state: WorkerState, to: WorkerState
) -> None:
    """Every pair of states: allowed moves move, the others raise."""
    if to in TRANSITIONS[state]:
        assert transition("w", state, to) is to
    else:
        with pytest.raises(AssertionError, match=f"from {state.value} to {to.value}"):
            transition("w", state, to)


@pytest.mark.parametrize("state", list(WorkerState))
def test_closing_is_always_possible_and_final(state: WorkerState) -> None:
    """Every state but the last leads to the last."""
    assert (WorkerState.CLOSED in TRANSITIONS[state]) is (
        state is not WorkerState.CLOSED
    )
