"""A model that computes its requests together, in stages that others may join.

It takes over what batch queues do elsewhere, because a request that waits has to be where
the model runs to be able to join at the next boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from tfs.core.batch.batch_task import Cancellation
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import ServingError, forget_frames
from tfs.core.executor import Executor, ThreadExecutor
from tfs.core.servable import Tensors
from tfs.core.signature import Signature
from tfs.core.tensor_view import TensorView
from tfs.core.version_directory import read_example
from tfs.runtime.guest.guest_model import GuestModel, Output, Value
from tfs.runtime.guest.layered.auto import Auto, AutoStatus
from tfs.runtime.guest.layered.batched_values import describe
from tfs.runtime.guest.layered.cutter import LEAST_STAGE_S, NotCut, cut
from tfs.runtime.guest.layered.stage_times import StageTimes
from tfs.runtime.guest.layered.stages import StagedCall, Stages, shared_out
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.signature_call import SignatureCall
from tfs.runtime.guest.platforms.torch_callable import TorchCallable
from tfs.runtime.guest.torch_tensor import to_torch

MEASURED_S: Final = 2.0
"""How long stages are measured before they serve; what they take is learned from then on."""

Outputs: TypeAlias = Mapping[str, Output]
End: TypeAlias = Callable[[Outputs | ServingError], None]


@dataclass(eq=False, slots=True)
class GuestCall(StagedCall):
    """A request where the model runs. Confined to the model's thread.

    Attributes:
        name: Of its signature.
        signature: Its signature.
        end: Takes its outputs, or why there are none; called once.
        key: What calls have in common that can be joined; None if it cannot be.

    """

    name: str
    signature: SignatureCall
    end: End
    key: Hashable

    def fail(self, error: BaseException) -> None:
        fault = self.signature.fault(error, self.num_rows)
        forget_frames(fault)
        self.end(fault)


class StagedModel:
    """A guest model of which some signatures are computed in stages. On one thread.

    It is cut and measured when it is made, which takes seconds.

    Args:
        source: The version.
        guest: The model as its platform loads it.
        rows: Three rows that differ, by signature that is computed in stages.
        clock: The clock of deadlines.
        executor: Simulates beside the model; the default is a thread of its own.
        least_s: Least seconds of a stage.
        budget_s: How long to measure each, apart from some calls.

    Attributes:
        num_threads: Threads of torch for each stage.
        waiting: The calls that wait, in order; read-only.

    Raises:
        NotCut: A signature has to be computed whole; the message says why.

    """

    def __init__(
        self,
        source: ModelSource,
        guest: TorchCallable,
        rows: Mapping[str, Mapping[str, torch.Tensor]],
        clock: Clock | None = None,
        executor: Executor | None = None,
        *,
        least_s: float = LEAST_STAGE_S,
        budget_s: float = MEASURED_S,
    ) -> None:
        self.num_threads = source.intra_op_threads
        self.waiting: list[GuestCall] = []
        self._guest = guest
        self._clock = clock or MonotonicClock()
        self._executor = executor or ThreadExecutor(1, "layered")
        self._stages: dict[str, tuple[Stages[GuestCall], Auto]] = {}
        self._is_running = False
        self._was_idle = False  # before the first of those that wait came
        torch.set_num_threads(self.num_threads)
        for name, inputs in rows.items():
            if name not in guest.cuttable:
                raise NotCut("only modules and exported graphs are cut")
            with torch.inference_mode():
                parts = cut(guest.cuttable[name], inputs, least_s)
                most = source.staged_rows[name]
                stages = Stages[GuestCall](parts, most, self._clock, self._share)
                stages.measure((), inputs, budget_s)
            self._stages[name] = stages, Auto(stages.times, self._executor)

    @property
    def status(self) -> AutoStatus | None:
        """What rules are worth, of the first signature in stages. Thread-safe."""
        for stages, auto in list(self._stages.values()):
            return AutoStatus(auto.rule.name, auto.gain, stages.num_joined)
        return None

    def times_of(self, signature_name: str) -> StageTimes:
        """Returns the table of a signature that is computed in stages."""
        return self._stages[signature_name][0].times

    def add(
        self,
        name: str,
        inputs: Mapping[str, Value],
        num_rows: int,
        arrived_s: float,
        deadline_s: float | None,
        cancel: Cancellation,
        end: End,
    ) -> None:
        """Has a call of a signature wait until it is computed by ``serve``."""
        try:
            signature = self._guest.call_of(name)
        except ServingError as error:
            end(error)
            return
        key: Hashable = None
        stages, auto = self._stages.get(name, (None, None))
        if stages and auto and num_rows <= stages.times.max_rows:
            with suppress(ServingError):  # the model says what is wrong with it
                key = describe((), inputs)[1]
            if key is not None:
                key = name, key
                auto.note_arrival(arrived_s, num_rows)
        self._was_idle |= not self.waiting and not self._is_running
        self.waiting.append(
            GuestCall(
                (), inputs, num_rows, arrived_s, deadline_s, cancel, name, signature, end, key
            )
        )  # fmt: skip

    def serve(self, look: Callable[[], None]) -> None:
        """Computes the first waiting call, and those that go with it or join it.

        Calls are ended as their outcomes are known; what is wrong with one is its own.

        Args:
            look: Adds the calls that came meanwhile.

        """
        was_idle, self._was_idle = self._was_idle, False
        self._end_gone()
        if not self.waiting:
            return
        head = self.waiting[0]
        if head.key is None:
            self._compute_whole(self.waiting.pop(0))
            return
        stages, auto = self._stages[head.name]
        auto.begin_run(self._clock.now(), was_idle=was_idle)

        def take(rows_to_join: Callable[..., int]) -> list[GuestCall]:
            look()
            self._end_gone()
            alike = [each for each in self.waiting if each.key == head.key]
            if not alike:
                return []
            rate = auto.rate(self._clock.now())
            return self._taken(head.key, rows_to_join(alike, rate))

        most = max(stages.most_rows(auto.rule), head.num_rows)
        self._is_running = True
        try:
            stages.serve(self._taken(head.key, most), auto.rule, take)
        finally:
            self._is_running = False

    def close(self) -> None:
        """Drops the model; idempotent."""
        self._guest.close()
        for _, auto in self._stages.values():
            auto.close()
        self._stages.clear()
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

    def seed(self, seed: int | None) -> None:
        """Sets this process's random numbers."""
        self._guest.seed(seed)

    # -- how calls end -------------------------------------------------------------------

    def _taken(self, key: Hashable, most: int) -> list[GuestCall]:
        """Takes out the first calls of a kind that have so many rows together, or fewer."""
        taken: list[GuestCall] = []
        for each in self.waiting:
            if each.key == key:
                most -= each.num_rows
                if most < 0:
                    break
                taken.append(each)
        self.waiting = [each for each in self.waiting if each not in taken]
        return taken

    def _end_gone(self) -> None:
        now_s = self._clock.now()
        for each in list(self.waiting):
            error = each.gone(now_s)
            if error is not None:
                self.waiting.remove(each)
                each.end(error)

    def _compute_whole(self, call: GuestCall) -> None:
        try:
            outputs = self._guest.run(call.name, call.kwargs, call.num_rows)
        except BaseException as error:  # a model's sys.exit() must not end its thread
            call.fail(error)
        else:
            call.end(outputs)

    def _share(self, value: Any, batch: Sequence[GuestCall]) -> None:
        """Ends each call of a batch with its rows of what the last stage returned."""
        signature, name = batch[0].signature, batch[0].name
        outputs = signature.of_result(value, sum(each.num_rows for each in batch))
        for each, part in zip(batch, shared_out(outputs, batch), strict=True):
            each.end(part)
        now_s = self._clock.now()
        for each in batch:
            self._stages[name][1].note_ended(each.arrived_s, each.num_rows, now_s)


def staged(source: ModelSource, guest: GuestModel) -> StagedModel:
    """Returns a loaded model as one in stages. Blocks for seconds.

    Raises:
        NotCut: It has to be computed whole; the message says why.

    """
    if not isinstance(guest, TorchCallable):
        guest.close()
        raise NotCut(f"{source.platform} models are computed whole")
    signatures = source.signatures
    try:
        rows = {k: _three_rows(source, signatures[k]) for k in source.staged_rows}
        return StagedModel(source, guest, rows)
    except BaseException:
        guest.close()
        raise


def _three_rows(source: ModelSource, signature: Signature) -> dict[str, torch.Tensor]:
    if signature.defaults or not signature.batched:
        raise NotCut("some of its inputs are not rows of a batch")
    if not signature.examples:
        raise NotCut("it has no example inputs, with which cuts are tried")
    rows: dict[str, torch.Tensor] = {}
    for name, view in read_example(source.path, signature).items():
        given = to_torch(view)
        if not isinstance(given, torch.Tensor):
            raise NotCut("some of its inputs are strings")
        rows[name] = torch.cat([given] * 3)[:3]
    return rows
