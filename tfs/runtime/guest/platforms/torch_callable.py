"""Calls Python objects that take tensors by name: what all platforms have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.core.servable import Tensors
from tfs.core.signature import Signature
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.devices import current_device
from tfs.runtime.guest.guest_model import Output, Value
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.large_outputs import is_large, take_views
from tfs.runtime.guest.platforms.nested_values import FindClass, called_by_name
from tfs.runtime.guest.platforms.signature_call import Function, SignatureCall
from tfs.runtime.guest.torch_tensor import (
    small_view,
    to_torch,
    to_view,
)


@dataclass(frozen=True, slots=True)
class Cuttable:
    """A module that may be computed in stages, and how its inputs are given. Immutable.

    Attributes:
        module: Is called once for a batch.
        positional: Names of the inputs that it takes by position; others are keywords.

    """

    module: nn.Module
    positional: tuple[str, ...] = ()

    def __call__(self, **inputs: Any) -> Any:
        args = [inputs.pop(name) for name in self.positional]
        return self.module(*args, **inputs)


class TorchCallable:
    """One function per signature, whose inputs and outputs are checked.

    A :class:`~tfs.runtime.guest.guest_model.GuestModel` for every platform whose
    models are called with keyword tensors.

    Attributes:
        cuttable: The modules of signatures that may be computed in stages.

    """

    def __init__(
        self,
        source: ModelSource,
        functions: Mapping[str, Function],
        on_close: Callable[[], None] = lambda: None,
        cuttable: Mapping[str, Cuttable] = MappingProxyType({}),
    ) -> None:
        self.cuttable = cuttable
        self._device = source.device
        self._is_on_cpu = source.device == "cpu"
        self._calls = {
            name: SignatureCall(source, name, signature, functions[name])
            for name, signature in source.signatures.items()
        }
        self._source = source
        self._on_close = on_close

    def call(self, signature_name: str, inputs: Tensors) -> dict[str, TensorView]:
        """Runs one signature on views; copies each input and output once, or not at all."""
        call = self._calls.get(signature_name) or self.call_of(signature_name)
        num_rows = num_rows_of(call.signature, inputs)
        # Loops, because a comprehension is a call, and calls are what a small model costs.
        values: dict[str, Value] = {}
        for name, view in inputs.items():
            values[name] = to_torch(view)
        if self._is_on_cpu:
            outputs = call.run(values, num_rows)
        else:
            outputs = self.run(signature_name, values, num_rows)
        small = _small_views(outputs)
        if small is not None:
            return small
        for value in outputs.values():  # an iterator of items would keep the value
            if is_large(value):
                del value
                return take_views(outputs, values)
        views: dict[str, TensorView] = {}
        try:
            for name, value in outputs.items():
                views[name] = (
                    to_view(value) if isinstance(value, torch.Tensor) else value
                )
        except BaseException as error:  # of a class of the model's own
            raise call.unreadable(error) from error
        return views

    def run(
        self, signature_name: str, inputs: Mapping[str, Value], num_rows: int
    ) -> dict[str, Output]:
        """Runs one signature on tensors the model may keep and write to."""
        call = self._calls.get(signature_name) or self.call_of(signature_name)
        if self._is_on_cpu:
            return call.run(inputs, num_rows)
        with current_device(self._device):
            moved = {
                name: value.to(self._device, non_blocking=True)
                if isinstance(value, torch.Tensor)
                else value
                for name, value in inputs.items()
            }
            return call.run(moved, num_rows)

    def close(self) -> None:
        """Drops the model; idempotent."""
        self._calls = {}
        self.cuttable = {}
        self._on_close()
        self._on_close = lambda: None

    def call_of(self, name: str) -> SignatureCall:
        """Returns what runs a signature.

        Raises:
            FailedPrecondition: There is no such signature.

        """
        call = self._calls.get(name)
        if call is None:
            raise FailedPrecondition(
                f"{self._source.id.slashed} has no signature {name!r}; "
                f"it has: {', '.join(self._calls) or 'none, it is unloaded'}"
            )
        return call


def _small_views(outputs: Mapping[str, Output]) -> dict[str, TensorView] | None:
    """Returns copies of outputs that are small and plain; None if one is not."""
    views: dict[str, TensorView] = {}
    for name, value in outputs.items():
        view = small_view(value) if isinstance(value, torch.Tensor) else value
        if view is None:
            return None
        views[name] = view
    return views


def num_rows_of(signature: Signature, inputs: Tensors) -> int:
    """Returns dimension 0 of the inputs, 1 where there is no batch.

    An input with a default counts only if it was sent and no other input counts: a
    default stands for every row, and so does a single row that was sent in its place.
    """
    num_rows = 1
    if signature.batched:
        defaults = signature.defaults
        for name, view in inputs.items():
            if not view.shape:
                continue
            if name not in defaults:
                return view.shape[0]
            if num_rows == 1 and view is not defaults[name]:
                num_rows = view.shape[0]
    return num_rows


def no_classes(module: str, name: str) -> Function:
    """Refuses a class: a version without code of its own has none.

    Raises:
        InvalidArgument: Always.

    """
    raise InvalidArgument(
        f"arguments of the class {name} of {module} are made for torch_package only"
    )


def methods_of(
    source: ModelSource, target: object, find_class: FindClass = no_classes
) -> dict[str, Function]:
    """Returns the function of each signature: entry "methods", else the call itself.

    Each takes the signature's inputs by name, whatever containers its method wants.

    Raises:
        InvalidArgument: A method is missing, or the object cannot be called.

    """
    methods = source.texts("methods")
    functions: dict[str, Function] = {}
    for name in source.signatures:
        method = methods.get(name, "forward")
        # A module is called itself, so that its hooks run as in training.
        function = target if method == "forward" else getattr(target, method, None)
        if not callable(function):
            raise InvalidArgument(
                f"{source.id.slashed}: signature {name!r} needs a method {method!r}, "
                f"which {type(target).__name__} does not have"
            )
        functions[name] = called_by_name(source, name, function, find_class)
    return functions


def called_modules(source: ModelSource, target: object) -> dict[str, Cuttable]:
    """Returns the signatures for which ``target`` is a module that is called itself.

    Without containers of tensors: they would have to be put together in each stage.
    """
    if not isinstance(target, nn.Module):
        return {}
    methods = source.texts("methods")
    apart: set[object] = set()
    for names in map(source.entry.get, ("arguments", "flattened")):
        apart |= set(names) if isinstance(names, dict | list | tuple) else set()
    return {
        name: Cuttable(target)
        for name in source.signatures
        if methods.get(name, "forward") == "forward" and name not in apart
    }
