"""Reads a request that is like an earlier one, without parsing it.

Clients send the same message over and over, with other elements. A message that was
parsed is kept without the elements of its tensors, which leaves gaps. A message that
equals it byte for byte around the gaps is read in the same way. That is correct because
a gap may have any content: a parser would take the same path through both messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, Self, TypeAlias, TypeVar

from tfs.codec import wire
from tfs.codec.decode_options import DEFAULT_OPTIONS, DecodeOptions, FillBudget
from tfs.codec.model_spec import ModelSpec
from tfs.core.dtype import DType
from tfs.core.errors import ResourceExhausted
from tfs.core.tensor_view import Buffer, TensorView

Gap: TypeAlias = tuple[int, int, str, DType | None, tuple[int, ...]]
"""The start and stop of a gap, where any bytes would do; then the name, dtype and shape of
the tensor whose elements they are. Without a dtype they are a text of the caller's."""

MAX_KEYS: Final = 4096
MAX_OF_KEY: Final = 4
_MAX_LITERAL_BYTES: Final = 1024

# Elements to copy rather than to point at: a copy of so few costs less than a
# memoryview does, and keeps no receive buffer alive.
_SMALL_BYTES: Final = 512

_SPEC_TAG: Final = 0x0A  # of what names the model, in every kind of request


class RequestView(Protocol):
    """The contents of a request. Immutable."""

    @property
    def model_spec(self) -> ModelSpec | None:
        """Which model; None if the request has none."""
        ...

    @property
    def inputs(self) -> dict[str, TensorView]:
        """Tensors by name, in the order sent."""
        ...

    @property
    def output_filter(self) -> tuple[str, ...]:
        """Names of the wanted outputs, as sent; empty for all."""
        ...

    @property
    def client_id(self) -> bytes | None:
        """The caller's name for itself; None if it sent none."""
        ...

    @property
    def filled_bytes(self) -> int:
        """How much its tensors take beyond what was sent."""
        ...

    @property
    def is_plain(self) -> bool:
        """Whether it holds a model and tensors, and nothing else."""
        ...

    def renewed(self, inputs: dict[str, TensorView], text: bytes | None) -> Self:
        """Returns the same request with other tensors and another text of the caller's."""
        ...


V = TypeVar("V", bound=RequestView)


class RequestTemplate(Generic[V]):
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
        "_size",
        "_start",
        "_stop",
        "_tail",
        "_view",
        "inputs",
        "is_plain",
        "model_spec",
    )

    def __init__(self, message: Buffer, view: V, gaps: Sequence[Gap]) -> None:
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
        self._view = view.renewed({}, None)
        self.model_spec = view.model_spec or ModelSpec("")
        self.inputs = tuple(
            [
                (name, dtype, shape)
                for _, _, name, dtype, shape in gaps
                if dtype is not None
            ]
        )
        self.is_plain = view.is_plain

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

    def view_of(self, contents: tuple[Buffer, ...]) -> V:
        """Returns the request whose gaps have these contents."""
        inputs: dict[str, TensorView] = {}
        text: bytes | None = None
        for (_, _, name, dtype, shape), data in zip(self._gaps, contents, strict=True):
            if dtype is None:
                text = bytes(data)
            else:
                inputs[name] = TensorView(dtype, shape, data)
        return self._view.renewed(inputs, text)


class RequestTemplates(Generic[V]):
    """The requests of one kind that were parsed before, a bounded number. Thread-safe.

    Args:
        find_gaps: Returns where the elements of all tensors are, and a text that callers
            vary, in order; none if something cannot be left out.

    """

    def __init__(self, find_gaps: Callable[[Buffer, V], Sequence[Gap]]) -> None:
        self._find_gaps = find_gaps
        # By the message's length and what begins it, the latest first. Values are
        # replaced, never changed; all under the GIL.
        self._known: dict[tuple[int, bytes], tuple[RequestTemplate[V], ...]] = {}

    def read_as_before(self, message: Buffer) -> V | None:
        """Returns the request if one like it is remembered."""
        for template in self._known.get(_key_of(message), ()):
            contents = template.read(message)
            if contents is not None:
                return template.view_of(contents)
        return None

    def read_alike(
        self, messages: Sequence[Buffer], first: int
    ) -> tuple[RequestTemplate[V], list[tuple[Buffer, ...]]] | None:
        """Reads requests that differ only in elements.

        Returns the template, and the elements of the inputs of ``messages[first]`` and
        those after it, up to one that differs. Returns None if the first is like no
        remembered request, or has more than a model and tensors.
        """
        for template in self._known.get(_key_of(messages[first]), ()):
            if template.is_plain:
                found = template.read_alike(messages, first)
                if found:
                    return template, found
        return None

    def learn(self, message: Buffer, view: V) -> None:
        """Keeps a request that was parsed, if others may be like it.

        Args:
            message: The request, as sent.
            view: Its decoded form.

        """
        gaps = self._find_gaps(message, view)
        num_literal = len(message) - sum([gap[1] - gap[0] for gap in gaps])
        if not gaps or num_literal > _MAX_LITERAL_BYTES:
            return
        key = _key_of(message)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_KEYS:
                self._known.clear()
            known = ()
        template = RequestTemplate(message, view, gaps)
        self._known[key] = (template, *known[: MAX_OF_KEY - 1])

    def forget(self) -> None:
        """Forgets every request."""
        self._known.clear()

    def num_remembered(self) -> tuple[int, int]:
        """Returns how many lengths and models are remembered, and the most requests of one."""
        most = max(map(len, self._known.values()), default=0)
        return len(self._known), most


