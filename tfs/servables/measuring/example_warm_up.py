"""Calls a version with its example, so that its first callers need not wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tfs.core.clock import Clock
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.servable import Tensors
from tfs.core.signature import Signature
from tfs.servables.measuring.probe_inputs import ProbeInputs
from tfs.servables.measuring.probe_subject import ProbeSubject

log = logging.getLogger(__name__)

TRANSIENT: Final = (DeadlineExceeded, ResourceExhausted, Unavailable)
"""Errors that another moment may not bring: there was no time, or no room."""


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
