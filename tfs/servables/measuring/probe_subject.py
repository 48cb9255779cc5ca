"""A loaded version, as a measurement sees it, and the inputs it is called with."""

from __future__ import annotations

import logging
import math
import os
import random
import struct
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tfs.core.clock import Clock
from tfs.core.dtype import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    STRING,
    DType,
)
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.servable import (
    CancelToken,
    InferenceTask,
    Outcome,
    Servable,
    Tensors,
)
from tfs.core.signature import FREE, Signature, TensorSpec
from tfs.core.tensor_view import TensorView, concatenate
from tfs.core.version_directory import read_example
from tfs.servables.joining.tensor_join import cut_inner, element, fill_inner, mask_of
from tfs.servables.loaded_version import PlacedModel

FREE_SIZE: Final = 32
"""Size of a free inner dimension of which there is no example."""

_HUGE: Final = 1024.0
"""A value far from those that models usually get. A few times the value still fits a
half-precision float."""

_NUM_NORMALS: Final = 997
"""A prime number, so that rows of any size start at different places of the series."""


class ProbeInputs:
    """Rows of one signature. Immutable.

    Attributes:
        is_authors: Whether the author gave an example.
        num_different: How many different rows there are, 0 for an unbatched signature.

    """

    def __init__(
        self, signature: Signature, rows: Mapping[str, TensorView], is_authors: bool
    ) -> None:
        self._signature = signature
        self._rows = dict(rows)
        self.is_authors = is_authors
        self.num_different = 0
        if signature.batched:
            self.num_different = min(
                (rows[name].num_rows for name in self._batched_names()), default=0
            )

    @classmethod
    def of(cls, path: str, signature: Signature) -> ProbeInputs:
        """Returns the author's example of a version, or else made-up values.

        Floats are normally distributed, everything else is zero or empty. A damaged
        example counts as absent: a probe never fails a load.
        """
        if signature.examples:
            try:
                rows = read_example(path, signature)
                signature.check_inputs(rows)
            except (ServingError, OSError):
                pass
            else:
                return cls(signature, rows, is_authors=True)
        made = dict(signature.defaults)
        for index, (name, spec) in enumerate(signature.inputs.items()):
            if name in made:
                continue
            shape = tuple(FREE_SIZE if size == FREE else size for size in spec.shape)
            if signature.batched:
                shape = (2, *shape[1:])
            made[name] = _made_up(spec.dtype, shape, index)
        return cls(signature, made, is_authors=False)

    def take(self, *indexes: int) -> dict[str, TensorView]:
        """Returns the rows with these numbers, in this order; numbers wrap around."""
        taken = dict(self._rows)
        for name in self._batched_names():
            rows = self._rows[name]
            taken[name] = concatenate(
                [
                    rows.rows(index % rows.num_rows, index % rows.num_rows + 1)
                    for index in indexes
                ]
            )
        return taken

    def batch(self, num_rows: int) -> dict[str, TensorView]:
        """Returns that many rows; the whole example of an unbatched signature."""
        return self.take(*range(num_rows)) if self.num_different else self.whole()

    def among_other_rows(self) -> dict[str, TensorView]:
        """Returns the first two rows, with one of zeros and one of huge values between.

        Values that are not floats are zero or empty in both.
        """
        taken = self.take(0, 0, 0, 1)
        for name in self._batched_names():
            view = taken[name]
            first = view.rows(0, 1)
            num = math.prod(first.shape)
            zeros = huge = TensorView(
                view.dtype,
                first.shape,
                (b"",) * num
                if view.dtype is STRING
                else bytes(num * view.dtype.item_bytes),
            )
            if view.dtype in (FLOAT32, FLOAT64, FLOAT16, BFLOAT16):
                large = element(view.dtype, _HUGE)
                huge = TensorView(view.dtype, first.shape, large * num)
            taken[name] = concatenate([first, zeros, huge, view.rows(3, 4)])
        return taken

    def ragged(self) -> tuple[dict[str, TensorView], dict[str, TensorView]] | None:
        """Returns the second row cut short: alone, and padded behind the first.

        It is padded as the server pads requests of different lengths that it joins.
        None if the signature has no input that is padded.
        """
        inputs = self._signature.inputs
        masks = {spec.mask for spec in inputs.values() if spec.mask}
        padded = {
            name: spec
            for name, spec in inputs.items()
            if FREE in spec.shape[1:] and (spec.pad is not None or name in masks)
        }
        if self.num_different < 2 or not any(
            spec.pad is not None for spec in padded.values()
        ):
            return None
        alone, joined = self.take(1), self.take(0, 1)
        cuts: dict[int, int] = {}
        made: dict[str, tuple[TensorView, TensorView]] = {}
        for name, spec in padded.items():
            first, second = joined[name].rows(0, 1), joined[name].rows(1, 2)
            free = [wanted == FREE for wanted in spec.shape[1:]]
            inner = first.shape[1:]
            short = tuple(
                (size + 1) // 2 if is_free else size
                for size, is_free in zip(inner, free, strict=True)
            )
            # The row is too short to be cut, so the other one is padded instead.
            if short == inner:
                inner = tuple(
                    size + 2 if is_free else size
                    for size, is_free in zip(inner, free, strict=True)
                )
            cuts |= {
                size: cut
                for size, cut in zip(second.shape[1:], short, strict=True)
                if cut < size
            }
            second = cut_inner(second, short)
            filler = element(spec.dtype, spec.pad or 0)
            alone[name] = second
            joined[name] = concatenate(
                [fill_inner(view, inner, filler) for view in (first, second)]
            )
            if spec.mask is not None:
                mask = inputs[spec.mask]
                rank = len(mask.shape)
                made[spec.mask] = (
                    mask_of([second], short, mask.dtype, rank),
                    mask_of([first, second], inner, mask.dtype, rank),
                )
        for name, (of_alone, of_joined) in made.items():
            if name not in padded or name in self._signature.defaults:
                alone[name], joined[name] = of_alone, of_joined
        for name in self._batched_names():
            if name not in padded and name not in made:
                second = _following(alone[name], inputs[name], cuts)
                if second is not alone[name]:
                    first = joined[name].rows(0, 1)
                    inner = tuple(map(max, first.shape[1:], second.shape[1:]))
                    zero = element(second.dtype, 0)
                    alone[name] = second
                    joined[name] = concatenate([first, fill_inner(second, inner, zero)])
        return alone, joined

    def whole(self) -> dict[str, TensorView]:
        """Returns the example as it is."""
        return dict(self._rows)

    def _batched_names(self) -> list[str]:
        defaults = self._signature.defaults
        return [name for name in self._rows if name not in defaults]


