"""Calls an author's module; names what it returns, and checks that it is the same each time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tfs.core.dtype import STRING
from tfs.core.errors import InvalidArgument
from tfs.core.signature import Method
from tfs.export.checking.check_advice import GRADIENTS
from tfs.export.module_copy import to_call
from tfs.export.signatures.signature import Signature
from tfs.export.values import (
    Value,
    Values,
    as_strings,
    dtype_of,
    from_array,
    from_numbers,
    is_strings,
    shape_of,
)
from tfs.runtime.guest.platforms.module_call import (
    Form,
    leaves,
    module_call,
    nesting,
    parts_of,
)


def name_outputs(
    result: object, names: Sequence[str] | None, single: str, where: str
) -> Values:
    """Returns the outputs of a call by name.

    Args:
        result: A tensor, a tuple or list of tensors, a mapping or a dataclass, nested
            to any depth; strings as lists. Values within containers are named by the
            way to them, with dots; None is left out.
        names: The author's names; for a mapping, the entries to serve.
        single: The name of one unnamed tensor.
        where: What was called, for messages.

    Raises:
        InvalidArgument: It is none of these, or the names do not fit.

    """
    parts = parts_of(result)
    if isinstance(result, Mapping):
        odd = [key for key in result if not isinstance(key, str)]
        if odd and names is None:
            raise InvalidArgument(
                f"{where} returns a dict with the key {odd[0]!r}; outputs are named by "
                "strings"
            )
    if parts is None:
        if names is not None and len(names) != 1:
            raise InvalidArgument(
                f"{where} returns 1 output, output_names has {len(names)}: "
                f"{', '.join(names)}"
            )
        named = [(single if names is None else names[0], result)]
    elif isinstance(result, tuple | list):
        named = _by_position(result, parts, names, single, where)
    else:
        named = _by_key(parts, names, where)
    outputs: Values = {}
    for name, value in named:
        if name in outputs:
            raise InvalidArgument(
                f"{where} returns two outputs that are called {name!r}; name them in "
                "output_names, or return other keys"
            )
        outputs[name] = _output(name, value, where)
    if not outputs:
        raise InvalidArgument(
            f"{where} returns {type(result).__name__} without a tensor; return a "
            "tensor, a tuple of tensors or a dict from name to tensor"
        )
    return outputs


def _by_position(
    result: Sequence[object],
    parts: list[tuple[str, object]],
    names: Sequence[str] | None,
    single: str,
    where: str,
) -> list[tuple[str, object]]:
    has_fields = hasattr(result, "_fields")
    given = [(key, part) for key, part in parts if part is not None]
    if names is not None:
        if len(names) == len(parts):
            given = parts
        if len(names) != len(given) or len(set(names)) != len(names):
            raise InvalidArgument(
                f"{where} returns {len(given)} outputs, output_names has "
                f"{len(names)}: {', '.join(names)}"
            )
        own = list(names)
    elif has_fields:
        own = [key for key, _ in given]
    elif len(given) == 1:
        own = [single]
    else:
        own = [f"output_{key}" for key, _ in given]
    return [
        leaf
        for name, (_, part) in zip(own, given, strict=True)
        for leaf in leaves(name, part)
    ]


def _by_key(
    parts: list[tuple[str, object]], names: Sequence[str] | None, where: str
) -> list[tuple[str, object]]:
    """Returns the entries of a dict that the author wants, in that order, or all."""
    found = [leaf for key, part in parts for leaf in leaves(key, part)]
    if names is None:
        return found
    wanted = [
        leaf
        for name in names
        for leaf in found
        if leaf[0] == name or leaf[0].startswith(f"{name}.")
    ]
    missing = [
        name
        for name in names
        if not any(f"{leaf}.".startswith(f"{name}.") for leaf, _ in wanted)
    ]
    if missing:
        raise InvalidArgument(
            f"{where} returns {', '.join(repr(leaf) for leaf, _ in found)}, not "
            f"{', '.join(map(repr, missing))}"
        )
    return wanted


def is_nested(result: object, outputs: Values) -> bool:
    """Whether a server has to make a call's result flat to find its outputs in it."""
    parts = parts_of(result)
    if parts is None:
        return False
    if isinstance(result, tuple | list):
        return len(parts) != len(outputs) or any(
            parts_of(part) is not None for _, part in parts
        )
    return not isinstance(result, Mapping) or not outputs.keys() <= result.keys()


