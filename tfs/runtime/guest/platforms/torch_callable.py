"""Calls Python objects that take tensors by name: what all platforms have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch

from tfs.core.dtype import DTYPES, STRING
from tfs.core.errors import FailedPrecondition, Internal, InvalidArgument, ServingError
from tfs.core.servable import Tensors
from tfs.core.signature import FREE, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.devices.current_device import current_device
from tfs.runtime.guest.fast_layers.module_call import module_call
from tfs.runtime.guest.guest_model import Output, Value, one_line
from tfs.runtime.guest.memory_exhaustion import is_out_of_memory
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.failed_calls import FailedCalls
from tfs.runtime.guest.platforms.large_outputs import is_large, take_views
from tfs.runtime.guest.platforms.nested_values import FindClass, called_by_name
from tfs.runtime.guest.torch_tensor import (
    TORCH_DTYPES,
    flatten,
    small_view,
    to_torch,
    to_view,
)

Function: TypeAlias = Callable[..., object]


class TorchCallable:
    """One function per signature, whose inputs and outputs are checked.

    A :class:`~tfs.runtime.guest.guest_model.GuestModel` for every platform whose
    models are called with keyword tensors.
    """

    def __init__(
        self,
        source: ModelSource,
        functions: Mapping[str, Function],
        written_pages: Callable[[], int] = lambda: 0,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._device = source.device
        self._is_on_cpu = source.device == "cpu"
        self._calls = {
            name: _SignatureCall(source, name, signature, functions[name])
            for name, signature in source.signatures.items()
        }
        self._source = source
        self._written_pages = written_pages
        self._on_close = on_close

    def call(self, signature_name: str, inputs: Tensors) -> dict[str, TensorView]:
        """Runs one signature on views; copies each input and output once, or not at all."""
        call = self._calls.get(signature_name) or self._call_of(signature_name)
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
        call = self._calls.get(signature_name) or self._call_of(signature_name)
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

    def num_written_pages(self) -> int:
        """Returns how many pages of shared weights this model made its own."""
        return self._written_pages()

    def close(self) -> None:
        """Drops the model; idempotent."""
        self._calls = {}
        self._on_close()
        self._on_close = lambda: None
        self._written_pages = lambda: 0

    def _call_of(self, name: str) -> _SignatureCall:
        call = self._calls.get(name)
        if call is None:
            raise FailedPrecondition(
                f"{self._source.id.slashed} has no signature {name!r}; "
                f"it has: {', '.join(self._calls) or 'none, it is unloaded'}"
            )
        return call


class _SignatureCall:
    """A function with its signature's checks, made once per load."""

    __slots__ = (
        "_failures",
        "_function",
        "_only",
        "_outputs",
        "_unbatched",
        "_who",
        "signature",
    )

    def __init__(
        self, source: ModelSource, name: str, signature: Signature, function: Function
    ) -> None:
        self.signature = signature
        self._who = f"{source.id.slashed}, signature {name!r}"
        self._failures = FailedCalls(source.id.slashed, name)
        self._function = function
        self._unbatched = not signature.batched
        self._only = (
            next(iter(signature.outputs)) if len(signature.outputs) == 1 else None
        )
        self._outputs = tuple(
            (
                output,
                spec,
                TORCH_DTYPES.get(spec.dtype),
                len(spec.shape),
                _fixed_inner(signature, spec),
            )
            for output, spec in signature.outputs.items()
        )

    def run(self, inputs: Mapping[str, Value], num_rows: int) -> dict[str, Output]:
        """Calls the function, checks its outputs against the signature, and returns them."""
        try:
            result = self._function(**inputs)
        except ServingError as error:
            if self._who in error.message:
                raise
            raise type(error)(f"{self._who}: {error.message}") from error
        except BaseException as error:  # a model's sys.exit() must not end its thread
            if is_out_of_memory(error):
                raise Internal(
                    f"{self._who} ran out of memory: {one_line(error)}"
                ) from error
            self._failures.note(error)
            raise Internal(f"{self._who} failed: {one_line(error)}") from error
        named: Mapping[str, object]
        try:
            if type(result) is dict:
                named = result
            elif self._only is not None and type(result) is torch.Tensor:
                named = {self._only: result}  # to ask what else it may be takes longer
            else:
                named = self._named(result)
            return self._checked(named, num_rows)
        except ServingError:
            raise
        except BaseException as error:  # of a class of the model's own
            raise self.unreadable(error) from error

    def unreadable(self, error: BaseException) -> Internal:
        """Returns the error for outputs that cannot be read, and why."""
        return Internal(f"{self._who} returned what cannot be read: {one_line(error)}")

    def _named(self, result: object) -> Mapping[str, object]:
        """Returns outputs by name: a mapping as it is, others by position."""
        if isinstance(result, Mapping):
            return result
        names = self.signature.outputs
        if len(names) == 1 and not (
            isinstance(result, tuple) and len(result) == 1 and _is_tensor(result[0])
        ):
            return {next(iter(names)): result}
        if not isinstance(result, tuple | list):
            raise Internal(
                f"{self._who} returned one {type(result).__name__} for the outputs "
                f"{', '.join(names)}; return a dict or a tuple"
            )
        if len(result) != len(names):
            raise Internal(
                f"{self._who} returned {len(result)} values for "
                f"{len(names)} outputs: {', '.join(names)}"
            )
        return dict(zip(names, result, strict=True))

    def _checked(self, named: Mapping[str, object], num_rows: int) -> dict[str, Output]:
        outputs: dict[str, Output] = {}
        for name, spec, torch_dtype, rank, inner in self._outputs:
            try:
                value = named[name]
            except KeyError:
                raise Internal(
                    f"{self._who} did not return output {name!r}; "
                    f"it returned: {', '.join(map(str, named)) or 'nothing'}"
                ) from None
            if (
                inner is not None
                and type(value) is torch.Tensor
                and value.dtype is torch_dtype
                and value.shape == (num_rows, *inner)
            ):
                outputs[name] = value  # nearly all are like this
                continue
            output = self._output(name, spec, value)
            shape = output.shape
            if (
                (torch_dtype is not None and output.dtype is not torch_dtype)
                or len(shape) != rank
                or not self._fits(shape, spec, num_rows)
            ):
                raise self._misfit(name, spec, output, num_rows)
            outputs[name] = output
        return outputs

    def _output(self, name: str, spec: TensorSpec, value: object) -> Output:
        if spec.dtype is STRING:
            try:
                strings = flatten(value)
                missing = spec.shape[len(strings.shape) :]
                if missing and not strings.data:
                    # Empty lists cannot say how long the lists in them would be.
                    inner = tuple(0 if size == FREE else size for size in missing)
                    strings = TensorView(STRING, (*strings.shape, *inner), ())
                return strings
            except (TypeError, ValueError) as error:
                raise Internal(f"{self._who}, output {name!r}: {error}") from error
        if isinstance(value, torch.Tensor):
            return value
        try:  # numpy arrays keep their dtype, plain numbers take the signature's
            if hasattr(value, "__array__"):
                try:
                    return torch.as_tensor(value)
                except ValueError:  # a view of an array that runs backwards
                    return torch.as_tensor(value.__array__().copy())
            return torch.as_tensor(value, dtype=TORCH_DTYPES[spec.dtype])
        except Exception as error:
            raise Internal(
                f"{self._who}, output {name!r} is a {type(value).__name__}, "
                "not a tensor"
            ) from error

    def _fits(self, shape: tuple[int, ...], spec: TensorSpec, num_rows: int) -> bool:
        if self._unbatched:
            return spec.accepts(shape)
        if not shape or shape[0] != num_rows:
            return False
        return all(
            wanted in (FREE, size)
            for size, wanted in zip(shape[1:], spec.shape[1:], strict=True)
        )

    def _misfit(
        self, name: str, spec: TensorSpec, output: Output, num_rows: int
    ) -> ServingError:
        dtype = str(output.dtype).removeprefix("torch.")
        wanted = list(spec.shape)
        if self.signature.batched and wanted:
            wanted[0] = num_rows
        text = (
            f"{self._who}: output {name!r} is {dtype}{list(output.shape)}, its "
            f"signature promises {spec.dtype}{wanted}"
        )
        if (
            len(wanted) == len(output.shape)
            and tuple(output.shape[:1]) == tuple(wanted[:1])
            and spec.dtype.name == dtype
        ):
            text += "; if a size depends on values, declare that dimension free (-1)"
        if wanted == list(output.shape):
            text += f"; return it as {spec.dtype}"
            if dtype in DTYPES:
                text += f", or say {dtype} in the signature"
        return Internal(text)


def _small_views(outputs: Mapping[str, Output]) -> dict[str, TensorView] | None:
    """Returns copies of outputs that are small and plain; None if one is not."""
    views: dict[str, TensorView] = {}
    for name, value in outputs.items():
        view = small_view(value) if isinstance(value, torch.Tensor) else value
        if view is None:
            return None
        views[name] = view
    return views


def _fixed_inner(signature: Signature, spec: TensorSpec) -> tuple[int, ...] | None:
    """Returns the sizes of a row; None if they may vary or there are no rows."""
    if not signature.batched or not spec.shape or FREE in spec.shape[1:]:
        return None
    return spec.shape[1:]


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
        if isinstance(function, torch.nn.Module):
            function = module_call(function)
        if not callable(function):
            raise InvalidArgument(
                f"{source.id.slashed}: signature {name!r} needs a method {method!r}, "
                f"which {type(target).__name__} does not have"
            )
        functions[name] = called_by_name(source, name, function, find_class)
    return functions


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