def _following(
    row: TensorView, spec: TensorSpec, cuts: Mapping[int, int]
) -> TensorView:
    """Returns one row of an input that speaks of another's length, after that was cut.

    A free size that is as long as what was cut (positions, segments) is cut, too. Of a
    row of integers that reach just to the former length (lengths, offsets), those beyond
    the new one become the new one. Any other row is returned as it is.

    Args:
        row: The row.
        spec: Its input.
        cuts: The new sizes by the former ones.

    """
    if row.dtype is STRING:
        return row
    inner = tuple(
        cuts.get(size, size) if wanted == FREE else size
        for size, wanted in zip(row.shape[1:], spec.shape[1:], strict=True)
    )
    if inner != row.shape[1:]:
        return cut_inner(row, inner)
    if row.dtype not in (INT32, INT64):
        return row
    values = array(row.dtype.code, bytes(row.buffer))
    cut = cuts.get(max(values, default=0))
    if cut is None:
        return row
    clipped = array(row.dtype.code, [min(value, cut) for value in values])
    return TensorView(row.dtype, row.shape, clipped.tobytes())


def _made_up(dtype: DType, shape: tuple[int, ...], seed: int) -> TensorView:
    num = math.prod(shape)
    if dtype is STRING:
        return TensorView(STRING, shape, (b"",) * num)
    if dtype in (FLOAT32, FLOAT64, FLOAT16, BFLOAT16):
        return TensorView(dtype, shape, _normals(dtype, num, seed))
    return TensorView(dtype, shape, bytes(num * dtype.item_bytes))


