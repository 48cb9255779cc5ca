"""Tasks and a runner that do only what a test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batching.batch import Batch
from tfs.core.errors import ServingError
from tfs.core.servable import CancelToken


class FakeTask:
    """A task of some rows; remembers its outcomes, in order.

    As it must end exactly once, `outcome` fails unless there is one.
    """

    def __init__(
        self,
        num_rows: int = 1,
        *,
        name: str = "",
        deadline_s: float | None = None,
        on_done: Callable[[Any], None] | None = None,
    ) -> None:
        self.name = name
        self.num_rows = num_rows
        self.deadline_s = deadline_s
        self.arrived_s = 0.0
        self.cancel = CancelToken()
        self.outcomes: list[Any] = []
        self._on_done = on_done

    def on_done(self, outcome: Any) -> None:
        self.outcomes.append(outcome)
        if self._on_done is not None:
            self._on_done(outcome)

    @property
    def is_waiting(self) -> bool:
        return not self.outcomes

    @property
    def outcome(self) -> Any:
        (only,) = self.outcomes
        return only

    @property
    def error(self) -> ServingError:
        assert isinstance(self.outcome, ServingError)
        return self.outcome

    def __repr__(self) -> str:
        return f"<FakeTask {self.name} {self.num_rows}>"


def split_task(
    task: FakeTask, start: int, stop: int, on_done: Callable[[Any], None]
) -> FakeTask:
    """Makes a part named after its rows."""
    part = FakeTask(stop - start, name=f"{task.name}[{start}:{stop}]", on_done=on_done)
    part.cancel = task.cancel
    part.deadline_s = task.deadline_s
    return part


class JoinedOutcomes:
    """Lists the outcomes of a task's parts in order of their rows."""

    def __init__(self, task: FakeTask) -> None:
        self._outcomes: dict[int, Any] = {}

    def add(self, start: int, outcome: Any) -> None:
        assert start not in self._outcomes
        self._outcomes[start] = outcome

    def whole(self) -> Any:
        return [self._outcomes[start] for start in sorted(self._outcomes)]


class PuppetRunner:
    """Holds its batches until the test ends them, or ends them at once."""

    def __init__(self, *, inline: bool = False) -> None:
        self.inline = inline
        self.running: list[Batch[FakeTask]] = []
        self.sizes: list[list[int]] = []
        self.names: list[list[str]] = []
        self.padded: list[int] = []
        self.fails_on: Callable[[FakeTask], ServingError | None] = lambda task: None

    def run(self, batch: Batch[FakeTask]) -> None:
        self.sizes.append([task.num_rows for task in batch.tasks])
        self.names.append([task.name for task in batch.tasks])
        self.padded.append(batch.padded_rows)
        self.running.append(batch)
        if self.inline:
            self.finish()

    def finish(self, index: int = 0) -> None:
        """Ends a running batch: with the first failing task's error, or each well."""
        batch = self.running.pop(index)
        for task in batch.tasks:
            error = self.fails_on(task)
            if error is not None:
                batch.done(error)
                return
        batch.done([task.name or "done" for task in batch.tasks])

    def fail(self, error: ServingError, index: int = 0) -> None:
        self.running.pop(index).done(error)
