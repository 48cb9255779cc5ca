"""Reads a PredictRequest like one that was read before, without parsing it.

Clients send the same message over and over, with other elements. A message read before
is kept without its tensors' elements; one that equals it byte for byte around them is
read the same way. That is right because what is left out, the gaps, was accepted
whatever it held: a parser takes the same way through both messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from tfs.codec.model_spec import ModelSpec
from tfs.codec.predict_view import PredictRequestView
from tfs.core.dtype import DType
from tfs.core.tensor_view import Buffer, TensorView

Gap: TypeAlias = tuple[int, int, str, DType | None, tuple[int, ...]]
"""Where any bytes would do: start and stop. Then whose elements they are, by name,
dtype and shape; without a dtype they are the client_id."""

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
]

MAX_OF_LENGTH: Final = 8
MAX_LENGTHS: Final = 1024
_MAX_LITERAL_BYTES: Final = 1024
_MAX_GAPS: Final = 16

# Elements to copy rather than to point at: a copy of so few costs less than a
# memoryview does, and keeps no receive buffer alive.
_SMALL_BYTES: Final = 512

# By the message's length. Values are replaced, never changed; all under the GIL.
_templates: dict[int, tuple[_Template, ...]] = {}


def read_as_before(message: Buffer) -> PredictRequestView | None:
    """Returns the request if one like it is remembered. Thread-safe."""
    candidates = _templates.get(len(message))
    if candidates is None:
        return None
    if type(message) is not bytes:
        return _read_buffer(memoryview(message), candidates)
    for head, tail, start, stop, name, dtype, shape, spec, wanted, more in candidates:
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
    return None


def remember(message: Buffer, view: PredictRequestView, gaps: Sequence[Gap]) -> None:
    """Keeps a request, without what is in its gaps, if that is small. Thread-safe.

    Args:
        message: The request, as sent.
        view: What it says.
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
        if len(_templates) >= MAX_LENGTHS:
            _templates.clear()
        known = ()
    _templates[size] = (template, *known[: MAX_OF_LENGTH - 1])


def forget() -> None:
    """Forgets every request."""
    _templates.clear()


def num_remembered() -> tuple[int, int]:
    """Returns how many lengths are remembered, and the most requests of one length."""
    return len(_templates), max(map(len, _templates.values()), default=0)


def _read_buffer(
    message: memoryview, candidates: tuple[_Template, ...]
) -> PredictRequestView | None:
    """As :func:`read_as_before`, of a message that has no ``startswith``."""
    for head, tail, start, stop, name, dtype, shape, spec, wanted, more in candidates:
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
    """Returns the request with what is in its further gaps."""
    client_id: bytes | None = None
    for _, _, (start, stop, name, dtype, shape) in more:
        if dtype is None:
            client_id = bytes(message[start:stop])
        else:
            inputs[name] = TensorView(dtype, shape, message[start:stop])
    return PredictRequestView(spec, inputs, wanted, client_id)