def _normals(dtype: DType, num: int, seed: int) -> bytes:
    """Returns a series of normals, repeated as often as necessary."""
    source = random.Random(seed)
    values = [source.gauss(0, 1) for _ in range(min(num, _NUM_NORMALS))]
    if dtype is FLOAT64:
        data = array("d", values).tobytes()
    elif dtype is FLOAT32:
        data = array("f", values).tobytes()
    elif dtype is FLOAT16:
        data = struct.pack(f"<{len(values)}e", *values)
    else:  # bfloat16 is the upper half of a float32
        wide = array("f", values).tobytes()
        data = b"".join(wide[i + 2 : i + 4] for i in range(0, len(wide), 4))
    size_bytes = num * dtype.item_bytes
    repeated = data * (size_bytes // len(data) + 1) if data else b""
    return repeated[:size_bytes]


log = logging.getLogger(__name__)

TRANSIENT: Final = (DeadlineExceeded, ResourceExhausted, Unavailable)
"""Errors that another moment may not bring: there was no time, or no room."""


class ProbeSubject:
    """A loaded version as a measurement sees it: a servable, called from outside.

    Confined to the measuring thread.

    Args:
        servable: The version. Of a :class:`PlacedModel` the interpreter tells more than
            its answers.

    """

    def __init__(self, servable: Servable) -> None:
        self._servable = servable
        self._model = servable.model if isinstance(servable, PlacedModel) else None
        self.signatures: Mapping[str, Signature] = servable.signatures

    @property
    def pid(self) -> int:
        """The process whose memory and processor time are the model's, if known."""
        return self._model.pid if self._model else os.getpid()

    @property
    def last_call_s(self) -> float | None:
        """Seconds that the last call took where it ran; None if only the wait is known.

        A model that will run elsewhere is judged by its own time, without the way to
        the process in which it is probed.
        """
        return self._model.last_call_s if self._model else None

    @property
    def process_changes(self) -> str:
        """What it has changed of its whole process so far, as far as is known."""
        return self._model.loaded.process_changes if self._model else ""

    def call(self, signature_name: str, inputs: Tensors, timeout_s: float) -> Tensors:
        """Runs one call and waits for it.

        Raises:
            ServingError: It failed, or took too long.

        """
        signature = self.signatures[signature_name]
        finished = threading.Event()
        outcomes: list[Outcome] = []

        def on_done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            finished.set()

        num_rows = signature.check_inputs(inputs)
        task = InferenceTask(
            signature_name,
            signature,
            inputs,
            on_done,
            num_rows=num_rows,
            cancel=CancelToken(),
        )
        self._servable.submit(task)
        if not finished.wait(timeout_s):
            late = DeadlineExceeded(
                f"{self._servable.id.slashed}: a probe call took over {timeout_s:g} s"
            )
            task.cancel.cancel(late)
            raise late
        (outcome,) = outcomes
        if isinstance(outcome, ServingError):
            raise outcome
        return outcome

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Returns calls per second of two threads over one; None if unknown."""
        if self._model is None:
            return None
        return self._model.two_thread_scaling(signature_name, inputs, duration_s)

    def seed(self, seed: int | None) -> bool:
        """Sets the random numbers that it draws; returns whether that was possible.

        May be called only before it serves. None takes a seed from the system.
        """
        return self._model is not None and self._model.seed(seed)

    def rehearse(self, signature_name: str, inputs: Tensors, timeout_s: float) -> None:
        """Makes a first call, which costs most, beside serving models, and waits.

        May be called only before the version serves. The answer, or error, is dropped.
        """
        if self._model is not None:
            self._model.rehearse(signature_name, inputs, timeout_s)


def warm_up(
    call: Callable[[str, Tensors, float], object],
    signatures: Mapping[str, Signature],
    path: str,
    sizes_of: Callable[[str], Sequence[int]],
    deadline_s: float,
    clock: Clock,
    *,
    num_rounds: int = 1,
    predict_s: Callable[[str, int], float] = lambda name, num_rows: 0.0,
) -> None:
    """Calls every signature with its example until the deadline.

    Failures are logged but fail nothing.

    Args:
        call: Calls a signature with inputs, for so many seconds at most.
        signatures: The version's, by key.
        path: The version's directory, which has the author's example.
        sizes_of: Returns the rows of the calls of a batched signature, by its key.
        deadline_s: When to stop, by ``clock``.
        clock: Tells the time.
        num_rounds: How many calls are made of each size.
        predict_s: Predicts the seconds of a call. A call that would not end in time is
            left out.

    """
    failed: set[str] = set()
    inputs = {name: ProbeInputs.of(path, each) for name, each in signatures.items()}
    calls_of_a_round = [
        (name, num_rows)
        for name, signature in signatures.items()
        for num_rows in (sizes_of(name) if signature.batched else (1,))
    ]
    for name, num_rows in num_rounds * calls_of_a_round:
        yield_to_requests()
        left_s = deadline_s - clock.now()
        if left_s <= 0:
            break
        if name in failed or predict_s(name, num_rows) > left_s:
            continue
        try:
            call(name, inputs[name].batch(num_rows), left_s)
        except ServingError as error:
            log.info("event=warm_up_failed signature=%s error=%s", name, error)
            failed.add(name)


def failing_examples(
    subject: ProbeSubject, path: str, timeout_s: float
) -> dict[str, ServingError]:
    """Calls every signature with all rows of its author's example; returns what fails.

    All rows, because some models take no single row, or no more than a few. Made-up
    values prove nothing, because the model may never get such values.
    """
    errors: dict[str, ServingError] = {}
    for name, signature in subject.signatures.items():
        inputs = ProbeInputs.of(path, signature)
        if not inputs.is_authors:
            continue
        yield_to_requests()
        try:
            subject.call(name, inputs.batch(inputs.num_different), timeout_s)
        except Cancelled:
            continue
        except ServingError as error:
            errors[name] = error
    return errors
