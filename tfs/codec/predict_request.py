"""Reads ``PredictRequest`` without message objects and without copying tensors.

Three ways, each handing over to the next what it does not know:

1. **Templates.** Clients send the same message over and over, with other elements. A
   message read before is kept without its elements; one that equals it byte for byte
   around them is read the same way, so nothing is parsed.
2. **The scan.** A strict reader of what serializers normally write: known fields once
   each, map entries key first, elements packed. It points into the message.
3. **upb.** Anything unusual: repeated fields, unknown ones, unpacked or out-of-order
   ones, and whatever is malformed. So what is accepted, and as what, is protobuf's
   decision; a differential fuzz test holds the first two to it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from tfs.codec.model_spec import ModelSpec, model_spec_of, read_model_spec
from tfs.codec.tensor import (
    BY_NUMBER,
    DEFAULT_OPTIONS,
    MAX_DIMENSIONS,
    DecodeOptions,
    FillBudget,
    clean_bools,
    count_elements,
    fill_elements,
    tensor_view_of,
    widen,
)
from tfs.codec.wire import MalformedError, read_size, read_varint
from tfs.core.dtype import BOOL, STRING, DType
from tfs.core.errors import (
    InvalidArgument,
    ResourceExhausted,
    ServingError,
    Unimplemented,
)
from tfs.core.tensor_view import Buffer, TensorView
from tfs.proto.tensorflow.core.framework import tensor_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2


class PredictRequestView:
    """A decoded ``PredictRequest``. Its tensors may borrow the message. Immutable.

    Attributes:
        model_spec: Which model; None if the request has none. Equal specs are often
            the same object, so it may be looked up by identity.
        inputs: Tensors by name, in the order sent.
        output_filter: Names of the outputs wanted, as sent; empty for all.
        client_id: What the caller calls itself; None if it does not.

    """

    __slots__ = ("client_id", "inputs", "model_spec", "output_filter")

    def __init__(
        self,
        model_spec: ModelSpec | None,
        inputs: dict[str, TensorView],
        output_filter: tuple[str, ...] = (),
        client_id: bytes | None = None,
    ) -> None:
        self.model_spec = model_spec
        self.inputs = inputs
        self.output_filter = output_filter
        self.client_id = client_id

    def __eq__(self, other: object) -> bool:
        """Equal in every field."""
        if not isinstance(other, PredictRequestView):
            return NotImplemented
        return all(getattr(self, n) == getattr(other, n) for n in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # tensors have none

    def __repr__(self) -> str:
        return (
            f"PredictRequestView({self.model_spec}, {self.inputs}, "
            f"{self.output_filter}, {self.client_id!r})"
        )


def read_predict_request(
    message: Buffer, options: DecodeOptions = DEFAULT_OPTIONS
) -> PredictRequestView:
    """Decodes a request, however long that takes. Thread-safe.

    Raises:
        InvalidArgument: Not a PredictRequest; or ``tensor parsing error: NAME: ...``.
        ResourceExhausted: An input's shape claims more than ``max_tensor_bytes`` of
            elements that were not sent.
        Unimplemented: It belongs to a streamed prediction.

    """
    view = _read_as_before(message)
    if view is None:
        view = _scan(message, options, quick=False)
        if view is None:
            view = _parse(message, options.max_tensor_bytes)
    return view


def read_if_quick(
    message: Buffer, options: DecodeOptions = DEFAULT_OPTIONS
) -> PredictRequestView | None:
    """Decodes a request that takes no longer than about a millisecond. Thread-safe.

    Returns None for any other; :func:`read_predict_request`, off the serving loop, is
    for those. Size alone does not count: raw elements are never touched.

    Raises:
        ServingError: As :func:`read_predict_request`.

    """
    view = _read_as_before(message)
    if view is None:
        try:
            view = _scan(message, options, quick=True)
        except _SlowError:
            return None
        if view is None and len(message) <= options.quick_bytes:
            view = _parse_if_quick(message, options)
    return view


class _SlowError(Exception):
    """Decoding takes longer than the serving loop may spend."""


class _UnusualError(Exception):
    """Nothing the scan knows; upb decides."""


# -- Templates ------------------------------------------------------------------------

_Gap: TypeAlias = tuple[int, int, str, DType, tuple[int, ...]]
"""Where a tensor's elements start and stop; its name, dtype and shape."""

