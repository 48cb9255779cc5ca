"""Measures how long a version's batches take by size, and recommends parameters.

It serves ``tfs tune``. It may take as long as a person at a keyboard is ready to wait,
while the probe at a load (``tfs.servables.measuring.probe``) must be quick.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batching.cost_table import CostTable
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.servables.measuring.probe_subject import ProbeInputs, ProbeSubject
from tfs.servables.measuring.row_independence import (
    RowIndependence,
    row_independence,
    still_independent,
)

_CHEAPER: Final = 0.9  # a step of a kernel is larger; a smaller difference may be noise
_MAX_REQUEST_ROWS: Final = 1000  # TensorFlow Serving's default
_WAITING_ROWS: Final = 4096  # as for a server without parameters
_MIN_WAITING_BATCHES: Final = 10
_MIN_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """How much is measured. Immutable, checked on creation.

    Attributes:
        largest_batch: Rows of the largest batch.
        budget_s: Seconds after which no further round begins; three rounds are made
            whatever they take.
        max_rounds: Most calls of each size that count.
        call_timeout_s: A single call that takes longer ends everything.

    """

    largest_batch: int = 64
    budget_s: float = 10.0
    max_rounds: int = 50
    call_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.largest_batch < 1 or self.max_rounds < _MIN_ROUNDS:
            raise InvalidArgument(f"bad tuning options: {self}")
        if not 0 <= self.budget_s < math.inf or self.call_timeout_s <= 0:
            raise InvalidArgument(f"bad tuning options: {self}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes measured: powers of two, those half-way, and the largest."""
        sizes = {1, self.largest_batch}
        size = 2
        while size <= self.largest_batch:
            sizes |= {size, min(size + size // 2, self.largest_batch)}
            size *= 2
        return tuple(sorted(sizes))


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was measured of one signature. Immutable.

    Attributes:
        signature_name: Key of the signature.
        call_s_by_rows: Median seconds of a batch, sizes ascending.
        num_rounds: How many calls of each size a median is of.
        doubt: Why the server may refuse to batch it all the same; empty if its rows
            were shown to be independent.
        is_example: Whether the author's example inputs were used; otherwise they were
            made up.

    """

    signature_name: str
    call_s_by_rows: Mapping[int, float]
    num_rounds: int
    doubt: str = ""
    is_example: bool = True


def tune(
    subject: ProbeSubject,
    path: str,
    signature_name: str,
    options: TuningOptions,
    clock: Clock | None = None,
) -> Tuning:
    """Measures one signature of a loaded version. Blocks for about the budget.

    Sizes take turns, so that whatever else the machine does affects all of them. A
    first round, which allocates, does not count.

    Raises:
        InvalidArgument: There is no such signature.
        FailedPrecondition: It cannot be batched; the message says why.
        ServingError: A call failed.

    """
    clock = clock or MonotonicClock()
    signature = subject.signatures.get(signature_name)
    if signature is None:
        raise InvalidArgument(
            f"no signature {signature_name!r}; there are: "
            f"{', '.join(subject.signatures)}"
        )
    if not signature.batched:
        raise FailedPrecondition(
            f"signature {signature_name!r} has no batch dimension: nothing to tune"
        )
    inputs = ProbeInputs.of(path, signature)
    shown = row_independence(
        lambda rows: subject.call(signature_name, rows, options.call_timeout_s), inputs
    )
    _refuse_dependent(signature_name, shown)
    batches = {size: inputs.take(*range(size)) for size in options.sizes}
    times: dict[int, list[float]] = {size: [] for size in batches}
    end_s = clock.now() + options.budget_s
    for round_index in range(options.max_rounds + 1):
        if round_index > _MIN_ROUNDS and clock.now() >= end_s:
            break
        for size, batch in batches.items():
            begun_s = clock.now()
            outputs = subject.call(signature_name, batch, options.call_timeout_s)
            own_s = subject.last_call_s
            call_s = clock.now() - begun_s if own_s is None else own_s
            if round_index:
                times[size].append(call_s)
                continue
            shown = still_independent(shown, outputs, size, inputs.num_different)
            _refuse_dependent(signature_name, shown)
    return Tuning(
        signature_name,
        {size: statistics.median(each) for size, each in times.items()},
        len(times[1]),
        shown.why,
        inputs.is_authors,
    )


def _refuse_dependent(signature_name: str, shown: RowIndependence) -> None:
    if shown.shown is False:
        raise FailedPrecondition(
            f"signature {signature_name!r} must not be batched, its rows depend on "
            f"each other: {shown.why}"
        )


@dataclass(frozen=True, slots=True)
class RecommendedParameters:
    """Fields of a ``BatchingParameters`` message. Immutable.

    Attributes:
        batch_rows: Rows of a batch: ``max_execution_batch_size``.
        max_request_rows: ``max_batch_size``; larger requests than batches are split.
        max_waiting_batches: ``max_enqueued_batches``.
        allowed_sizes: ``allowed_batch_sizes``; empty unless padding saves time.

    """

    batch_rows: int
    max_request_rows: int
    max_waiting_batches: int
    allowed_sizes: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """Returns the message in text form."""
        return "".join(
            [
                f"max_batch_size {{ value: {self.max_request_rows} }}\n",
                "batch_timeout_micros { value: 0 }\n",
                f"max_enqueued_batches {{ value: {self.max_waiting_batches} }}\n",
                "enable_large_batch_splitting { value: true }\n",
                f"max_execution_batch_size {{ value: {self.batch_rows} }}\n",
                *(f"allowed_batch_sizes: {size}\n" for size in self.allowed_sizes),
            ]
        )


def recommended_parameters(
    call_s_by_rows: Mapping[int, float],
) -> RecommendedParameters:
    """Returns the parameters that measured times recommend.

    Batches are the smallest size within 3 % of the best rows per second: more rows add
    latency and no throughput. Sizes are fixed only if a larger batch was seen to take a
    tenth less time than a smaller one. Then only sizes remain that take no longer than
    any larger one.

    Raises:
        InvalidArgument: Nothing was measured.

    """
    batch_rows = CostTable(call_s_by_rows).best_batch_rows()
    if batch_rows is None:
        raise InvalidArgument("nothing was measured")
    sizes = [size for size in sorted(call_s_by_rows) if size <= batch_rows]
    kept = tuple(
        size
        for size in sizes
        if not any(
            call_s_by_rows[larger] < _CHEAPER * call_s_by_rows[size]
            for larger in sizes
            if larger > size
        )
    )
    return RecommendedParameters(
        batch_rows=batch_rows,
        max_request_rows=max(_MAX_REQUEST_ROWS, batch_rows),
        max_waiting_batches=max(
            _MIN_WAITING_BATCHES, math.ceil(_WAITING_ROWS / batch_rows)
        ),
        allowed_sizes=kept if len(kept) < len(sizes) else (),
    )
