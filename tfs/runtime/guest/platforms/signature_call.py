"""The function of one signature: calls it, and checks that it keeps the signature's promise.

What a model returns may be anything: a tensor, a tuple, a mapping of its own class, or
numbers. Whatever is wrong with it, and whatever it raises when it is read, becomes an
error that names the version, the signature and the output.

Arrays, numbers and lists of them become tensors. Where that cannot be done, the author of
the model reads what the value is and what to return in its place.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

import torch

from tfs.core.dtype import DTYPES, STRING
from tfs.core.errors import Internal, InvalidArgument, ServingError
from tfs.core.signature import FREE, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.faults import is_out_of_memory, one_line
from tfs.runtime.guest.guest_model import Output, Value
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.own_process import random_repeats
from tfs.runtime.guest.torch_tensor import TORCH_DTYPES, flatten

log = logging.getLogger(__name__)


def tensor_of(value: object, dtype: torch.dtype) -> torch.Tensor:
    """Returns a value as a tensor; arrays keep their dtype, plain numbers take this one.

    Raises:
        Exception: It is nothing of the kind.

    """
    if not hasattr(value, "__array__"):
        return torch.as_tensor(value, dtype=dtype)
    try:
        return torch.as_tensor(value)
    except (ValueError, TypeError, RuntimeError):
        # A view that runs backwards, a dtype in the byte order of another machine, or an
        # object that only knows how to become an array.
        array = value.__array__()
        return torch.as_tensor(array.astype(array.dtype.newbyteorder("="), copy=True))


def what_it_is(value: object) -> str:
    """Returns what a value is that makes no tensor, and what to return instead if known."""
    kind = f"a {type(value).__name__}"
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        return f"{kind} of {dtype}"
    if value is None:
        return "None"
    if inspect.isawaitable(value):
        return f"{kind} that nothing awaits"
    if isinstance(value, Iterator):
        return f"{kind} (return a list of what it yields)"
    if isinstance(value, list | tuple):
        if any(isinstance(each, torch.Tensor) for each in value):
            return f"{kind} of tensors (torch.stack makes one of them)"
        lengths = {len(each) for each in value if isinstance(each, list | tuple)}
        if len(lengths) > 1:
            sizes = " and ".join(map(str, sorted(lengths)[:2]))
            return f"{kind} whose rows differ in length ({sizes}; pad them)"
        odd = next((e for e in _leaves(value) if not isinstance(e, int | float)), None)
        return f"{kind} with a {type(odd).__name__}" if odd is not None else kind
    return kind


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


Function: TypeAlias = Callable[..., object]


class SignatureCall:
    """A function with its signature's checks, made once per load.

    As thread-safe as the function: it keeps nothing of a call.

    Attributes:
        signature: The signature.

    Args:
        source: The version, for messages.
        name: The signature's name.
        signature: What the function promises.
        function: Takes the signature's inputs by name.

    """

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
        except BaseException as error:  # a model's sys.exit() must not end its thread
            fault = self.fault(error, num_rows)
            if fault is error:
                raise
            raise fault from error
        return self.of_result(result, num_rows)

    def fault(self, error: BaseException, num_rows: int) -> ServingError:
        """Returns what a call fails with whose function raised ``error``."""
        if isinstance(error, ServingError):
            if self._who in error.message:
                return error
            return type(error)(f"{self._who}: {error.message}")
        if is_out_of_memory(error):
            return Internal(f"{self._who} ran out of memory: {one_line(error)}")
        if not num_rows:
            return InvalidArgument(
                f"{self._who} takes no request without rows: {one_line(error)}"
            )
        self._failures.note(error)
        return Internal(f"{self._who} failed: {one_line(error)}")

    def of_result(self, result: object, num_rows: int) -> dict[str, Output]:
        """Checks what the function returned against the signature; returns the outputs."""
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
        try:
            return tensor_of(value, TORCH_DTYPES[spec.dtype])
        except Exception as error:
            raise Internal(
                f"{self._who}, output {name!r} is {what_it_is(value)}, not a tensor"
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
            and (
                not self.signature.batched
                or tuple(output.shape[:1]) == tuple(wanted[:1])
            )
            and spec.dtype.name == dtype
        ):
            text += "; if a size depends on values, declare that dimension free (-1)"
        if wanted == list(output.shape):
            text += f"; return it as {spec.dtype}"
            if dtype in DTYPES:
                text += f", or say {dtype} in the signature"
        return Internal(text) if num_rows else InvalidArgument(text)


def _fixed_inner(signature: Signature, spec: TensorSpec) -> tuple[int, ...] | None:
    """Returns the sizes of a row; None if they may vary or there are no rows."""
    if not signature.batched or not spec.shape or FREE in spec.shape[1:]:
        return None
    return spec.shape[1:]


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


_MAX_TOLD: Final = 8


_MAX_FRAMES: Final = 8  # the innermost frames; a recursion has thousands


# Other frames say little about the model: torch's own on the way to a forward, and ours.
_OTHERS: Final = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep,
)


class FailedCalls:
    """The failures of one signature that were logged. Thread-safe.

    Callers are told only what failed; where in the model's code is logged. Callers decide how
    often a model fails, so each place is logged only once, and only a few places in all. A
    worker has no log of its own: what it writes goes to the server's standard error.

    While a version is measured, its callers are ours, and the inputs often made up. That
    some of these fail is no news to an operator, so it is told apart, as information.

    Args:
        servable: Name and version, as the log has them.
        signature: Which one.

    """

    __slots__ = ("_servable", "_signature", "_told")

    def __init__(self, servable: str, signature: str) -> None:
        self._servable = servable
        self._signature = signature
        self._told: set[tuple[type[BaseException], str]] = set()

    def note(self, error: BaseException) -> None:
        """Logs a failure, unless one of its kind was logged for the same place before."""
        if random_repeats():
            log.info(
                "event=probe_call_failed servable=%s signature=%s error=%r at=%r",
                self._servable,
                self._signature,
                one_line(error),
                places_of(error),
            )
            return
        if len(self._told) >= _MAX_TOLD:
            return
        place = places_of(error)
        if (type(error), place) in self._told:
            return
        self._told.add((type(error), place))
        log.warning(
            "event=call_failed servable=%s signature=%s error=%r at=%r",
            self._servable,
            self._signature,
            one_line(error),
            place,
        )


def places_of(error: BaseException) -> str:
    """Returns where in a model's own code an error was raised, the outermost call first."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        file = code.co_filename
        if file.startswith("<torch_package_"):
            file = file.partition(">.")[2]
        if not file.startswith(_OTHERS):
            places.append(f"{file}:{trace.tb_lineno} in {code.co_name}")
        trace = trace.tb_next
    return " > ".join(places[-_MAX_FRAMES:])