def _key_of(message: Buffer) -> tuple[int, bytes]:
    """Returns a message's length and what names its model, if that begins it and is short."""
    size = len(message)
    if size < 2 or message[0] != _SPEC_TAG or message[1] >= 0x80:
        return size, b""
    return size, bytes(message[2 : 2 + message[1]])


V_co = TypeVar("V_co", bound=RequestView, covariant=True)

_MAX_QUICK_FIELDS: Final = 128


class _Parse(Protocol[V_co]):
    """Parses any request; raises ServingError. Thread-safe."""

    def __call__(self, message: Buffer, budget: FillBudget) -> V_co: ...


class RequestReader(Generic[V]):
    """Reads requests of one kind. Thread-safe.

    Args:
        known: Those that were read before.
        parse: Reads the others.

    Attributes:
        read_alike: See :meth:`RequestTemplates.read_alike`.

    """

    def __init__(self, known: RequestTemplates[V], parse: _Parse[V]) -> None:
        self._known = known
        self._parse = parse
        self.read_alike = known.read_alike

    def read(
        self,
        message: Buffer,
        options: DecodeOptions = DEFAULT_OPTIONS,
        reserve: Callable[[int], None] | None = None,
    ) -> V:
        """Decodes a request, however long that takes.

        Args:
            message: The request.
            options: Its limits.
            reserve: Is called before the request takes memory beyond its own bytes, with
                how much it takes in all; what it raises passes through.

        Raises:
            InvalidArgument: It is no such request; or ``tensor parsing error: NAME: ...``.
            ResourceExhausted: An input's shape claims more than ``max_fill_bytes`` of
                elements that were not sent; or they take more than ``max_tensor_bytes``
                beyond what was sent; or there are more than ``MAX_FIELDS`` fields, or
                twice as many dimensions and other fields in the inputs.
            Unimplemented: It asks for what is not offered.

        """
        view = self._known.read_as_before(message)
        if view is None:
            budget = FillBudget(
                options.max_tensor_bytes, reserve, options.max_fill_bytes
            )
            view = self._parse(message, budget)
            self._known.learn(message, view)
        return view

    def read_if_quick(
        self, message: Buffer, options: DecodeOptions = DEFAULT_OPTIONS
    ) -> V | None:
        """Decodes a request that takes no longer than about a millisecond.

        Returns None for any other, which :meth:`read` decodes off the serving loop. The
        size of one that is like an earlier one does not matter, because raw elements are
        never touched.

        Raises:
            ServingError: As :meth:`read`.

        """
        view = self._known.read_as_before(message)
        if view is None:
            if len(message) > options.quick_bytes:
                return None
            view = self._parse_if_quick(message, options)
            if view is not None:
                self._known.learn(message, view)
        return view

    def _parse_if_quick(self, message: Buffer, options: DecodeOptions) -> V | None:
        """Parses a request; returns None if it has, or fills in, too much for the loop."""
        if wire.has_more_fields(message, 0, len(message), _MAX_QUICK_FIELDS):
            return None
        if options.quick_fill_bytes >= options.max_fill_bytes:
            return self._parse(
                message,
                FillBudget(options.max_tensor_bytes, None, options.max_fill_bytes),
            )
        try:
            return self._parse(message, FillBudget(options.quick_fill_bytes))
        except ResourceExhausted:
            return None