_Template: TypeAlias = tuple[
    bytes,  # the message up to the first tensor's elements
    bytes,  # what follows the last one's
    int,  # start, stop, name, dtype and shape of the first gap
    int,
    str,
    DType,
    tuple[int, ...],
    ModelSpec | None,
    tuple[str, ...],  # output filter
    tuple[tuple[int, bytes, _Gap], ...],  # start and bytes before each further gap
]

_MAX_TEMPLATES_OF_LENGTH = 8
_MAX_LENGTHS = 1024
_MAX_TEMPLATE_BYTES = 1024
_MAX_GAPS = 16

# Messages to slice rather than to point into: a copy of so few bytes costs less than
# a memoryview does, and keeps no receive buffer alive.
_SMALL_BYTES = 512

# By the message's length. Values are replaced, never changed; all under the GIL.
_templates: dict[int, tuple[_Template, ...]] = {}


def _read_as_before(message: Buffer) -> PredictRequestView | None:
    """Returns the request if one like it was read before."""
    candidates = _templates.get(len(message))
    if candidates is None:
        return None
    if type(message) is not bytes:
        return _read_buffer_as_before(memoryview(message), candidates)
    for head, tail, start, stop, name, dtype, shape, spec, wanted, more in candidates:
        if message.startswith(head) and message.endswith(tail):
            if not more:
                if stop - start <= _SMALL_BYTES:
                    view = TensorView(dtype, shape, message[start:stop])
                else:
                    view = TensorView(dtype, shape, memoryview(message)[start:stop])
                return PredictRequestView(spec, {name: view}, wanted)
            whole = memoryview(message)
            inputs = {name: TensorView(dtype, shape, whole[start:stop])}
            for at, literal, gap in more:
                if not message.startswith(literal, at):
                    break
                inputs[gap[2]] = TensorView(gap[3], gap[4], whole[gap[0] : gap[1]])
            else:
                return PredictRequestView(spec, inputs, wanted)
    return None


def _read_buffer_as_before(
    message: memoryview, candidates: tuple[_Template, ...]
) -> PredictRequestView | None:
    """As :func:`_read_as_before`, of a message that has no ``startswith``."""
    for head, tail, start, stop, name, dtype, shape, spec, wanted, more in candidates:
        if message[:start] != head or message[len(message) - len(tail) :] != tail:
            continue
        inputs = {name: TensorView(dtype, shape, message[start:stop])}
        for at, literal, gap in more:
            if message[at : at + len(literal)] != literal:
                break
            inputs[gap[2]] = TensorView(gap[3], gap[4], message[gap[0] : gap[1]])
        else:
            return PredictRequestView(spec, inputs, wanted)
    return None


def _remember(message: Buffer, view: PredictRequestView, gaps: list[_Gap]) -> None:
    """Keeps the request, without its elements, as a template.

    Right because the scan accepts raw elements whatever they are: a message with the
    same bytes around them takes the same way through it.
    """
    size = len(message)
    num_literal = size - sum([gap[1] - gap[0] for gap in gaps])
    if num_literal > _MAX_TEMPLATE_BYTES or len(gaps) > _MAX_GAPS:
        return
    (start, stop, name, dtype, shape), *others = gaps
    more = []
    at = stop
    for gap in others:
        more.append((at, bytes(message[at : gap[0]]), gap))
        at = gap[1]
    template = (
        bytes(message[:start]),
        bytes(message[at:]),
        start,
        stop,
        name,
        dtype,
        shape,
        view.model_spec,
        view.output_filter,
        tuple(more),
    )
    known = _templates.get(size)
    if known is None:
        if len(_templates) >= _MAX_LENGTHS:
            _templates.clear()
        known = ()
    _templates[size] = (template, *known[: _MAX_TEMPLATES_OF_LENGTH - 1])


# -- The scan -------------------------------------------------------------------------

_MAX_QUICK_FIELDS = 128

# Longer string tensors go to upb with the whole request: it walks strings in a third of
# the time.
_MAX_SCANNED_STRING_BYTES = 256

_CONTENT_TAG: Final = 0x22
_STRING_TAG: Final = 0x42

# The typed field's tag by DataType, its second byte in the high bits.
_TAG_BY_NUMBER: Final = {
    number: int.from_bytes(kind.typed_tag, "little")
    for number, kind in BY_NUMBER.items()
}
# What a packed field's length must be a multiple of, for raw fields.
_UNIT_BY_TAG: Final = {0x2A: 4, 0x32: 8, 0x4A: 4, 0x62: 8, 0x192: 1}

