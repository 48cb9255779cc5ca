"""The rows of Classify, Regress and MultiInference as a signature's inputs.

A context's features belong to every Example, which may override them by name; they are
never copied per Example unless the tensors need it, and then the copies are budgeted.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from google.protobuf.message import DecodeError

from tfs.codec import wire
from tfs.codec.decode_options import (
    DEFAULT_OPTIONS,
    MAX_FIELDS,
    DecodeOptions,
    FillBudget,
)
from tfs.codec.example_input import ExampleInput
from tfs.core import dtype as dtypes
from tfs.core.dtype import BFLOAT16, BOOL, STRING, DType
from tfs.core.errors import InvalidArgument, ResourceExhausted
from tfs.core.signature import FREE, FeatureKind, FeatureSpec, Signature
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow.core.example import example_pb2, feature_pb2

EMPTY: Final = "Input is empty."
_LARGE_EXAMPLE_BYTES: Final = 1 << 20  # smaller ones are parsed in milliseconds anyway
_FEATURES: Final = 1  # Example.features


def tensors_of_examples(
    rows: ExampleInput, signature: Signature, options: DecodeOptions = DEFAULT_OPTIONS
) -> dict[str, TensorView]:
    """Returns the signature's inputs, one row per Example. Thread-safe.

    A signature with features gets them converted to its inputs' dtypes. A signature
    without features, whose only input takes strings, gets the Examples themselves. Rows
    of a variable-length feature are padded to the longest (or to the input's fixed
    size), and the input that the spec names as ``mask``, if any, says where values are.

    Raises:
        InvalidArgument: ``Input is empty.``; or an Example is malformed or does not fit
            the features, with its index; or the signature takes no Examples.
        ResourceExhausted: Padding takes more than ``max_tensor_bytes``, or an Example
            has more than ``MAX_FIELDS`` features.

    """
    if not rows.examples:
        raise InvalidArgument(EMPTY)
    budget = FillBudget(options.max_tensor_bytes)
    if not signature.features:
        return {_string_input(signature): _as_strings(rows, budget)}
    columns: dict[str, _Column] = {}
    for name, spec in signature.features.items():
        if spec.input in columns:
            raise InvalidArgument(
                f"the signature fills input {spec.input!r} from several features"
            )
        columns[spec.input] = _Column(name, spec, budget)
    _fill(rows, list(columns.values()))
    tensors: dict[str, TensorView] = {}
    for column in columns.values():
        column.write(signature, tensors)
    return tensors


def _fill(rows: ExampleInput, columns: Sequence[_Column]) -> None:
    """Gives every Example's features to the columns, one Example at a time.

    They are not all parsed at once, because a parsed Example takes a hundred times what
    an empty one takes on the wire.
    """
    if rows.context:
        context = _features(rows.context, "the context")
        for column in columns:
            column.set_context(context)
    for index, serialized in enumerate(rows.examples):
        where = f"example {index}"
        features = _features(serialized, where)
        for column in columns:
            column.add(where, features)


class _Column:
    """One feature of all rows. Confined to one decoding."""

    def __init__(self, name: str, spec: FeatureSpec, budget: FillBudget) -> None:
        self._name = name
        self._spec = spec
        self._budget = budget
        if spec.dtype not in _PACK:
            raise InvalidArgument(
                f"feature {name!r}: no tf.Example holds {spec.dtype} values"
            )
        self._is_fixed = spec.kind is FeatureKind.FIXED
        self._num_values = math.prod(spec.shape)
        has_default = self._is_fixed and spec.default is not None
        self._default = self._packed(spec.default or ()) if has_default else None
        self._nothing: _Values = () if spec.dtype is STRING else b""
        self._context: feature_pb2.Feature | None = None
        self._shared: _Values | None = None  # its values, once an Example needs them
        self._rows: list[_Values] = []

    def set_context(self, features: _FeatureMap) -> None:
        """Takes what the Examples have in common."""
        self._context = features.get(self._name)

    def add(self, where: str, features: _FeatureMap) -> None:
        """Takes the next Example's values.

        In most clients' libraries, looking up a feature makes an empty one. As with
        TensorFlow's parser, it overrides the context's feature if lengths vary, and
        counts as missing if they are fixed.
        """
        feature = features.get(self._name)
        kind = None if feature is None else _kind(feature)
        row: _Values | None = None
        if feature is not None and (not self._is_fixed or kind is not None):
            row = self._row(where, feature, kind)
        elif self._context is not None:
            if self._shared is None:
                kind = _kind(self._context)
                self._shared = self._row("context", self._context, kind)
            row = self._shared
            if row is not None:
                self._take(len(row) // self._unit, "of the context")
        self._rows.append(
            self._fixed(where, row) if self._is_fixed else row or self._nothing
        )

    def write(self, signature: Signature, tensors: dict[str, TensorView]) -> None:
        """Adds the tensor of all rows, and its mask where one is wanted."""
        if self._is_fixed:
            rows = self._rows
            shape = (len(rows), *self._spec.shape)
            tensors[self._spec.input] = self._tensor(shape, rows)
        else:
            self._write_varlen(signature, tensors)

    def _fixed(self, where: str, row: _Values | None) -> _Values:
        """Returns a row as long as the spec says, or refuses it."""
        if row is None:
            if self._default is None:
                raise InvalidArgument(
                    f"{where}: feature {self._name!r} is required but could not be found"
                )
            self._take(self._num_values, "its default")
            row = self._default
        if len(row) != self._num_values * self._unit:
            raise InvalidArgument(
                f"{where}: feature {self._name!r} has {len(row) // self._unit} values, "
                f"expected {self._num_values}"
            )
        return row

    def _write_varlen(
        self, signature: Signature, tensors: dict[str, TensorView]
    ) -> None:
        """Adds the tensor ``[rows, longest]`` and the mask."""
        spec = self._spec
        unit = self._unit
        target = signature.inputs[spec.input]
        rows = self._rows
        num_values = [len(row) // unit for row in rows]
        longest = max(num_values)
        if len(target.shape) == 2 and target.shape[1] != FREE:
            if longest > target.shape[1]:
                index = num_values.index(longest)
                raise InvalidArgument(
                    f"example {index}: feature {self._name!r} has {longest} values, "
                    f"at most {target.shape[1]} fit"
                )
            longest = target.shape[1]
        num_missing = longest * len(rows) - sum(num_values)
        self._take(num_missing, f"padding to {longest} values")
        pad: Any = spec.pad if spec.pad is not None else target.pad
        if pad is None:
            pad = b"" if spec.dtype is STRING else 0
        filler = self._packed([pad])
        values = []
        for row, num in zip(rows, num_values, strict=True):
            values.append(row)
            values.append(filler * (longest - num))
        tensors[spec.input] = self._tensor((len(rows), longest), values)
        if target.mask is not None and target.mask in signature.inputs:
            mask_dtype = signature.inputs[target.mask].dtype
            self._budget.take(longest * len(rows) * mask_dtype.item_bytes, "a mask")
            pack = _PACK[mask_dtype]
            one, zero = pack((1,)), pack((0,))
            marks = [one * num + zero * (longest - num) for num in num_values]
            tensors[target.mask] = TensorView(
                mask_dtype,
                (len(rows), longest),
                b"".join(marks),
            )

    @property
    def _unit(self) -> int:
        """The length of one value in the result of :meth:`_row`."""
        return self._spec.dtype.item_bytes or 1

    def _tensor(self, shape: tuple[int, ...], rows: Iterable[_Values]) -> TensorView:
        if self._spec.dtype is STRING:
            strings: list[bytes] = []
            for row in rows:
                strings.extend(row)  # type: ignore[arg-type]  # a tuple of bytes
            return TensorView(STRING, shape, tuple(strings))
        return TensorView(self._spec.dtype, shape, b"".join(rows))  # type: ignore[arg-type]

    def _take(self, num_values: int, what: str) -> None:
        """Counts values that the request does not contain, before they are made."""
        self._budget.take(
            num_values * (self._spec.dtype.item_bytes or 8),
            f"feature {self._name!r}, {what},",
        )

    def _row(
        self, where: str, feature: feature_pb2.Feature, kind: str | None
    ) -> _Values | None:
        """Returns one feature's values in the input's form; None if it has none."""
        if kind is None:
            return None
        dtype = self._spec.dtype
        if kind not in _LISTS_FOR[dtype]:
            raise InvalidArgument(
                f"{where}: data types don't match for feature {self._name!r}: "
                f"expected {dtype}, got a {kind}"
            )
        if kind == "bytes_list":
            return tuple(feature.bytes_list.value)
        if kind == "int64_list":
            values: Sequence[float] = feature.int64_list.value[:]
        elif dtype is dtypes.FLOAT32 and (raw := _raw_floats(feature.float_list)):
            return raw
        else:
            values = feature.float_list.value[:]
        try:
            return self._packed(values)
        except InvalidArgument as error:
            raise InvalidArgument(f"{where}: {error.message}") from error

    def _packed(self, values: Sequence[float] | Sequence[bytes]) -> _Values:
        try:
            return cast(_Values, _PACK[self._spec.dtype](values))
        except (struct.error, OverflowError, ValueError, TypeError) as error:
            raise InvalidArgument(
                f"feature {self._name!r}: a value does not fit {self._spec.dtype}"
            ) from error


_Values: TypeAlias = bytes | tuple[bytes, ...]
"""Some values of a feature: little-endian elements, or strings."""


_FeatureMap: TypeAlias = Mapping[str, feature_pb2.Feature]


def _features(serialized: bytes, what: str) -> _FeatureMap:
    if len(serialized) > _LARGE_EXAMPLE_BYTES and _has_too_many(serialized):
        raise ResourceExhausted(f"{what}: more than {MAX_FIELDS} features")
    try:
        return example_pb2.Example.FromString(serialized).features.feature
    except DecodeError as error:
        raise InvalidArgument(f"{what}: could not be parsed as tf.Example") from error


def _kind(feature: feature_pb2.Feature) -> str | None:
    """Returns the name of a feature's list; None if it has none."""
    kind: str | None = feature.WhichOneof("kind")
    return kind


