"""Reads a PredictRequest that is like an earlier one, without parsing it.

Clients send the same message over and over, with other elements. A message that was
parsed is kept without the elements of its tensors, which leaves gaps. A message that
equals it byte for byte around the gaps is read in the same way. That is correct because
a gap may have any content: a parser would take the same path through both messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, TypeAlias

from tfs.codec import wire
from tfs.codec.model_spec import ModelSpec
from tfs.codec.predict_view import PredictRequestView
from tfs.codec.wire_type import BY_DTYPE
from tfs.core.dtype import BOOL, STRING, DType
from tfs.core.tensor_view import Buffer, TensorView

_Gap: TypeAlias = tuple[int, int, str, DType | None, tuple[int, ...]]
"""The start and stop of a gap, where any bytes would do; then the name, dtype and shape of
the tensor whose elements they are. Without a dtype they are the client_id."""

MAX_KEYS: Final = 4096
MAX_OF_KEY: Final = 4
_MAX_LITERAL_BYTES: Final = 1024
_MAX_GAPS: Final = 16
_MAX_TENSOR_FIELDS: Final = 64

# Elements to copy rather than to point at: a copy of so few costs less than a
# memoryview does, and keeps no receive buffer alive.
_SMALL_BYTES: Final = 512

_MODEL_SPEC_FIELD: Final = 1
_INPUT_FIELD: Final = 2
_OUTPUT_FILTER_FIELD: Final = 3
_CLIENT_ID_FIELD: Final = 6
_CONTENT_FIELD: Final = 4  # of a tensor
_ENTRY: Final = [(1, wire.DELIMITED), (2, wire.DELIMITED)]  # of the map of inputs
_SPEC_TAG: Final = 0x0A


class RequestTemplate:
    """What requests have in common that differ only in the elements of their tensors.

    Immutable; equal only to itself.

    Attributes:
        model_spec: The model that they ask for; empty if they name none.
        inputs: Name, dtype and shape of each tensor, in the order sent. No strings.
        is_plain: Whether they hold a model and tensors, and nothing else.

    """

    __slots__ = (
        "_gaps",
        "_head",
        "_is_small",
        "_literals",
        "_model_spec",
        "_output_filter",
        "_size",
        "_start",
        "_stop",
        "_tail",
        "inputs",
        "is_plain",
        "model_spec",
    )

    def __init__(
        self, message: Buffer, view: PredictRequestView, gaps: Sequence[_Gap]
    ) -> None:
        stops = [0, *(gap[1] for gap in gaps)]
        literals = [
            (stop, bytes(message[stop : gap[0]]))
            for stop, gap in zip(stops, gaps, strict=False)
        ]
        self._size = len(message)
        self._head = literals[0][1]
        self._tail = bytes(message[stops[-1] :])
        self._literals = tuple(literals[1:])
        self._gaps = tuple(gaps)
        self._start, self._stop = gaps[0][:2]
        self._is_small = len(gaps) == 1 and self._stop - self._start <= _SMALL_BYTES
        self._output_filter = view.output_filter
        self._model_spec = view.model_spec
        self.model_spec = view.model_spec or ModelSpec("")
        self.inputs = tuple(
            [
                (name, dtype, shape)
                for _, _, name, dtype, shape in gaps
                if dtype is not None
            ]
        )
        self.is_plain = (
            view.model_spec is not None
            and not view.output_filter
            and view.client_id is None
        )

    def read(self, message: Buffer) -> tuple[Buffer, ...] | None:
        """Returns the contents of the gaps; None if the message is not like this."""
        if len(message) != self._size:
            return None
        head, tail = self._head, self._tail
        if type(message) is bytes:
            if not message.startswith(head) or not message.endswith(tail):
                return None
            for at, literal in self._literals:
                if not message.startswith(literal, at):
                    return None
            if self._is_small:
                return (message[self._start : self._stop],)
            whole = memoryview(message)
        else:
            whole = memoryview(message)
            if whole[: len(head)] != head or whole[self._size - len(tail) :] != tail:
                return None
            for at, literal in self._literals:
                if whole[at : at + len(literal)] != literal:
                    return None
            if self._is_small:
                return (bytes(whole[self._start : self._stop]),)
        return tuple([whole[gap[0] : gap[1]] for gap in self._gaps])

    def read_alike(
        self, messages: Sequence[Buffer], first: int
    ) -> list[tuple[Buffer, ...]]:
        """Reads ``messages[first]`` and those after it, up to one that differs."""
        found: list[tuple[Buffer, ...]] = []
        size, head, tail = self._size, self._head, self._tail
        start, stop, is_small = self._start, self._stop, self._is_small
        for index in range(first, len(messages)):
            message = messages[index]
            if is_small and type(message) is bytes:
                # Nearly all are like this; a call of read() would take as long again.
                if (
                    len(message) != size
                    or not message.startswith(head)
                    or not message.endswith(tail)
                ):
                    break
                found.append((message[start:stop],))
                continue
            elements = self.read(message)
            if elements is None:
                break
            found.append(elements)
        return found

    def view_of(self, contents: tuple[Buffer, ...]) -> PredictRequestView:
        """Returns the request whose gaps have these contents."""
        inputs: dict[str, TensorView] = {}
        client_id: bytes | None = None
        for (_, _, name, dtype, shape), data in zip(self._gaps, contents, strict=True):
            if dtype is None:
                client_id = bytes(data)
            else:
                inputs[name] = TensorView(dtype, shape, data)
        return PredictRequestView(
            self._model_spec, inputs, self._output_filter, client_id
        )


# By the message's length and the model_spec that begins it, the latest first. Values are
# replaced, never changed; all under the GIL.
_templates: dict[tuple[int, bytes], tuple[RequestTemplate, ...]] = {}


def read_as_before(message: Buffer) -> PredictRequestView | None:
    """Returns the request if one like it is remembered. Thread-safe."""
    for template in _templates.get(_key_of(message), ()):
        contents = template.read(message)
        if contents is not None:
            return template.view_of(contents)
    return None


def read_alike(
    messages: Sequence[Buffer], first: int
) -> tuple[RequestTemplate, list[tuple[Buffer, ...]]] | None:
    """Reads requests that differ only in elements. Thread-safe.

    Returns the template, and the elements of the inputs of ``messages[first]`` and
    those after it, up to one that differs. Returns None if the first is like no
    remembered request, or has more than a model and tensors (an output filter, a
    client_id).
    """
    for template in _templates.get(_key_of(messages[first]), ()):
        if template.is_plain:
            found = template.read_alike(messages, first)
            if found:
                return template, found
    return None


def learn(message: Buffer, view: PredictRequestView) -> None:
    """Keeps a request that was parsed, if others may be like it. Thread-safe.

    Args:
        message: The request, as sent.
        view: Its decoded form.

    """
    gaps = _find_gaps(message, view)
    num_literal = len(message) - sum([gap[1] - gap[0] for gap in gaps])
    if not gaps or num_literal > _MAX_LITERAL_BYTES:
        return
    key = _key_of(message)
    known = _templates.get(key)
    if known is None:
        if len(_templates) >= MAX_KEYS:
            _templates.clear()
        known = ()
    template = RequestTemplate(message, view, gaps)
    _templates[key] = (template, *known[: MAX_OF_KEY - 1])


def forget() -> None:
    """Forgets every request."""
    _templates.clear()


def num_remembered() -> tuple[int, int]:
    """Returns how many lengths and models are remembered, and the most requests of one."""
    most = max(map(len, _templates.values()), default=0)
    return len(_templates), most


def _key_of(message: Buffer) -> tuple[int, bytes]:
    """Returns a message's length and its ``model_spec``, if that begins it and is short."""
    size = len(message)
    if size < 2 or message[0] != _SPEC_TAG or message[1] >= 0x80:
        return size, b""
    return size, bytes(message[2 : 2 + message[1]])