_Shape: TypeAlias = tuple[tuple[int, ...], int]
"""Sizes and their product."""

_SCALAR: Final[_Shape] = ((), 1)

_MAX_SHAPES = 1024
_MAX_SHAPE_BYTES = 64
_shapes: dict[bytes, _Shape] = {}


def _scan(
    message: Buffer, options: DecodeOptions, *, quick: bool
) -> PredictRequestView | None:
    """Reads a request of the usual form; None leaves it to upb, errors included.

    Raises:
        _SlowError: ``quick``, and it is not.

    """
    try:
        return _scan_request(message, options, quick)
    except (
        IndexError,  # cut off
        MalformedError,
        UnicodeDecodeError,
        _UnusualError,
        ServingError,
        DecodeError,
    ):
        return None


def _scan_request(
    message: Buffer, options: DecodeOptions, quick: bool
) -> PredictRequestView:
    size = len(message)
    whole = memoryview(message)
    spec: ModelSpec | None = None
    inputs: dict[str, TensorView] = {}
    wanted: list[str] = []
    client_id: bytes | None = None
    gaps: list[_Gap] = []
    budget = FillBudget(options.quick_fill_bytes if quick else options.max_tensor_bytes)
    index = 0
    while index < size:
        tag = message[index]
        length = message[index + 1]
        index += 2
        if length >= 0x80:
            length, index = read_size(message, index - 1)
        stop = index + length
        if stop > size:
            raise _UnusualError
        if tag == 0x12:
            # A map entry: 0A name 12 tensor.
            if message[index] != 0x0A:
                raise _UnusualError
            length = message[index + 1]
            index += 2
            if length >= 0x80:
                length, index = read_size(message, index - 1)
            name = str(whole[index : index + length], "utf-8")
            index += length
            if message[index] != 0x12 or name in inputs:
                raise _UnusualError
            length = message[index + 1]
            index += 2
            if length >= 0x80:
                length, index = read_size(message, index - 1)
            if index + length != stop:
                raise _UnusualError
            inputs[name] = _scan_tensor(
                message, whole, index, stop, name, gaps, options, budget, quick
            )
            if quick and len(inputs) > _MAX_QUICK_FIELDS:
                raise _SlowError
        elif tag == 0x0A:
            if spec is not None:
                raise _UnusualError
            spec = read_model_spec(bytes(whole[index:stop]))
        elif tag == 0x1A:
            wanted.append(str(whole[index:stop], "utf-8"))
            if quick and len(wanted) > _MAX_QUICK_FIELDS:
                raise _SlowError
        elif tag == 0x32 and client_id is None:
            client_id = bytes(whole[index:stop])
        else:
            raise _UnusualError
        index = stop
    view = PredictRequestView(spec, inputs, tuple(wanted), client_id)
    # A client's id differs from client to client, so as a literal it would not recur.
    if gaps and len(gaps) == len(inputs) and client_id is None:
        _remember(message, view, gaps)
    return view


