"""Which requests of a signature can be joined, and how shorter rows of theirs are filled up."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from batching.batching_options import BatchingOptions
from batching.length_window import LengthWindow
from tfs.core.dtype import DType
from tfs.core.servable import InferenceTask
from tfs.core.signature import FREE, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import SignatureProfile
from tfs.servables.joining.tensor_join import element, is_shared

_ANY_LENGTH: Final = -1  # a size that requests need not have in common
_MAX_SHARED_BYTES: Final = 1024
"""Largest input, in bytes, that is no rows and with which requests are joined. Such
inputs are compared byte by byte."""

_CODES: Final = {
    "float16": "e", "float32": "f", "float64": "d", "bool": "?",
    "int8": "b", "int16": "h", "int32": "i", "int64": "q",
    "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
}  # fmt: skip
_MAX_VALUES: Final = 4
_MAX_CHARS: Final = 24


class JoinKeys:
    """Tells what must be equal for requests to be joined. Immutable, thread-safe.

    Attributes:
        fillers: By input, the value that fills up shorter rows; None means the row's own
            first element. Other inputs are not filled.
        padded_outputs: Outputs whose inner sizes depend on the batch.

    Args:
        signature: The signature that the requests ask for.
        measured: Whether padding it is safe.
        options: Buckets of lengths, and whether inputs without a pad value are padded.

    """

    def __init__(
        self,
        signature: Signature,
        measured: SignatureProfile,
        options: BatchingOptions,
    ) -> None:
        self._signature = signature
        self._buckets = options.length_buckets
        self._max_rows = options.queue.max_batch_rows
        self.fillers = _fillers_of(signature, measured, options.pads_variable_length)
        self.padded_outputs = frozenset(
            name
            for name, spec in signature.outputs.items()
            if self.fillers and _has_free_inner(spec)
        )
        # If the signature fixes all sizes, all requests fit together, and looking at
        # their shapes again would only cost time.
        self.is_uniform = not signature.defaults and not any(
            map(_has_free_inner, signature.inputs.values())
        )

    def of(self, task: InferenceTask) -> object:
        """Returns what must be equal for requests to be joined; False if they cannot be."""
        signature = self._signature
        if self.is_uniform and task.inputs.keys() == signature.inputs.keys():
            return None
        key: list[object] = []
        for name, view in task.inputs.items():
            if name not in signature.inputs:
                return False
            if view is signature.defaults.get(name):
                key.append((name, None))
            elif is_shared(signature, name, view):
                if view.size_bytes > _MAX_SHARED_BYTES:
                    return False
                key.append((name, view.shape, _bytes_of(view)))
            elif not view.shape or view.shape[0] != task.num_rows:
                return False
            elif name in self.fillers:
                sizes = self._rounded(name, view)
                key.append((name, tuple(size or _ANY_LENGTH for size in sizes)))
            elif name not in signature.defaults:
                key.append((name, view.shape[1:]))
            elif view.size_bytes > _MAX_SHARED_BYTES:
                return False
            else:
                # Nothing has shown that its rows may differ, because examples leave it
                # out.
                key.append((name, view.shape[1:], _row_of(view) or _bytes_of(view)))
        return frozenset(key)

    def least_sizes(self, task: InferenceTask) -> dict[str, tuple[int, ...]]:
        """Returns the inner sizes that inputs like a request's are padded to at least."""
        return {
            name: self._rounded(name, view)
            for name, view in task.inputs.items()
            if name in self.fillers
        }

    def _rounded(self, name: str, view: TensorView) -> tuple[int, ...]:
        """Returns the inner sizes; free ones rounded up to their bucket, 0 without one."""
        spec = self._signature.inputs[name]
        return tuple(
            size if wanted != FREE else next((b for b in self._buckets if b >= size), 0)
            for size, wanted in zip(view.shape[1:], spec.shape[1:], strict=True)
        )

    def window(self) -> LengthWindow | None:
        """Returns what chooses batches by length; None if they are alike, or in buckets.

        The length of a request is that of its first input that is padded.
        """
        if not self.fillers or self._buckets:
            return None
        first = next(iter(self.fillers))
        free = [
            axis
            for axis, size in enumerate(self._signature.inputs[first].shape)
            if axis and size == FREE
        ]

        def sizes_of(task: InferenceTask) -> tuple[int, ...]:
            view = task.inputs.get(first)
            return (1,) if view is None else tuple(view.shape[axis] for axis in free)

        return LengthWindow(sizes_of, self._max_rows)

    # -- in words ------------------------------------------------------------------

    def names(self, key: object) -> tuple[str, ...]:
        """Returns the inputs of requests with a key, in the signature's order."""
        if not isinstance(key, frozenset):
            return tuple(self._signature.inputs)
        sent = {part[0] for part in key}
        return tuple(name for name in self._signature.inputs if name in sent)

    def traits(self, key: object) -> str:
        """Returns in words what a key says; "" if it says nothing.

        Inputs of which all requests have the same are not named.
        """
        if not isinstance(key, frozenset):
            return ""
        return ", ".join(sorted(filter(None, self._traits(key))))

    def _traits(self, key: frozenset[object]) -> Iterator[str]:
        signature = self._signature
        for part in key:
            match part:
                case (str(name), None):
                    yield f"{name} left out"
                case (str(name), sizes, data) if isinstance(sizes, tuple):
                    yield f"{name} = {_values(signature.inputs[name].dtype, data)}"
                case (str(name), sizes) if isinstance(sizes, tuple):
                    spec = signature.inputs[name]
                    if _has_free_inner(spec) or name in signature.defaults:
                        yield f"{name} [{', '.join(map(_size, sizes))}]"


