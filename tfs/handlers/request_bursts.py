"""Requests over HTTP that arrive together and differ only in the elements of their tensors.

The first request with a head is answered like any request, and shows what those with the
same head look like. Those that follow are read by what it left here, and share a request
plan as those of gRPC do (``PredictHandler.start_alike``). Whatever is not so is left to be
answered one by one, errors included.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tfs.codec.model_spec import ModelSpec
from tfs.core.call import TRACING, is_low_priority
from tfs.core.dtype import BOOL, DTYPES, DType
from tfs.core.http_call import JSON, HttpCall
from tfs.core.signature import Signature
from tfs.core.tensor_view import Buffer, TensorView
from tfs.handlers.limits.answered_request import PREDICT
from tfs.handlers.predict import PredictHandler
from tfs.handlers.request_format import ReplyWriter

_PLAIN_DTYPES: Final = frozenset(
    each for each in DTYPES.values() if each.code and each is not BOOL
)
"""Of which any bytes are elements."""

_MAX_HEADS: Final = 256
_MAX_BEGINNINGS: Final = 16
_MAX_BEGINNING_BYTES: Final = 4096
_SMALL_BYTES: Final = 512  # are copied in less time than a view takes


@dataclass(frozen=True, slots=True, eq=False)
class BurstTemplate:
    """What some requests have in common. See :class:`tfs.handlers.predict.Alike`.

    Attributes:
        model_spec: The model that they ask for.
        inputs: Name, dtype and shape of each tensor.
        replies: Writes the answers.
        content_type: Of the answers.
        length_header: Theirs; see :class:`tfs.core.http_call.HttpCall`.

    """

    model_spec: ModelSpec
    inputs: tuple[tuple[str, DType, tuple[int, ...]], ...]
    replies: ReplyWriter
    content_type: str = JSON
    length_header: str = ""


Plain: TypeAlias = tuple[BurstTemplate, tuple[Buffer, ...]]
"""What a request has in common with others, and its elements."""

BurstReader = Callable[[Sequence[Buffer]], Sequence[Plain | None]]
"""Returns what each of some bodies is; None for those that are no such requests."""


class EndReader:
    """Reads bodies that begin as earlier ones did and end in the elements of their tensors.

    A ``BurstReader``. Confined to the serving loop.

    Args:
        begin_bytes: How long the beginnings are.

    """

    def __init__(self, begin_bytes: int) -> None:
        self._begin_bytes = begin_bytes
        self._known: dict[bytes, tuple[BurstTemplate, tuple[int, ...]]] = {}

    def __call__(self, bodies: Sequence[Buffer]) -> Sequence[Plain | None]:
        return [self._read(body) for body in bodies]

    def _read(self, body: Buffer) -> Plain | None:
        begin = self._begin_bytes
        found = self._known.get(bytes(body[:begin]))
        if found is None:
            return None
        template, ends = found
        stop = ends[-1]
        if len(body) != stop:
            return None
        if stop - begin > _SMALL_BYTES:
            body = memoryview(body)
        if len(ends) == 1:
            return template, (body[begin:],)
        starts = (begin, *ends)
        return template, tuple(
            [body[start:end] for start, end in zip(starts, ends, strict=False)]
        )


@dataclass(slots=True)
class RequestBursts:
    """Answers such requests. Confined to the serving loop.

    Attributes:
        predict: Answers them.

    """

    predict: PredictHandler
    _readers: dict[Hashable, BurstReader] = field(default_factory=dict)  # by head

    def reader_of(self, call: HttpCall) -> BurstReader | None:
        """Returns what reads requests with the same head; None if nothing does."""
        return self._readers.get(call.head)

    def learn(self, call: HttpCall, reader: BurstReader) -> None:
        """Has requests with the same head read by this from now on."""
        if len(self._readers) >= _MAX_HEADS:
            self._readers.clear()
        self._readers[call.head] = reader

    def learn_end(
        self,
        call: HttpCall,
        spec: ModelSpec,
        inputs: Mapping[str, TensorView],
        replies: ReplyWriter,
    ) -> None:
        """Has requests with the same head, and the same beginning, taken as this one.

        Its body must end in the elements of its inputs, in their order.
        """
        template = BurstTemplate(
            spec,
            tuple([(name, view.dtype, view.shape) for name, view in inputs.items()]),
            replies,
            call.content_type,
            call.length_header,
        )
        sizes = [view.size_bytes for view in inputs.values()]
        body = call.message
        begin = len(body) - sum(sizes)
        if not 0 < begin <= _MAX_BEGINNING_BYTES:
            return
        reader = self.reader_of(call)
        if not isinstance(reader, EndReader) or reader._begin_bytes != begin:
            reader = EndReader(begin)
            self.learn(call, reader)
        known, beginning = reader._known, bytes(body[:begin])
        found = known.get(beginning)
        if found is None or found[0].inputs != template.inputs:
            if len(known) >= _MAX_BEGINNINGS:
                known.clear()
            ends = [begin + sum(sizes[: index + 1]) for index in range(len(sizes))]
            known[beginning] = template, tuple(ends)

    def take(self, calls: Sequence[HttpCall]) -> Sequence[HttpCall]:
        """Starts what it can; returns the requests that are left."""
        by_reader: dict[BurstReader | None, list[HttpCall]] = {}
        for call in calls:
            by_reader.setdefault(self._readers.get(call.head), []).append(call)
        left = by_reader.pop(None, [])
        alike: dict[BurstTemplate, tuple[list[HttpCall], list[tuple[Buffer, ...]]]] = {}
        for reader, same in by_reader.items():
            assert reader is not None
            bodies = [call.message for call in same]
            for call, found in zip(same, reader(bodies), strict=True):
                if found is None:
                    left.append(call)
                    continue
                template, elements = found
                call.content_type = template.content_type
                call.length_header = template.length_header
                group = alike.get(template)
                if group is None:
                    group = alike[template] = [], []
                group[0].append(call)
                group[1].append(elements)
        for template, (own, own_elements) in alike.items():
            tracer = TRACING.tracer
            has_traced = tracer is not None and tracer.begin_some(own, PREDICT)
            if not self.predict.start_alike(
                template,
                own,
                own_elements,
                template.replies,
                is_all=len(own) == len(calls),
                has_traced=has_traced,
            ):
                left += own
        return left


def may_come_together(
    call: HttpCall, signature: Signature, inputs: Mapping[str, TensorView]
) -> bool:
    """Whether requests like this one may be taken together."""
    return all(view.dtype in _PLAIN_DTYPES for view in inputs.values()) and not (
        signature.defaults or call.query or is_low_priority(call.metadata)
    )
