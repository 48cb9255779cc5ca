"""A model that computes its requests together, in stages that others may join.

It takes over what batch queues do elsewhere, because a request that waits has to be where
the model runs to be able to join at the next boundary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import DeadlineExceeded, ServingError, forget_frames, serving_error
from tfs.core.executor import Executor, ThreadExecutor
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.guest_model import GuestModel, Output, Value
from tfs.runtime.guest.layered.auto import Auto, AutoStatus
from tfs.runtime.guest.layered.batched_values import describe
from tfs.runtime.guest.layered.cutter import LEAST_STAGE_S, NotCut, cut
from tfs.runtime.guest.layered.part_call import joined_arguments
from tfs.runtime.guest.layered.stage_run import StageRun, boundary
from tfs.runtime.guest.layered.stage_times import StageTimes
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.torch_callable import TorchCallable
from tfs.runtime.guest.torch_tensor import to_torch

MEASURED_S: Final = 2.0
"""How long stages are measured before they serve."""

Outputs = Mapping[str, Output]


class Mark(Protocol):
    """Tells whether somebody waits for a call."""

    @property
    def error(self) -> ServingError | None:
        """Why nobody does any more; None while somebody does."""
        ...


@dataclass(eq=False, slots=True)
class GuestCall:
    """A request where the model runs. Confined to the model's thread.

    Attributes:
        signature_name: Which signature.
        kwargs: The inputs by name.
        num_rows: Their rows.
        arrived_s: When it was first seen here.
        deadline_s: By when it has to be answered, by the model's clock; None for never.
        mark: Whether somebody waits for it.
        end: Takes its outputs, or why there are none; called once.
        key: What calls have in common that can be joined; None if it cannot be.

    """

    signature_name: str
    kwargs: Mapping[str, Value]
    num_rows: int
    arrived_s: float
    deadline_s: float | None
    mark: Mark
    end: Callable[[Outputs | ServingError], None]
    args: tuple[Any, ...] = ()
    key: Hashable = field(init=False)

    def __post_init__(self) -> None:
        self.key = None
        if all(isinstance(each, torch.Tensor) for each in self.kwargs.values()):
            try:
                _, key = describe((), self.kwargs)
            except ServingError:
                return  # the model says what is wrong with it
            self.key = None if key is None else (self.signature_name, key)

    def gone(self, now_s: float) -> ServingError | None:
        """Returns why nobody waits for it any more; None while somebody does."""
        error = self.mark.error
        if error is None and self.deadline_s is not None and now_s >= self.deadline_s:
            error = DeadlineExceeded("the deadline passed where the model runs")
        return error


@dataclass(frozen=True, slots=True)
class _Staged:
    run: StageRun
    auto: Auto


class StagedModel:
    """A guest model whose signatures may be computed in stages.

    ``serve`` is confined to one thread, and ``cut`` comes before the first call of it.

    Args:
        source: The version.
        guest: The model as its platform loads it.
        clock: The clock of deadlines.
        executor: Simulates beside the model; the default is a thread of its own.
        least_s: Least seconds of a stage.

    Attributes:
        num_threads: Threads of torch for each stage.

    """

    def __init__(
        self,
        source: ModelSource,
        guest: TorchCallable,
        clock: Clock | None = None,
        executor: Executor | None = None,
        least_s: float = LEAST_STAGE_S,
    ) -> None:
        self.num_threads = source.intra_op_threads
        self._guest = guest
        self._clock = clock or MonotonicClock()
        self._executor = executor
        self._least_s = least_s
        self._max_rows = source.staged_rows
        self._staged: dict[str, _Staged | None] = {}  # None: is computed whole

    @property
    def status(self) -> AutoStatus | None:
        """What rules are worth, of the first signature in stages. Thread-safe."""
        return next(
            (each.auto.status for each in list(self._staged.values()) if each), None
        )

    def cut(self, signature_name: str, inputs: Tensors) -> int:
        """Cuts a signature into stages, measures them, and returns how many there are.

        Blocks for :data:`MEASURED_S` and some calls.

        Args:
            signature_name: Which signature.
            inputs: Three rows that differ.

        Raises:
            NotCut: It is computed whole; the message says why.

        """
        values: dict[str, Value] = {k: to_torch(view) for k, view in inputs.items()}
        return self._cut(signature_name, values, MEASURED_S)

    def _cut(
        self, signature_name: str, values: Mapping[str, Value], budget_s: float
    ) -> int:
        model = self._guest.cuttable.get(signature_name)
        if model is None:
            raise NotCut("only modules and exported graphs are cut")
        signature = self._guest.call_of(signature_name).signature
        if signature.defaults or not signature.batched:
            raise NotCut("some of its inputs are not rows of a batch")
        tensors = {
            name: value
            for name, value in values.items()
            if isinstance(value, torch.Tensor)
        }
        if len(tensors) < len(values):
            raise NotCut("some of its inputs are strings")
        torch.set_num_threads(self.num_threads)
        with torch.inference_mode():
            stages = cut(model, tensors, self._least_s)
            run = StageRun(stages, self._max_rows, self._clock)
            run.measure((), tensors, budget_s)
        if self._executor is None:
            self._executor = ThreadExecutor(1, "layered")
        auto = Auto(run.times, self._executor, yield_to_requests)
        self._staged[signature_name] = _Staged(run, auto)
        return len(stages)

    def _cut_of(self, call: GuestCall) -> _Staged | None:
        """Returns a signature's stages; after a crash its first call is cut by."""
        name = call.signature_name
        if name not in self._staged and call.key is not None:
            self._staged[name] = None
            rows: dict[str, Value] = {
                key: torch.cat([each[:1]] * 3)
                for key, each in call.kwargs.items()
                if isinstance(each, torch.Tensor)
            }
            with contextlib.suppress(ServingError):
                self._cut(name, rows, MEASURED_S / 10)
        return self._staged.get(name)

    def times_of(self, signature_name: str) -> StageTimes:
        """Returns the table of a signature that was cut."""
        staged = self._staged.get(signature_name)
        if staged is None:
            raise NotCut(f"{signature_name!r} was not cut")
        return staged.run.times

    def note_arrival(self, call: GuestCall) -> None:
        """Notes a call that came, once. On the serving thread."""
        staged = self._staged.get(call.signature_name)
        if staged is not None and 0 < call.num_rows <= staged.run.times.max_rows:
            staged.auto.note_arrival(call.arrived_s, call.num_rows)

    def serve(
        self,
        waiting: list[GuestCall],
        look: Callable[[], None],
        *,
        was_idle: bool,
    ) -> None:
        """Computes the first waiting call, and those that go with it or join it.

        Calls are ended as their outcomes are known; what is wrong with one is its own.

        Args:
            waiting: Calls in order; those that are computed are taken out.
            look: Appends the calls that came meanwhile to ``waiting``.
            was_idle: Whether nothing was computed before.

        """
        self._end_gone(waiting)
        if not waiting:
            return
        head = waiting[0]
        staged = self._cut_of(head)
        if (
            staged is None
            or head.key is None
            or head.num_rows > staged.run.times.max_rows
        ):
            self._compute([waiting.pop(0)])
            return
        run, auto = staged.run, staged.auto
        auto.begin_run(self._clock.now(), was_idle=was_idle)
        rule = auto.rule
        most = max(rule.most_rows(run.times), head.num_rows)
        batch = _taken(waiting, head.key, most)
        failed: list[GuestCall] = []
        left: list[GuestCall] = []

        def take(*place: Any) -> list[GuestCall]:
            look()
            if not waiting:
                return []
            self._end_gone(waiting)
            alike = [each for each in waiting if each.key == head.key]
            if not alike:
                return []
            now_s = self._clock.now()
            at = boundary(batch, alike, place, now_s, auto.rate.read(now_s))
            joining = _taken(waiting, head.key, rule.rows_to_join(run.times, at))
            auto.note_joined(len(joining))
            return joining

        call = self._guest.call_of(head.signature_name)
        try:
            value = run.run(batch, take, failed, left)
            if batch:
                num_rows = sum(each.num_rows for each in batch)
                self._end(batch, call.of_result(value, num_rows))
        except BaseException as error:  # every call has to be ended
            if len(batch) == 1 or not isinstance(error, Exception):
                fault = call.fault(error, sum(each.num_rows for each in batch))
                for each in batch:
                    each.end(fault)
            else:
                self._halve(batch)
        if failed:
            self._compute(failed)
        now_s = self._clock.now()
        for each in left:
            each.end(each.gone(now_s) or DeadlineExceeded("nobody waits for it"))
        for each in batch:
            auto.note_ended(each.arrived_s, each.num_rows, now_s)

    def close(self) -> None:
        """Drops the model; idempotent."""
        self._guest.close()
        self._staged.clear()
        if self._executor is not None:
            self._executor.close(self._clock.now() + 1.0)

    # -- as any guest model --------------------------------------------------------------

    def call(self, signature_name: str, inputs: Tensors) -> dict[str, TensorView]:
        """Runs one signature on views, whole."""
        return self._guest.call(signature_name, inputs)

    def run(
        self, signature_name: str, inputs: Mapping[str, Value], num_rows: int
    ) -> dict[str, Output]:
        """Runs one signature on tensors, whole."""
        return self._guest.run(signature_name, inputs, num_rows)

    def num_written_pages(self) -> int:
        """Returns how many pages of shared weights this model made its own."""
        return self._guest.num_written_pages()

    # -- how calls end -------------------------------------------------------------------

    def _end_gone(self, waiting: list[GuestCall]) -> None:
        now_s = self._clock.now()
        for each in list(waiting):
            error = each.gone(now_s)
            if error is not None:
                waiting.remove(each)
                each.end(error)

    def _compute(self, batch: Sequence[GuestCall]) -> None:
        """Computes calls whole, in halves if that fails, until each at fault is alone."""
        num_rows = sum(each.num_rows for each in batch)
        name = batch[0].signature_name
        try:
            # A lone call keeps its inputs as they are, whatever they are.
            inputs = batch[0].kwargs if len(batch) == 1 else joined_arguments(batch)[1]
            outputs = self._guest.run(name, inputs, num_rows)
            self._end(batch, outputs)
        except BaseException as error:
            if len(batch) > 1 and isinstance(error, Exception):
                self._halve(batch)
                return
            fault = serving_error(error, name)
            forget_frames(fault)
            for each in batch:
                each.end(fault)

    def _halve(self, batch: Sequence[GuestCall]) -> None:
        half = len(batch) // 2
        self._compute(batch[:half])
        self._compute(batch[half:])

    def _end(self, batch: Sequence[GuestCall], outputs: Outputs) -> None:
        if len(batch) == 1:
            batch[0].end(outputs)
            return
        start = 0
        for each in batch:
            stop = start + each.num_rows
            each.end(
                {
                    name: value.rows(start, stop)
                    if isinstance(value, TensorView)
                    else value[start:stop]
                    for name, value in outputs.items()
                }
            )
            start = stop


def staged(source: ModelSource, guest: GuestModel) -> StagedModel:
    """Returns a loaded model as one that may be cut.

    Raises:
        NotCut: Its platform's models are computed whole.

    """
    if not isinstance(guest, TorchCallable):
        guest.close()
        raise NotCut(f"{source.platform} models are computed whole")
    return StagedModel(source, guest)


def _taken(waiting: list[GuestCall], key: Hashable, most: int) -> list[GuestCall]:
    """Takes out the first calls of a kind that have so many rows together, or fewer."""
    taken: list[GuestCall] = []
    rows = 0
    for each in waiting:
        if each.key != key:
            continue
        if rows + each.num_rows > most:
            break
        rows += each.num_rows
        taken.append(each)
    if taken:
        waiting[:] = [each for each in waiting if each not in taken]
    return taken
