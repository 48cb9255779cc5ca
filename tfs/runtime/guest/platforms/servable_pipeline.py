"""What a class in a file does with a request: validate, preprocess, predict, postprocess."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tfs.core.errors import InvalidArgument, InvalidItems, ServingError
from tfs.core.signature import Signature
from tfs.runtime.guest.faults import one_line
from tfs.runtime.guest.platforms.module_call import check_parameters, check_returns

Step = Callable[..., Any]


def pipeline(servable: object, predict: Step, signature: Signature, who: str) -> Step:
    """Returns validate, preprocess, predict and postprocess as one call.

    ``validate`` gets one row at a time; so do ``preprocess`` and ``postprocess`` of a
    class with ``per_item = True``. Whatever ``validate``, or a ``preprocess`` by row,
    raises is the fault of that row: only the request that it came with fails.

    Raises:
        InvalidArgument: A step cannot be called with the signature's inputs.

    """
    validate = getattr(servable, "validate", None) if signature.batched else None
    preprocess = getattr(servable, "preprocess", None)
    postprocess = getattr(servable, "postprocess", None)
    if validate is not None:
        check_parameters(validate, signature.inputs.keys() - signature.defaults, who)
    check_parameters(preprocess or predict, signature.inputs, who)
    if postprocess is None:
        check_returns(predict, who)
    if getattr(servable, "per_item", False):
        if not signature.batched:
            raise InvalidArgument(f"{who}: per_item needs rows, and it is not batched")
        preprocess = preprocess and _prepared_by_row(preprocess, signature, who)
        postprocess = postprocess and _finished_by_row(postprocess)

    def call(**inputs: Any) -> object:
        if validate is not None:
            _each_row(validate, inputs, signature, who)
        if preprocess is not None:
            inputs = _by_name(preprocess(**inputs))
        outputs = predict(**inputs)
        if postprocess is not None:
            outputs = postprocess(outputs)
        return _by_field(outputs, signature)

    return call


def _each_row(
    step: Step, inputs: Mapping[str, Any], signature: Signature, who: str, **same: Any
) -> list[Any]:
    """Passes every row to ``step`` and returns its results.

    Args:
        step: Takes the inputs that have rows by name.
        inputs: The inputs of all rows; those with a default are settings of the call.
        signature: Says which inputs have a default.
        who: The servable and its signature, for messages.
        same: Handed over with each row.

    Raises:
        InvalidItems: Names every refused row.

    """
    rows = {n: value for n, value in inputs.items() if n not in signature.defaults}
    num_rows = len(next(iter(rows.values()))) if rows else 0
    results = []
    wrong = {}
    for row in range(num_rows):
        item = {name: value[row] for name, value in rows.items()}
        try:
            results.append(step(**item, **same))
        except ServingError as error:
            wrong[row] = error.message
        except ValueError as error:
            wrong[row] = str(error) or "refused without a reason"
        except Exception as error:
            wrong[row] = one_line(error)
    if wrong:
        raise InvalidItems(wrong, who)
    return results


def _prepared_by_row(preprocess: Step, signature: Signature, who: str) -> Step:
    def prepare(**inputs: Any) -> dict[str, object]:
        settings = {n: v for n, v in inputs.items() if n in signature.defaults}
        items = _each_row(preprocess, inputs, signature, who, **settings)
        if not items:
            raise InvalidArgument(f"{who}: there is no row to prepare")
        rows = [_by_name(item) for item in items]
        return {name: _together([row[name] for row in rows]) for name in rows[0]}

    return prepare


def _finished_by_row(postprocess: Step) -> Step:
    def finish(outputs: object) -> object:
        items = [postprocess(item) for item in _rows_of(outputs)]
        if not items or not isinstance(items[0], Mapping):
            return _together(items)
        return {name: _together([item[name] for item in items]) for name in items[0]}

    return finish


def _rows_of(outputs: Any) -> Iterator[object]:
    """Yields what ``predict`` returned, row by row, in the same form."""
    if isinstance(outputs, Mapping):
        for values in zip(*outputs.values(), strict=True):
            yield dict(zip(outputs, values, strict=True))
    elif isinstance(outputs, tuple):
        yield from zip(*outputs, strict=True)
    else:
        yield from outputs


def _together(values: Sequence[Any]) -> object:
    """Returns tensors of one shape as one tensor, anything else as a list."""
    tensors = [each for each in values if isinstance(each, torch.Tensor)]
    if len(tensors) == len(values) and len({each.shape for each in tensors}) == 1:
        return torch.stack(tensors)
    return list(values)


def _by_field(outputs: object, signature: Signature) -> object:
    """Returns a named tuple or dataclass by its fields, if these are the outputs' names.

    Other results are returned as they are: those of a tuple count by position.
    """
    if isinstance(outputs, dict | torch.Tensor):  # nearly all are
        return outputs
    names = getattr(outputs, "_fields", None) if isinstance(outputs, tuple) else None
    if names is None and dataclasses.is_dataclass(outputs):
        names = [each.name for each in dataclasses.fields(outputs)]
    if names is None or not signature.outputs.keys() <= {*names}:
        return outputs
    return {name: getattr(outputs, name) for name in signature.outputs}


def _by_name(inputs: Any) -> dict[str, Any]:
    try:
        return dict(inputs)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"preprocess returned a {type(inputs).__name__}; it returns a dict, with the "
            "arguments of predict by name"
        ) from error
