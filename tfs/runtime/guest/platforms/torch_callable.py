"""Calls Python objects that take tensors by name: what all platforms have in common.

Large outputs are returned as views of the model's memory, if nobody else can write there.
A copy of an image costs as much as receiving it did. It is not needed if the model does
not hold the tensor any more, which Python and torch can tell: they count the references
to a tensor and to its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from sys import getrefcount
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn

from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.core.servable import Tensors
from tfs.core.signature import Signature
from tfs.core.tensor_view import LARGE_BYTES, TensorView
from tfs.runtime.guest.guest_model import Output, Value, current_device
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.own_process import seed_random
from tfs.runtime.guest.platforms.module_call import FindClass, called_by_name
from tfs.runtime.guest.platforms.signature_call import Function, SignatureCall
from tfs.runtime.guest.torch_tensor import (
    DTYPE_OF,
    small_view,
    to_torch,
    to_view,
)

_LARGEST_WASTE: Final = 2
"""Most bytes of memory that a view may keep alive for each of its own bytes."""

# These functions are private to torch. If they are missing, everything is copied.
_num_owners: Callable[[torch.Tensor], int] | None = getattr(
    torch.Tensor, "_use_count", None
)
_num_users: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


def is_large(value: Output) -> bool:
    """Tells whether an output is large enough to check who else refers to it."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided  # other layouts have no such size
        and value.nbytes >= LARGE_BYTES
    )


def take_views(
    outputs: dict[str, Output], inputs: dict[str, Value]
) -> dict[str, TensorView]:
    """Empties both dictionaries and returns views of what was put out.

    The elements of an output are copied, unless they are many and nobody else can
    change them: the model kept neither the tensor nor another one over its memory, and
    that memory is torch's own or was given to the model as one of ``inputs``. Then the
    view uses the tensor's memory and keeps it alive.
    """
    addresses = [
        value.data_ptr() for value in inputs.values() if isinstance(value, torch.Tensor)
    ]
    inputs.clear()
    return {name: _take(outputs, name, addresses) for name in tuple(outputs)}


def _take(
    outputs: dict[str, Output], name: str, addresses: Collection[int]
) -> TensorView:
    value = outputs.pop(name)
    if isinstance(value, TensorView):
        return value
    if not is_large(value) or getrefcount(value) != _ONE_VARIABLE:
        return to_view(value)
    if not _is_sole(value, addresses):
        return to_view(value)
    elements = value.view(torch.uint8).numpy().data.cast("B")
    return TensorView(
        DTYPE_OF[value.dtype],
        tuple(value.shape),
        elements.toreadonly(),
    )


def _is_sole(tensor: torch.Tensor, addresses: Collection[int]) -> bool:
    """Tells whether only this tensor, and torch, refer to the tensor's memory."""
    if (
        _num_owners is None
        or _num_users is None
        or _num_owners(tensor) != 1  # a compiled model may refer to it as well
        or not tensor.is_cpu
        or not tensor.is_contiguous()
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.requires_grad
    ):
        return False
    storage = tensor.untyped_storage()
    return (
        _num_users(storage._cdata) == 2  # ``tensor`` and ``storage``
        # torch cannot resize memory of others, such as numpy's arrays and mapped files.
        and (storage.resizable() or storage.data_ptr() in addresses)
        and not storage.is_shared()
        and storage.nbytes() <= _LARGEST_WASTE * tensor.nbytes
    )


def _count_one_variable() -> int:
    value = object()
    return getrefcount(value)


_ONE_VARIABLE: Final = _count_one_variable()


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

    def seed(self, seed: int | None) -> None:
        """Sets this process's random numbers."""
        seed_random(seed)

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