def _output(name: str, value: object, where: str) -> Value:
    value = from_array(value)
    if is_strings(value):
        return as_strings(value)
    if isinstance(value, torch.Tensor) and value.is_nested:
        raise InvalidArgument(
            f"output {name!r} of {where} is a nested tensor, which clients cannot "
            "read; return torch.nested.to_padded_tensor(...) and the lengths"
        )
    if isinstance(value, torch.Tensor) and value.is_quantized:
        raise InvalidArgument(
            f"output {name!r} of {where} is quantized ({value.dtype} cannot be "
            "served): return its dequantize()"
        )
    if isinstance(value, torch.Tensor):
        return value
    numbers = from_numbers(value)
    if numbers is None:
        raise InvalidArgument(
            f"output {name!r} of {where} is a {type(value).__name__}, not a tensor; "
            "return tensors, numbers or strings only, or a dict, and name in "
            "output_names those to serve"
        )
    return numbers


log = logging.getLogger(__name__)

OF_PROGRAMS: Final = (
    "is a graph already: torch.export.save(program, BASE/VERSION/model.pt2) makes a "
    "version of it; or save the module that it was made from, with "
    "platform='torch_export'"
)
"""For messages: what to do with a program made by torch.export."""


@contextlib.contextmanager
def evaluation(module: nn.Module) -> Iterator[nn.Module]:
    """Puts the module into evaluation mode for the block, then back into its own mode.

    Yields the module, or a copy of it if changing the mode does more than that: some
    adapters have a ``train`` of their own that merges their weights.

    Evaluation mode is what gets served, because a module in training mode would answer
    differently from call to call (dropout) and from batch to batch (batch
    normalisation).
    """
    if isinstance(module, torch.jit.ScriptModule) and not hasattr(module, "training"):
        yield module  # it was frozen, which leaves evaluation mode alone
        return
    training = [part for part in module.modules() if part.training]
    if training:
        log.warning(
            "event=module_in_training_mode module=%s exported in evaluation mode",
            type(module).__name__,
        )
    lazy = [name for name, each in module.named_parameters() if is_lazy(each)]
    if lazy:
        log.warning(
            "event=lazy_parameters module=%s parameters=%s were never computed with: "
            "the example sizes them, and their values are random",
            type(module).__name__,
            ",".join(lazy),
        )
    if any(map(_does_more_than_a_flag, module.modules())):
        module = to_call(module)
    try:
        module.eval()
    except NotImplementedError as error:
        raise InvalidArgument(
            f"{type(module).__name__} has no evaluation mode. A module that "
            f"torch.export made {OF_PROGRAMS}"
        ) from error
    try:
        yield module
    finally:
        for part in training:
            part.training = True


def _does_more_than_a_flag(part: nn.Module) -> bool:
    """Whether a part does something of its own when its mode is changed."""
    return (
        type(part).train is not nn.Module.train or type(part).eval is not nn.Module.eval
    ) and not isinstance(part, torch.jit.ScriptModule)


