"""Reads a PredictRequest that is like an earlier one, without parsing it.

Clients send the same message over and over, with other elements. A message that was
read is kept without the elements of its tensors, which leaves gaps. A message that
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

Gap: TypeAlias = tuple[int, int, str, DType | None, tuple[int, ...]]
"""The start and stop of a gap, where any bytes would do; then the name, dtype and shape of
the tensor whose elements they are. Without a dtype they are the client_id."""


class RequestTemplate:
    """What requests have in common that differ only in the elements of their tensors.

    Immutable; equal only to itself.

    Attributes:
        model_spec: The model that they ask for.
        inputs: Name, dtype and shape of each tensor, in the order sent. No strings.

    """

    __slots__ = (
        "_head",
        "_is_small",
        "_literals",
        "_ranges",
        "_size",
        "_start",
        "_stop",
        "_tail",
        "inputs",
        "model_spec",
    )

    def __init__(
        self,
        size: int,
        head: bytes,
        tail: bytes,
        literals: Sequence[tuple[int, bytes]],
        gaps: Sequence[tuple[int, int, str, DType, tuple[int, ...]]],
        model_spec: ModelSpec,
    ) -> None:
        self.model_spec = model_spec
        self.inputs = tuple([(name, dtype, shape) for _, _, name, dtype, shape in gaps])
        self._size = size
        self._head = head
        self._tail = tail
        self._literals = tuple(literals)
        self._start, self._stop = gaps[0][:2]
        self._is_small = len(gaps) == 1 and self._stop - self._start <= _SMALL_BYTES
        self._ranges = tuple([gap[:2] for gap in gaps])

    def elements_of(
        self, messages: Sequence[Buffer], first: int
    ) -> list[tuple[Buffer, ...]]:
        """Returns the elements of each input of messages like this.

        It takes ``messages[first]`` and those after it, up to one that differs.
        """
        found: list[tuple[Buffer, ...]] = []
        size, head, tail = self._size, self._head, self._tail
        start, stop = self._start, self._stop
        for index in range(first, len(messages)):
            message = messages[index]
            if type(message) is not bytes:
                own = self._elements_of_buffer(memoryview(message))
                if own is None:
                    break
                found.append(own)
                continue
            if (
                len(message) != size
                or not message.startswith(head)
                or not message.endswith(tail)
            ):
                break
            if self._is_small:
                found.append((message[start:stop],))
                continue
            elements = self._large_elements_of(message)
            if elements is None:
                break
            found.append(elements)
        return found

    def _elements_of_buffer(self, message: memoryview) -> tuple[Buffer, ...] | None:
        """Does the same for a message that is no bytes and has no ``startswith``."""
        head, tail = self._head, self._tail
        size = self._size
        if (
            len(message) != size
            or message[: len(head)] != head
            or message[size - len(tail) :] != tail
        ):
            return None
        for at, literal in self._literals:
            if message[at : at + len(literal)] != literal:
                return None
        if self._is_small:
            return (bytes(message[self._start : self._stop]),)
        return tuple([message[start:stop] for start, stop in self._ranges])

    def _large_elements_of(self, message: bytes) -> tuple[Buffer, ...] | None:
        for at, literal in self._literals:
            if not message.startswith(literal, at):
                return None
        view = memoryview(message)
        return tuple([view[start:stop] for start, stop in self._ranges])


_Template: TypeAlias = tuple[
    bytes,  # the message up to the first gap
    bytes,  # what follows the last one
    int,  # start, stop, name, dtype and shape of the first gap, a tensor's
    int,
    str,
    DType,
    tuple[int, ...],
    ModelSpec | None,
    tuple[str, ...],  # output filter
    tuple[tuple[int, bytes, Gap], ...],  # start and bytes before each further gap
    RequestTemplate | None,  # the same for many messages, if all gaps are tensors'
]

MAX_OF_LENGTH: Final = 8
MAX_LENGTHS: Final = 1024
_MAX_LITERAL_BYTES: Final = 1024
_SPEC_TAG: Final = 0x0A
_MAX_GAPS: Final = 16
_MAX_TENSOR_FIELDS: Final = 64
_MODEL_SPEC_FIELD: Final = 1
_INPUT_FIELD: Final = 2
_OUTPUT_FILTER_FIELD: Final = 3
_CLIENT_ID_FIELD: Final = 6
_CONTENT_FIELD: Final = 4  # of a tensor
_ENTRY: Final = [(1, wire.DELIMITED), (2, wire.DELIMITED)]  # of the map of inputs

# Elements to copy rather than to point at: a copy of so few costs less than a
# memoryview does, and keeps no receive buffer alive.
_SMALL_BYTES: Final = 512

# By the message's length, the latest first. Values are replaced, never changed; all
# under the GIL.
_templates: dict[int, tuple[_Template, ...]] = {}

# Templates that had to give way to others of their length, by length and model_spec.
# They occur if many models with similar names are called in turn.
_crowded: dict[tuple[int, bytes], tuple[_Template, ...]] = {}
MAX_CROWDED: Final = 4096
_MAX_OF_SPEC: Final = 2


def read_as_before(message: Buffer) -> PredictRequestView | None:
    """Returns the request if one like it is remembered. Thread-safe."""
    candidates = _templates.get(len(message))
    if candidates is None:
        return None
    if type(message) is not bytes:
        return _read_buffer(memoryview(message), candidates)
    while candidates is not None:
        for each in candidates:
            head, tail, start, stop, name, dtype, shape, spec, wanted, more, _ = each
            if message.startswith(head) and message.endswith(tail):
                if not more:
                    if stop - start <= _SMALL_BYTES:
                        view = TensorView(dtype, shape, message[start:stop])
                    else:
                        view = TensorView(dtype, shape, memoryview(message)[start:stop])
                    return PredictRequestView(spec, {name: view}, wanted)
                for at, literal, _ in more:
                    if not message.startswith(literal, at):
                        break
                else:
                    inputs = {
                        name: TensorView(dtype, shape, memoryview(message)[start:stop])
                    }
                    return _with_more(memoryview(message), spec, inputs, wanted, more)
        candidates = _more_candidates(message, candidates)
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
    message = messages[first]
    candidates = _templates.get(len(message))
    while candidates is not None:
        for candidate in candidates:
            template = candidate[-1]
            if template is None:
                continue
            found = template.elements_of(messages, first)
            if found:
                return template, found
        candidates = _more_candidates(message, candidates)
    return None


def _remember(message: Buffer, view: PredictRequestView, gaps: Sequence[Gap]) -> None:
    """Keeps a request without the contents of its gaps, if that is small. Thread-safe.

    Args:
        message: The request, as sent.
        view: Its decoded form.
        gaps: Where the elements of *all* its tensors are, and its ``client_id`` if it
            has one, in the order of the message.

    """
    size = len(message)
    num_literal = size - sum([gap[1] - gap[0] for gap in gaps])
    if num_literal > _MAX_LITERAL_BYTES or len(gaps) > _MAX_GAPS:
        return
    start, stop, name, dtype, shape = gaps[0]
    if dtype is None:
        return
    more = []
    at = stop
    for gap in gaps[1:]:
        more.append((at, bytes(message[at : gap[0]]), gap))
        at = gap[1]
    head, tail = bytes(message[:start]), bytes(message[at:])
    template = (
        head,
        tail,
        start,
        stop,
        name,
        dtype,
        shape,
        view.model_spec,
        view.output_filter,
        tuple(more),
        _template(size, view, gaps, head, tail, more),
    )
    known = _templates.get(size)
    if known is None:
        if len(_templates) >= MAX_LENGTHS:
            _templates.clear()
        known = ()
    _templates[size] = (template, *known[: MAX_OF_LENGTH - 1])
    if len(known) == MAX_OF_LENGTH:
        _crowd(size, known[-1])


def learn(message: Buffer, view: PredictRequestView) -> None:
    """Keeps a request that was parsed, if others may be like it. Thread-safe.

    Args:
        message: The request, as sent.
        view: Its decoded form.

    """
    gaps = _find_gaps(message, view)
    if gaps:
        _remember(message, view, gaps)


def _find_gaps(message: Buffer, view: PredictRequestView) -> list[Gap]:
    """Returns where the elements of all tensors are, and the ``client_id``, in order.

    Returns none if something cannot be left out: if the elements of a tensor are not
    raw, were not all sent, or were sent more than once.
    """
    if not 0 < len(view.inputs) <= _MAX_GAPS or any(
        each.dtype is BOOL or each.dtype is STRING for each in view.inputs.values()
    ):
        return []
    gaps: list[Gap] = []
    names: set[str] = set()
    for number, kind, start, stop in wire.fields(message, 0, len(message)):
        if kind != wire.DELIMITED or len(gaps) > _MAX_GAPS:
            return []
        if number == _CLIENT_ID_FIELD:
            if view.client_id is None or "" in names:
                return []
            names.add("")
            gaps.append((start, stop, "", None, ()))
        elif number == _INPUT_FIELD:
            entry = list(wire.fields(message, start, stop))
            if [each[:2] for each in entry] != _ENTRY:
                return []
            name = str(memoryview(message)[slice(*entry[0][2:])], "utf-8")
            gap = _find_elements(message, *entry[1][2:], name, view.inputs[name])
            if gap is None or f"={name}" in names:
                return []
            names.add(f"={name}")
            gaps.append(gap)
        elif number not in (_MODEL_SPEC_FIELD, _OUTPUT_FILTER_FIELD):
            return []
    return gaps


def _find_elements(
    message: Buffer, start: int, stop: int, name: str, view: TensorView
) -> Gap | None:
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
            if wire_kind != wire.DELIMITED:
                return None
            payloads[number].append((first, last))
    places = payloads[_CONTENT_FIELD]
    if [first for first, last in places if first == last] or not places:
        places = payloads.get(kind.field_number, [])
    if len(places) != 1 or any(len(each) > 1 for each in payloads.values()):
        return None
    ((first, last),) = places
    # Compared as bytes: views are compared one byte at a time.
    if first == last or bytes(memoryview(message)[first:last]) != view.data:
        return None
    return first, last, name, view.dtype, view.shape


def _crowd(size: int, template: _Template) -> None:
    """Keeps a template that others of the same length have replaced."""
    spec = _spec_of(template[0])
    if spec:
        if len(_crowded) >= MAX_CROWDED:
            _crowded.clear()
        key = (size, spec)
        _crowded[key] = (template, *_crowded.get(key, ())[: _MAX_OF_SPEC - 1])


def _more_candidates(
    message: Buffer, candidates: tuple[_Template, ...]
) -> tuple[_Template, ...] | None:
    """Returns the templates that ``candidates`` replaced; None if there are no others."""
    if len(candidates) < MAX_OF_LENGTH:
        return None
    return _crowded.get((len(message), _spec_of(message)))


def _spec_of(message: Buffer) -> bytes:
    """Returns the ``model_spec`` that begins a message; empty if it is missing or long."""
    if len(message) < 2 or message[0] != _SPEC_TAG or message[1] >= 0x80:
        return b""
    return bytes(message[: 2 + message[1]])


def _template(
    size: int,
    view: PredictRequestView,
    gaps: Sequence[Gap],
    head: bytes,
    tail: bytes,
    more: Sequence[tuple[int, bytes, Gap]],
) -> RequestTemplate | None:
    if view.model_spec is None or view.output_filter or view.client_id is not None:
        return None
    tensors = [
        (start, stop, name, dtype, shape)
        for start, stop, name, dtype, shape in gaps
        if dtype is not None
    ]
    literals = [(at, literal) for at, literal, _ in more]
    return RequestTemplate(size, head, tail, literals, tensors, view.model_spec)


def forget() -> None:
    """Forgets every request."""
    _templates.clear()
    _crowded.clear()


def num_remembered() -> tuple[int, int, int]:
    """Returns how many requests are remembered.

    The numbers are: how many lengths, the most requests of one length, and how many
    models are remembered besides because their requests have a common length.
    """
    most = max(map(len, _templates.values()), default=0)
    return len(_templates), most, len(_crowded)


def _read_buffer(
    message: memoryview, candidates: tuple[_Template, ...]
) -> PredictRequestView | None:
    """Like :func:`read_as_before`, for a message that has no ``startswith``."""
    for candidate in (*candidates, *(_more_candidates(message, candidates) or ())):
        head, tail, start, stop, name, dtype, shape, spec, wanted, more, _ = candidate
        if message[:start] != head or message[len(message) - len(tail) :] != tail:
            continue
        for at, literal, _ in more:
            if message[at : at + len(literal)] != literal:
                break
        else:
            inputs = {name: TensorView(dtype, shape, message[start:stop])}
            return _with_more(message, spec, inputs, wanted, more)
    return None


def _with_more(
    message: memoryview,
    spec: ModelSpec | None,
    inputs: dict[str, TensorView],
    wanted: tuple[str, ...],
    more: tuple[tuple[int, bytes, Gap], ...],
) -> PredictRequestView:
    """Returns the request with the contents of its further gaps."""
    client_id: bytes | None = None
    for _, _, (start, stop, name, dtype, shape) in more:
        if dtype is None:
            client_id = bytes(message[start:stop])
        else:
            inputs[name] = TensorView(dtype, shape, message[start:stop])
    return PredictRequestView(spec, inputs, wanted, client_id)
