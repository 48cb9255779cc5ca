"""Finds a signature by calling the module instead of asking the author.

A second call with another number of rows shows that dimension 0 really is the batch. A
third call with other sizes shows which dimensions of outputs depend on the free ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

import torch
from torch import nn

from tfs.core.errors import InvalidArgument
from tfs.export.signatures.module_calls import ModuleCalls
from tfs.export.signatures.named_inputs import name_inputs
from tfs.export.signatures.observed_signature import observed_signature
from tfs.export.signatures.signature import (
    Derived,
    Signature,
    check_batch,
    check_defaults,
    check_dynamic,
    check_length_of,
    check_names,
    check_rows,
)
from tfs.export.values import Value, Values, first_row, joined, shape_of
from tfs.runtime.guest.faults import one_line

log = logging.getLogger(__name__)


def derive(module: nn.Module, options: Signature) -> Derived:
    """Calls the module (which is in evaluation mode) and returns its signature.

    Each call is made on a copy, so that none sees what another did to the state.

    Raises:
        InvalidArgument: The call fails, its result cannot be served, or the options
            do not fit it; says what to change.

    """
    where = f"{type(module).__name__}.{options.call}"
    function = getattr(module, options.call, None)
    # nn.Module has a function in place of a forward, if nobody wrote one.
    is_absent = getattr(function, "__func__", None) is nn.Module.forward
    if not callable(function) or is_absent:
        raise InvalidArgument(f"{where} does not exist: a server would call it")
    check_defaults(options, where)
    example, forms = name_inputs(
        function, options.example_inputs, where, options.defaults
    )
    left_out = options.defaults.keys() - example.keys()
    for name, value in options.defaults.items():
        example.setdefault(name, value)
    check_names(options, example, where)
    calls = ModuleCalls(module, options, forms)
    outputs = calls.first(example)
    check_dynamic(options, example, outputs, where)
    check_length_of(options, outputs, where)
    observed = [outputs]
    if options.batched:
        rows = check_rows(example, outputs, options, where)
        batch = _with_rows(example, rows, options, left_out)
        example, outputs, other = _two_rows(calls, example, outputs, rows, batch)
        if other is None:
            raise InvalidArgument(
                f"{where} fails with another number of rows than its example's "
                f"{rows}; give an example whose dimension 0 is the batch, or pass "
                f"batched=False. It fails with {one_line(calls.last_error)}"
            )
        observed = [outputs, other]
        check_batch(outputs, other, where)
    unsure = False
    if any(options.dynamic.get(name) for name in example):
        resized = _other_sizes(calls, example, options)
        unsure = resized is None
        observed += [] if resized is None else [resized]
    return Derived(
        observed_signature(example, observed, options, where, unsure=unsure),
        example,
        outputs,
        forms,
        is_nested=calls.is_nested,
        is_own_type=calls.is_own_type,
    )


def _with_rows(
    example: Values, rows: int, options: Signature, left_out: AbstractSet[str]
) -> list[str]:
    """Returns the inputs that have as many rows as the batch.

    An input with a default is among them if the author's example of it has several
    rows; from a single row nobody could tell.
    """
    return [
        name
        for name, value in example.items()
        if name not in options.defaults
        or (name not in left_out and rows > 1 and shape_of(value)[:1] == (rows,))
    ]


def _two_rows(
    calls: ModuleCalls,
    example: Values,
    outputs: Values,
    rows: int,
    batch: Sequence[str],
) -> tuple[Values, Values, Values | None]:
    """Returns an example of at least two rows, its outputs, and those of another size.

    If only one row is given, a second is made from it by moving its elements around, so
    that every value is one that the author used. If the model refuses that, the row is
    repeated. ``batch`` names the inputs that have rows. The last result is None if no
    other number of rows works.
    """
    if rows > 1:
        first = {n: first_row(example[n]) for n in batch}
        other = calls.attempt({**example, **first})
        is_told = other is None and isinstance(calls.last_error, InvalidArgument)
        # For example, a variance over the batch needs two rows.
        if other is None and not is_told:
            more = {n: joined(example[n], first[n]) for n in batch}
            other = calls.attempt({**example, **more})
            if other is not None:
                log.warning(
                    "event=single_rows_fail error=%s: who sends one row will get it",
                    one_line(calls.last_error),
                )
        return example, outputs, other
    moved, repeated = (
        {
            name: joined(value, second(value)) if name in batch else value
            for name, value in example.items()
        }
        for second in (_moved, lambda row: row)
    )
    result = calls.attempt(moved)
    if result is not None and _as_finite(result, outputs):
        return moved, result, outputs
    result = calls.attempt(repeated)
    if result is not None:
        return repeated, result, outputs
    return example, outputs, None


def _moved(row: Value) -> Value:
    if not isinstance(row, torch.Tensor):
        return row
    return row.reshape(-1).roll(1).reshape(row.shape)


def _as_finite(result: Values, outputs: Values) -> bool:
    """Whether every value that was finite before is still finite."""
    return all(
        _is_finite(result[name]) or not _is_finite(value)
        for name, value in outputs.items()
    )


def _is_finite(value: Value) -> bool:
    return not isinstance(value, torch.Tensor) or bool(torch.isfinite(value).all())


def _other_sizes(
    calls: ModuleCalls,
    example: Values,
    options: Signature,
) -> Values | None:
    """Returns the outputs for smaller dynamic dimensions; None if no other size worked."""
    shorter: list[Callable[[int], int]] = [
        lambda size: size - 1,
        lambda size: size // 2,
    ]
    for shorten in shorter:
        smaller = dict(example)
        for name, dimensions in options.dynamic.items():
            for dimension in dimensions if name in example else ():
                value = smaller[name]
                if not isinstance(value, torch.Tensor):
                    continue
                size = shorten(value.shape[dimension])
                if size > 0:
                    smaller[name] = value.narrow(dimension, 0, size)
        result = calls.attempt(smaller)
        if result is not None:
            return result
    log.warning(
        "event=dynamic_sizes_untested the model took no other size than its "
        "example's; every inner output dimension is declared free"
    )
    return None