def _fillers_of(
    signature: Signature, measured: SignatureProfile, pads_variable_length: bool
) -> dict[str, bytes | None]:
    masks = {spec.mask for spec in signature.inputs.values() if spec.mask}
    fillers: dict[str, bytes | None] = {}
    for name, spec in signature.inputs.items():
        if not _has_free_inner(spec) or (
            name in signature.defaults and name not in masks
        ):
            continue
        if measured.why_padding and (spec.pad is not None or name in masks):
            continue  # then only requests of equal lengths are joined
        if spec.pad is not None:
            fillers[name] = element(spec.dtype, spec.pad)
        elif name in masks:
            fillers[name] = element(spec.dtype, 0)
        elif pads_variable_length:
            fillers[name] = None
    return fillers


def _has_free_inner(spec: TensorSpec) -> bool:
    return FREE in spec.shape[1:]


def _bytes_of(view: TensorView) -> bytes | tuple[bytes, ...]:
    """Returns the elements of a small tensor, for a comparison."""
    return view.data if isinstance(view.data, tuple) else bytes(view.data)


def _row_of(view: TensorView) -> bytes | tuple[bytes, ...] | None:
    """Returns the elements of one row of a small tensor; None if its rows differ."""
    num_rows = view.shape[0]
    data = _bytes_of(view)
    row = data[: len(data) // num_rows]
    return row if row * num_rows == data else None


def _size(size: int) -> str:
    return "any" if size == _ANY_LENGTH else str(size)


def _values(dtype: DType, data: object) -> str:
    values: Sequence[object]
    if isinstance(data, tuple):
        values = [bytes(each).decode(errors="replace") for each in data[:_MAX_VALUES]]
        num = len(data)
    else:
        assert isinstance(data, bytes)
        code = _CODES.get(dtype.name)
        if code is None:
            return _short(data.hex())
        num = len(data) // dtype.item_bytes
        kept = data[: _MAX_VALUES * dtype.item_bytes]
        values = struct.unpack(f"<{len(kept) // dtype.item_bytes}{code}", kept)
    texts = [f"{v:.6g}" if isinstance(v, float) else _short(str(v)) for v in values]
    return " ".join([*texts, "..."] if num > _MAX_VALUES else texts)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
