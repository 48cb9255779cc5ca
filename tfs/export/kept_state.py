"""Undoes what calls of a module do to its state, so that it is not saved.

A call may write to parameters and buffers, replace them, count in an attribute, append
to a list, fill a cache or draw from a generator. All of that would go into the archive,
although the author gave the module without it. So the state is recorded before the
first call and put back after each call. It is put back in place: whoever refers to a
list or tensor finds it as it was.

Rejected: copying the module and calling the copy. Anything that refers to the module
from outside, such as a hook, would still write to the original, and not everything that
can be saved can be copied.
"""

from __future__ import annotations

import collections
import io
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tfs.export.packaging.dependency_report import Action
from tfs.export.packaging.module_origin import default_action

_IMMUTABLE: Final = (
    type(None), bool, int, float, complex, str, bytes, type, range, slice,
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, torch.dtype,
    torch.device, torch.Size,
)  # fmt: skip


class KeptState:
    """The state that a module has now. Confined to one thread.

    It has a copy of every tensor that the module reaches by attributes, containers and
    objects of the author's own classes. Modules whose parameters are not made yet are left
    out: they make them in the first call.
    """

    def __init__(self, module: nn.Module) -> None:
        self._tensors: list[_KeptTensor] = []
        self._puts_back: list[Callable[[], None]] = []
        self._is_own: dict[str, bool] = {}
        seen: dict[int, object] = {}
        waiting: list[object] = [module]
        while waiting:
            value = waiting.pop()
            if isinstance(value, _IMMUTABLE) or id(value) in seen:
                continue
            seen[id(value)] = value
            waiting.extend(self._keep(value))

    def restore(self) -> None:
        """Puts the state back, whether it was changed or replaced."""
        for put_back in self._puts_back:
            put_back()
        for each in self._tensors:
            each.restore()

    def _keep(self, value: object) -> Iterable[object]:
        """Records how to put back one object; returns the objects that it refers to."""
        if isinstance(value, torch.Tensor):
            if not is_lazy(value):
                self._tensors.append(_KeptTensor(value))
            return ()
        if isinstance(value, torch.jit.ScriptModule):
            return [*value.parameters(), *value.buffers()]
        if isinstance(value, nn.Module):
            if any(map(is_lazy, value.parameters(recurse=False))):
                return list(value.children())
            return [vars(value)]
        if isinstance(value, dict):
            return self._keep_dict(value)
        if isinstance(value, list | collections.deque | set):
            return self._keep_items(value)
        if isinstance(value, tuple | frozenset):
            return value
        if isinstance(value, types.MethodType):
            return [value.__self__]
        if put_back := _stream_of(value):
            self._puts_back.append(put_back)
            return ()
        return self._keep_attributes(value)

    def _keep_dict(self, value: dict[Any, Any]) -> Iterable[object]:
        kept = list(dict.items(value))
        # An OrderedDict keeps its order in a list of its own, which dict's methods do
        # not change.
        kind: Any = dict
        if isinstance(value, collections.OrderedDict):
            kind = collections.OrderedDict

        def put_back() -> None:
            now = list(kind.items(value))
            if len(now) == len(kept) and all(
                key is own_key and item is own
                for (key, item), (own_key, own) in zip(now, kept, strict=True)
            ):
                return
            kind.clear(value)
            for key, item in kept:
                kind.__setitem__(value, key, item)

        self._puts_back.append(put_back)
        return [item for _, item in kept]

    def _keep_items(self, value: Any) -> Iterable[object]:
        kind: Any = next(
            each for each in (list, collections.deque, set) if isinstance(value, each)
        )
        kept = list(kind.__iter__(value))

        def put_back() -> None:
            now = list(kind.__iter__(value))
            if len(now) == len(kept) and all(map(_is, now, kept)):
                return
            kind.clear(value)
            (kind.update if kind is set else kind.extend)(value, kept)

        self._puts_back.append(put_back)
        return kept

    def _keep_attributes(self, value: object) -> Iterable[object]:
        """Keeps the attributes of an object of one of the author's classes."""
        if not self._is_authors(type(value)):
            return ()
        found: list[object] = []
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            found.append(attributes)
        slots = {
            name: getattr(value, name)
            for name in _slots_of(type(value))
            if hasattr(value, name)
        }
        if slots:

            def put_back() -> None:
                for name, item in slots.items():
                    if getattr(value, name, None) is not item:
                        object.__setattr__(value, name, item)

            self._puts_back.append(put_back)
        return [*found, *slots.values()]

    def _is_authors(self, kind: type) -> bool:
        """Whether a class is the author's; objects of libraries look after themselves."""
        name = kind.__module__
        if name not in self._is_own:
            self._is_own[name] = (
                name == "__main__"
                or name.startswith("<")  # a class of a package that was loaded
                or default_action(name)[0] is Action.INTERNED
            )
        return self._is_own[name]


class _KeptTensor:
    """A tensor with a copy of its elements."""

    __slots__ = ("_tensor", "_value", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._value = _copy_of(tensor.detach())
        self._version = _version(tensor)

    def restore(self) -> None:
        tensor, value = self._tensor, self._value
        if self._is_unchanged():
            return
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            if tensor.shape != value.shape:
                tensor.data = value.clone()
            else:
                tensor.copy_(value)
        self._version = _version(tensor)

    def _is_unchanged(self) -> bool:
        tensor, value = self._tensor, self._value
        if tensor.shape != value.shape:
            return False
        is_untouched = self._version is not None and self._version == _version(tensor)
        if not is_untouched:
            return False
        try:  # writes through ``.data`` are not counted as versions
            return torch.equal(tensor, value)
        except RuntimeError:  # tensors of this kind cannot be compared
            return True


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    try:
        return tensor.clone()
    except RuntimeError:
        # Tensors of some quantisation schemes cannot be cloned, but pickled.
        file = io.BytesIO()
        torch.save(tensor, file)
        file.seek(0)
        copy: torch.Tensor = torch.load(file, weights_only=True)
        return copy


def _version(tensor: torch.Tensor) -> int | None:
    """Returns how often a tensor was written to; None if that is not counted."""
    return None if tensor.is_inference() else tensor._version


def _is(left: object, right: object) -> bool:
    return left is right


def _stream_of(value: object) -> Callable[[], None] | None:
    """Returns a function that puts back a generator of random numbers, or an array."""
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: _set_state(value, state)
    if isinstance(value, random.Random):
        own = value.getstate()
        return lambda: value.setstate(own)
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.random.Generator):
        bits: Any = value
        drawn = bits.bit_generator.state
        return lambda: setattr(bits.bit_generator, "state", drawn)
    if isinstance(value, numpy.random.RandomState):
        old: Any = value
        kept = old.get_state()
        return lambda: old.set_state(kept)
    if isinstance(value, numpy.ndarray):
        array: Any = value
        if array.flags.writeable:
            elements = array.copy()
            return lambda: numpy.copyto(array, elements)
    return None


def _set_state(generator: torch.Generator, state: torch.Tensor) -> None:
    generator.set_state(state)


def _slots_of(kind: type) -> Iterator[str]:
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                yield name