def _has_too_many(example: bytes) -> bool:
    if wire.has_more_fields(example, 0, len(example), MAX_FIELDS):
        return True
    with contextlib.suppress(wire.MalformedError):  # the parser reports it
        return any(
            wire.has_more_fields(example, start, stop, MAX_FIELDS)
            for number, kind, start, stop in wire.fields(example, 0, len(example))
            if number == _FEATURES and kind == wire.DELIMITED
        )
    return False


def takes_examples(signature: Signature) -> bool:
    """Tells whether Examples can become the signature's inputs."""
    return bool(signature.features) or _only_string(signature) is not None


def _only_string(signature: Signature) -> str | None:
    """Returns the name of the only input, if that takes strings."""
    if len(signature.inputs) == 1:
        for name, spec in signature.inputs.items():
            if spec.dtype is STRING:
                return name
    return None


def _string_input(signature: Signature) -> str:
    name = _only_string(signature)
    if name is not None:
        return name
    raise InvalidArgument(
        "the signature declares no features and has no single string input, so it "
        "takes no tf.Example; call Predict"
    )


def _as_strings(rows: ExampleInput, budget: FillBudget) -> TensorView:
    """Returns each Example whole, after the context's bytes if there is a context.

    When parsed, that gives the context's features, overridden by those of the Example.
    """
    strings = rows.examples
    if rows.context:
        budget.take(len(rows.context) * len(strings), "the context of every example")
        strings = tuple([rows.context + example for example in strings])
    return TensorView(STRING, (len(strings),), strings)