def _find_gaps(message: Buffer, view: PredictRequestView) -> list[_Gap]:
    """Returns where the elements of all tensors are, and the ``client_id``, in order.

    Returns none if something cannot be left out: if the elements of a tensor are not
    raw, were not all sent, or were sent more than once.
    """
    if not 0 < len(view.inputs) <= _MAX_GAPS or any(
        each.dtype is BOOL or each.dtype is STRING for each in view.inputs.values()
    ):
        return []
    gaps: list[_Gap] = []
    names: set[str | None] = set()  # None stands for the client_id
    for number, kind, start, stop in wire.fields(message, 0, len(message)):
        name: str | None = None
        gap: _Gap | None = (start, stop, "", None, ())
        if kind != wire.DELIMITED or len(gaps) > _MAX_GAPS:
            return []
        if number in (_MODEL_SPEC_FIELD, _OUTPUT_FILTER_FIELD):
            continue
        if number == _INPUT_FIELD:
            entry = list(wire.fields(message, start, stop))
            if [each[:2] for each in entry] != _ENTRY:
                return []
            name = str(memoryview(message)[slice(*entry[0][2:])], "utf-8")
            gap = _find_elements(message, *entry[1][2:], name, view.inputs[name])
        elif number != _CLIENT_ID_FIELD:
            return []
        if gap is None or name in names:
            return []
        names.add(name)
        gaps.append(gap)
    return gaps


def _find_elements(
    message: Buffer, start: int, stop: int, name: str, view: TensorView
) -> _Gap | None:
    """Returns where a TensorProto has a view's elements; None if not at one place."""
    kind = BY_DTYPE[view.dtype]
    payloads: dict[int, list[tuple[int, int]]] = {_CONTENT_FIELD: []}
    if kind.is_raw:
        payloads[kind.field_number] = []
    fields = islice(wire.fields(message, start, stop), _MAX_TENSOR_FIELDS + 1)
    for index, (number, wire_kind, first, last) in enumerate(fields):
        if index == _MAX_TENSOR_FIELDS:
            return None
        if number in payloads:
            if wire_kind != wire.DELIMITED or payloads[number]:
                return None
            payloads[number].append((first, last))
    # An empty content counts as none.
    places = [place for place in payloads[_CONTENT_FIELD] if place[0] != place[1]]
    places = places or payloads.get(kind.field_number, [])
    if not places:
        return None
    first, last = places[0]
    # Compared as bytes: views are compared one byte at a time.
    if first == last or bytes(memoryview(message)[first:last]) != view.data:
        return None
    return first, last, name, view.dtype, view.shape
