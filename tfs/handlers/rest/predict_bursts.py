"""Predict requests over HTTP that arrive together and differ only in their elements.

Most are one tensor of numbers for a signature with one input. Of those the first is
answered like any request, which shows name and dtype of the input. Those that follow
with the same head are read straight into arrays, and share a request plan as those of
gRPC do (``PredictHandler.start_alike``). Whatever is not so is left to be answered one
by one, errors included.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tfs.codec.json.plain_body import (
    PLAIN_DTYPES,
    PlainBody,
    read_plain_json,
    read_plain_msgpack,
    read_plain_npy,
)
from tfs.codec.json.predict_body import Layout
from tfs.codec.model_spec import ModelSpec
from tfs.core.call import is_low_priority
from tfs.core.dtype import DType
from tfs.core.http_call import HttpCall
from tfs.core.signature import Signature
from tfs.core.tensor_view import Buffer
from tfs.handlers.predict import PredictHandler
from tfs.handlers.rest.forms import Form, FormedReplies

_MAX_ROUTES: Final = 1024
_MAX_TEMPLATES: Final = 4096
_MAX_JSON_BYTES: Final = 6 << 10  # longer JSON asks for room before it is parsed

_READERS: Final[dict[Form, Callable[[Buffer, str, DType], PlainBody | None]]] = {
    Form.JSON: read_plain_json,
    Form.NPY: read_plain_npy,
    Form.MSGPACK: read_plain_msgpack,
}


@dataclass(frozen=True, slots=True)
class PredictRoute:
    """What a request's head says: who is asked, in which form, for which. Immutable."""

    spec: ModelSpec
    form: Form
    wanted: Form


@dataclass(frozen=True, slots=True)
class _Known:
    """A head whose requests are for a signature of one input of numbers. Immutable."""

    route: PredictRoute
    name: str
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class _Template:
    """See :class:`tfs.handlers.predict.Alike`."""

    model_spec: ModelSpec
    inputs: tuple[tuple[str, DType, tuple[int, ...]], ...]
    replies: FormedReplies
    content_type: str


class PredictBursts:
    """Answers such requests. Confined to the serving loop.

    Args:
        predict: Answers Predict.

    """

    def __init__(self, predict: PredictHandler) -> None:
        self._predict = predict
        self._known: dict[Hashable, _Known] = {}  # by head
        self._templates: dict[tuple[_Known, Layout, tuple[int, ...]], _Template] = {}

    def learn(self, call: HttpCall, route: PredictRoute, signature: Signature) -> None:
        """Takes note of the signature that a request asked for without naming it."""
        if (
            len(signature.inputs) != 1
            or signature.defaults
            or route.form not in _READERS
            or call.query
            or is_low_priority(call.metadata)
        ):
            return
        ((name, spec),) = signature.inputs.items()
        if spec.dtype in PLAIN_DTYPES:
            if len(self._known) >= _MAX_ROUTES:
                self._known.clear()
            self._known[call.head] = _Known(route, name, spec.dtype)

    def take(self, calls: Sequence[HttpCall]) -> Sequence[HttpCall]:
        """Starts what it can; returns the requests that are left, in their order."""
        left: list[HttpCall] = []
        alike: dict[_Template, tuple[list[HttpCall], list[tuple[Buffer, ...]]]] = {}
        with np.errstate(over="ignore"):
            for call in calls:
                known = self._known.get(call.head)
                body = None if known is None else _read(known, call.message)
                if known is None or body is None:
                    left.append(call)
                    continue
                template = self._templates.get((known, body.layout, body.shape))
                if template is None:
                    template = self._new_template(known, body)
                call.content_type = template.content_type
                found = alike.get(template)
                if found is None:
                    found = alike[template] = [], []
                found[0].append(call)
                found[1].append((body.elements,))
        for template, (own, elements) in alike.items():
            is_all = len(own) == len(calls)
            if not self._predict.start_alike(
                template, own, elements, template.replies, is_all=is_all
            ):
                left += own
        return left

    def _new_template(self, known: _Known, body: PlainBody) -> _Template:
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        route = known.route
        template = _Template(
            route.spec,
            ((known.name, known.dtype, body.shape),),
            FormedReplies(route.wanted, body.layout),
            route.wanted.value,
        )
        self._templates[known, body.layout, body.shape] = template
        return template


def _read(known: _Known, message: Buffer) -> PlainBody | None:
    form = known.route.form
    if form is Form.JSON and len(message) > _MAX_JSON_BYTES:
        return None
    return _READERS[form](message, known.name, known.dtype)