def _scan_tensor(
    message: Buffer,
    whole: memoryview,
    first: int,
    stop: int,
    name: str,
    gaps: list[_Gap],
    options: DecodeOptions,
    budget: FillBudget,
    quick: bool,
) -> TensorView:
    """Reads the TensorProto in ``message[first:stop]``.

    Adds to ``gaps`` if any elements would have been taken in the place of these.
    """
    number = -1
    shape_start = shape_stop = -1
    start = end = 0
    tag = -1
    index = first
    while index < stop:
        this = message[index]
        length = message[index + 1]
        index += 2
        if this == 0x08:
            if number >= 0:
                raise _UnusualError
            number = length
            if length >= 0x80:
                number, index = read_varint(message, index - 1)
            continue
        if this >= 0x80:
            this |= length << 8
            length = message[index]
            index += 1
        if length >= 0x80:
            length, index = read_size(message, index - 1)
        if index + length > stop:
            raise _UnusualError
        if this == 0x12:
            if shape_start >= 0:
                raise _UnusualError
            shape_start = index
            shape_stop = index = index + length
        elif tag >= 0 and not this == tag == _STRING_TAG:
            raise _UnusualError
        else:
            if this == _STRING_TAG and stop - first > _MAX_SCANNED_STRING_BYTES:
                if quick and stop - first > options.quick_bytes:
                    raise _SlowError
                raise _UnusualError
            tag = this
            start = index
            end = index = index + length
    if index != stop:
        raise _UnusualError
    if shape_start < 0:
        shape, num_elements = _SCALAR
    else:
        shape, num_elements = _shape(bytes(whole[shape_start:shape_stop]))
    kind = BY_NUMBER.get(number)
    if kind is None:
        raise _UnusualError
    dtype = kind.dtype
    if tag == _CONTENT_TAG:
        if start == end or dtype is STRING:
            raise _UnusualError
        if num_elements == 0:
            return TensorView(dtype, shape, b"")
        if end - start != num_elements * dtype.item_bytes:
            raise _UnusualError
        if dtype is BOOL:
            return TensorView(dtype, shape, clean_bools(whole[start:end]))
        gaps.append((start, end, name, dtype, shape))
        return TensorView(dtype, shape, whole[start:end])
    if tag >= 0 and tag != _TAG_BY_NUMBER[number]:
        raise _UnusualError
    payload: Buffer = whole[start:end]
    if kind.is_raw:
        if tag < 0:
            payload = b""
        elif (end - start) % _UNIT_BY_TAG[tag]:
            raise _UnusualError
        elif end - start == num_elements * dtype.item_bytes:
            gaps.append((start, end, name, dtype, shape))
            return TensorView(dtype, shape, payload)
    else:
        widened = None if dtype is STRING else widen(dtype, bytes(payload))
        if widened is None:
            # Only known fields, once each: this part means the same on its own.
            if quick and stop - first > options.quick_bytes:
                raise _SlowError
            part = bytes(whole[first:stop])
            return tensor_view_of(tensor_pb2.TensorProto.FromString(part), budget)
        payload = widened
    if num_elements == 0:
        return TensorView(dtype, shape, b"")
    return TensorView(
        dtype, shape, fill_elements(dtype, shape, num_elements, payload, budget)
    )


def _shape(message: bytes) -> _Shape:
    """Reads a TensorShapeProto that holds sizes only."""
    known = _shapes.get(message)
    if known is not None:
        return known
    sizes: list[int] = []
    index = 0
    stop = len(message)
    while index < stop:
        # A dimension: 12 length 08 size, or 12 00 for size 0.
        if message[index] != 0x12 or len(sizes) > MAX_DIMENSIONS:
            raise _UnusualError
        after = index + 2 + message[index + 1]
        if after == index + 2:
            size = 0
        elif message[index + 1] < 0x80 and message[index + 2] == 0x08:
            size, index = read_varint(message, index + 3)
            if index != after:
                raise _UnusualError
        else:
            raise _UnusualError
        sizes.append(size)
        index = after
    if index != stop:
        raise _UnusualError
    shape = tuple(sizes)
    # A negative size is beyond int64 here, and so an error here as well.
    read = (shape, count_elements(shape))
    if any(size >> 63 for size in sizes):
        raise _UnusualError
    if len(message) <= _MAX_SHAPE_BYTES:
        if len(_shapes) >= _MAX_SHAPES:
            _shapes.clear()
        _shapes[message] = read
    return read


# -- upb ------------------------------------------------------------------------------


def _parse(message: Buffer, max_tensor_bytes: int) -> PredictRequestView:
    """Reads any request through message objects, copying its tensors."""
    try:
        request = predict_pb2.PredictRequest.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidArgument(f"cannot parse the PredictRequest: {error}") from error
    if request.predict_streamed_options.request_state:
        raise Unimplemented(
            "streamed prediction (predict_streamed_options) is not offered; send the "
            "whole request in one Predict"
        )
    inputs = {}
    budget = FillBudget(max_tensor_bytes)
    for name, tensor in request.inputs.items():
        try:
            inputs[name] = tensor_view_of(tensor, budget)
        except ServingError as error:
            raise type(error)(
                f"tensor parsing error: {name}: {error.message}"
            ) from error
    return PredictRequestView(
        model_spec_of(request.model_spec) if request.HasField("model_spec") else None,
        inputs,
        tuple(request.output_filter),
        request.client_id if request.HasField("client_id") else None,
    )


def _parse_if_quick(
    message: Buffer, options: DecodeOptions
) -> PredictRequestView | None:
    """As :func:`_parse`; None if it would fill in too much for the serving loop."""
    if options.quick_fill_bytes >= options.max_tensor_bytes:
        return _parse(message, options.max_tensor_bytes)
    try:
        return _parse(message, options.quick_fill_bytes)
    except ResourceExhausted:
        return None