def _raw_floats(values: feature_pb2.FloatList) -> bytes:
    """Returns the values' own bytes; nothing if they have to be packed."""
    serialized = values.SerializeToString()
    num_bytes = 4 * len(values.value)
    head = b"\x0a" + wire.varint(num_bytes)
    if len(serialized) != len(head) + num_bytes or not serialized.startswith(head):
        return b""
    return serialized[len(head) :]


_FLOATS: Final = frozenset(("float_list", "int64_list"))
_INTEGERS: Final = frozenset(("int64_list",))
_STRINGS: Final = frozenset(("bytes_list",))
_LISTS_FOR: Final[dict[DType, frozenset[str]]] = {
    STRING: _STRINGS,
    **dict.fromkeys(
        (dtypes.FLOAT32, dtypes.FLOAT64, dtypes.FLOAT16, BFLOAT16), _FLOATS
    ),
    **dict.fromkeys(
        (
            dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64, dtypes.UINT8,
            dtypes.UINT16, dtypes.UINT32, dtypes.UINT64, BOOL,
        ),
        _INTEGERS,
    ),
}  # fmt: skip


def _packer(code: str) -> Callable[[Sequence[float]], bytes]:
    def pack(values: Sequence[float]) -> bytes:
        return struct.pack(f"<{len(values)}{code}", *values)

    return pack


def _pack_bools(values: Sequence[float]) -> bytes:
    return bytes([value != 0 for value in values])


def _pack_bfloat16(values: Sequence[float]) -> bytes:
    """Rounds to nearest, ties to even, as torch does."""
    halves = []
    for bits in struct.unpack(f"<{len(values)}I", _packer("f")(values)):
        if bits & 0x7FFFFFFF > 0x7F800000:  # NaN: rounding could make it infinite
            halves.append(bits >> 16 | 0x40)
        else:
            halves.append((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    return _packer("H")(halves)


_PACK: Final[dict[DType, Callable[[Any], Any]]] = {
    STRING: tuple,
    BOOL: _pack_bools,
    BFLOAT16: _pack_bfloat16,
    **{
        each: _packer(each.code)
        for each in dtypes.DTYPES.values()
        if each.code and each is not BOOL
    },
}
