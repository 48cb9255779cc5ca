"""A model that computes its requests together, in stages that others may join.

It takes over what batch queues do elsewhere, because a request that waits has to be where
the model runs to be able to join at the next boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.dtype import STRING
from tfs.core.errors import DeadlineExceeded, ServingError, forget_frames, serving_error
from tfs.core.example_inputs import read_example
from tfs.core.executor import Executor, ThreadExecutor
from tfs.core.servable import Tensors
from tfs.core.signature import FREE, Signature
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.guest_model import GuestModel, Output, Value
from tfs.runtime.guest.layered.auto import Auto, AutoStatus
from tfs.runtime.guest.layered.batched_values import describe
from tfs.runtime.guest.layered.cutter import LEAST_STAGE_S, NotCut, cut
from tfs.runtime.guest.layered.part_call import (
    Mark,
    StagedCall,
    joined_arguments,
)
from tfs.runtime.guest.layered.stage_run import StageRun, boundary
from tfs.runtime.guest.layered.stage_times import StageTimes
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.torch_callable import TorchCallable
from tfs.runtime.guest.torch_tensor import TORCH_DTYPES, to_torch

MEASURED_S: Final = 2.0
"""How long stages are measured before they serve; what they take is learned from then on."""

_FREE_SIZE: Final = 32  # of an inner dimension of which there is no example

Outputs = Mapping[str, Output]


class GuestCall(StagedCall):
    """A request where the model runs. Confined to the model's thread.

    Args:
        inputs: By name.
        num_rows: Their rows.
        arrived_s: When it came.
        deadline_s: By when it has to be answered, by the model's clock; None for never.
        mark: Whether somebody waits for it.
        signature_name: Which signature.
        end: Takes its outputs, or why there are none; called once.

    Attributes:
        key: What calls have in common that can be joined; None if it cannot be.

    """

    def __init__(
        self,
        inputs: Mapping[str, Value],
        num_rows: int,
        arrived_s: float,
        deadline_s: float | None,
        mark: Mark,
        signature_name: str,
        end: Callable[[Outputs | ServingError], None],
    ) -> None:
        super().__init__((), inputs, num_rows, arrived_s, deadline_s, mark)
        self.signature_name = signature_name
        self.end = end
        self.key: Hashable = None
        if all(isinstance(each, torch.Tensor) for each in inputs.values()):
            try:
                _, key = describe((), inputs)
            except ServingError:
                return  # the model says what is wrong with it
            self.key = None if key is None else (signature_name, key)


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
        self._staged: dict[str, _Staged] = {}

    @property
    def status(self) -> AutoStatus | None:
        """What rules are worth, of the first signature in stages. Thread-safe."""
        return next((each.auto.status for each in list(self._staged.values())), None)

    def cut(
        self,
        signature_name: str,
        rows: Mapping[str, torch.Tensor],
        budget_s: float = MEASURED_S,
    ) -> None:
        """Cuts a signature into stages, and measures them. Blocks; before it serves.

        Args:
            signature_name: Which signature.
            rows: Three rows that differ.
            budget_s: How long to measure, apart from some calls.

        Raises:
            NotCut: It has to be computed whole; the message says why.

        """
        model = self._guest.cuttable.get(signature_name)
        if model is None:
            raise NotCut("only modules and exported graphs are cut")
        torch.set_num_threads(self.num_threads)
        with torch.inference_mode():
            stages = cut(model, rows, self._least_s)
            run = StageRun(stages, self._max_rows[signature_name], self._clock)
            run.measure((), rows, budget_s)
        if self._executor is None:
            self._executor = ThreadExecutor(1, "layered")
        self._staged[signature_name] = _Staged(run, Auto(run.times, self._executor))

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
        staged = self._staged.get(head.signature_name)
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
        most = run.times.max_rows if run.explores else rule.most_rows(run.times)
        most = max(most, head.num_rows)
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
            auto.num_joined += len(joining)
            return joining

        call = self._guest.call_of(head.signature_name)
        try:
            value = run.run(batch, take, failed, left)
            if batch:
                num_rows = sum(each.num_rows for each in batch)
                self._end(batch, call.of_result(value, num_rows))
                run.end()
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
        for each in self._staged.values():
            each.auto.close()
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
    """Returns a loaded model as one in stages. Blocks for seconds.

    Raises:
        NotCut: It has to be computed whole; the message says why.

    """
    if not isinstance(guest, TorchCallable):
        guest.close()
        raise NotCut(f"{source.platform} models are computed whole")
    model = StagedModel(source, guest)
    try:
        for name in source.staged_rows:
            model.cut(name, _three_rows(source, source.signatures[name]))
    except BaseException:
        model.close()
        raise
    return model


def _three_rows(source: ModelSource, signature: Signature) -> dict[str, torch.Tensor]:
    """Returns rows of the author's example, or made-up ones: normal floats, and zeros."""
    if signature.defaults or not signature.batched:
        raise NotCut("some of its inputs are not rows of a batch")
    rows: dict[str, torch.Tensor] = {}
    example = read_example(source.path, signature) if signature.examples else {}
    dice = torch.Generator().manual_seed(0)
    for name, spec in signature.inputs.items():
        if spec.dtype is STRING:
            raise NotCut("some of its inputs are strings")
        if name in example:
            given = to_torch(example[name])
            assert isinstance(given, torch.Tensor)
            rows[name] = torch.cat([given] * 3)[:3] if len(given) else given
            continue
        shape = [3, *(_FREE_SIZE if size == FREE else size for size in spec.shape[1:])]
        dtype = TORCH_DTYPES[spec.dtype]
        made = torch.randn(shape, generator=dice)
        rows[name] = (
            made.to(dtype)
            if dtype.is_floating_point
            else torch.zeros(shape, dtype=dtype)
        )
    return rows


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