def run(function: Callable[..., object], inputs: Mapping[str, Value]) -> object:
    """Calls with fixed random numbers and without gradients; both are put back afterwards.

    The inputs are copies, as on a server: anything that the function writes to them is
    lost.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return function(**{name: _copy(value) for name, value in inputs.items()})


def _copy(value: Value) -> Value:
    return value.clone() if isinstance(value, torch.Tensor) else as_strings(value)


SINGLE_OUTPUT: Final = {
    Method.PREDICT: "output",
    Method.CLASSIFY: "scores",
    Method.REGRESS: "outputs",
}
"""The name of a single output tensor without a name, by method."""


class Called(NamedTuple):
    """The result of one call of a module.

    Attributes:
        outputs: The outputs by name.
        is_nested: Whether the result has to be made flat to find them.
        is_own_type: Whether the result is an object of a class that is neither Python's
            nor torch's, for example a named tuple.

    """

    outputs: Values
    is_nested: bool
    is_own_type: bool


def outputs_of(
    module: nn.Module,
    options: Signature,
    forms: Mapping[str, Form],
    inputs: Mapping[str, Value],
) -> Called:
    """Calls a signature's method once, on a copy of the module.

    Raises:
        InvalidArgument: The result cannot be served; says what to change.

    """
    where = f"{type(module).__name__}.{options.call}"
    called = to_call(module)
    # Hooks of ``forward`` run only if the module itself is called.
    call = (
        module_call(called)
        if options.call == "forward"
        else getattr(called, options.call)
    )
    single = SINGLE_OUTPUT[Method(options.method)]
    result = run(nesting(call, forms), inputs)
    outputs = {
        # An output may be a view of the module's state, to which others write.
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in name_outputs(
            result, options.output_names, single, where
        ).items()
    }
    return Called(
        outputs,
        is_nested(result, outputs),
        type(result).__module__.partition(".")[0]
        not in ("builtins", "collections", "torch"),
    )


class ModuleCalls:
    """Calls one method of a module again and again. Confined to its caller.

    Args:
        module: The module, in evaluation mode.
        options: Say which method to call, and how its outputs are named.
        forms: How arguments that are containers are made of inputs.

    """

    def __init__(
        self,
        module: nn.Module,
        options: Signature,
        forms: Mapping[str, Form],
    ) -> None:
        self._module = module
        self._options = options
        self._forms = forms
        self._where = f"{type(module).__name__}.{options.call}"
        self._seen: list[Called] = []
        self._errors: list[Exception] = []

    @property
    def is_nested(self) -> bool:
        """Whether some result had to be made flat."""
        return any(each.is_nested for each in self._seen)

    @property
    def is_own_type(self) -> bool:
        """Whether some result was an object of one of the author's classes."""
        return any(each.is_own_type for each in self._seen)

    @property
    def last_error(self) -> Exception:
        """The error of the last call that failed; requires that one did."""
        return self._errors[-1]

    def first(self, inputs: Values) -> Values:
        """Returns the outputs for the author's example.

        Raises:
            InvalidArgument: The call fails, or its result cannot be served.

        """
        try:
            return self._call(inputs)
        except InvalidArgument:
            raise
        except Exception as error:
            advice = ""
            if any(dtype_of(value) is STRING for value in inputs.values()):
                advice = (
                    "Strings come to a module as lists of bytes: decode the bytes first, "
                    "[each.decode() for each in text]"
                )
            elif self._works_with_gradients(inputs):
                advice = GRADIENTS
            raise InvalidArgument(
                f"{self._where} fails on its example inputs "
                f"({_described(inputs)}): {type(error).__name__}: {error}"
                f"{advice and f'. {advice}'}"
            ) from error

    def _works_with_gradients(self, inputs: Values) -> bool:
        call = getattr(to_call(self._module), self._options.call)
        with contextlib.suppress(Exception), torch.enable_grad():
            nesting(call, self._forms)(**inputs)
            return True
        return False

    def attempt(self, inputs: Mapping[str, Value]) -> Values | None:
        """Returns the outputs for a variation of the example; None if that fails."""
        try:
            return self._call(inputs)
        except Exception as error:
            log.debug("event=variation_failed error=%r", error)
            self._errors.append(error)
            return None

    def _call(self, inputs: Mapping[str, Value]) -> Values:
        found = outputs_of(self._module, self._options, self._forms, inputs)
        self._seen.append(found)
        outputs, first = found.outputs, self._seen[0].outputs
        if outputs.keys() != first.keys():
            raise InvalidArgument(
                f"it returns {', '.join(map(repr, outputs))} for one call and "
                f"{', '.join(map(repr, first))} for another; a signature's "
                "outputs are always the same: name those in output_names"
            )
        return outputs


def _described(inputs: Mapping[str, Value]) -> str:
    return ", ".join(
        f"{name}: {dtype_of(value)}{list(shape_of(value))}"
        for name, value in inputs.items()
    )
