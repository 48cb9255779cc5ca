"""The forms in which tensors travel over HTTP, by ``Content-Type`` and ``Accept``."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tfs.codec.json.packed import (
    msgpack_head,
    npy_head,
    parse_msgpack,
    parse_npy,
    write_msgpack,
    write_npy,
)
from tfs.codec.json.predict_body import Layout, PredictBody
from tfs.codec.json.tensor_writer import write_plain_replies, write_predict_reply
from tfs.codec.predict_response import Answerer, PredictReplies, Reply
from tfs.core.dtype import STRING
from tfs.core.http_call import accepted
from tfs.core.servable import Tensors
from tfs.core.tensor_view import LARGE_BYTES, Buffer
from tfs.handlers.request_format import ReplyWriter


class Form(enum.Enum):
    """A form of bodies; the value is its content type."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"
    NPY = "application/x-npy"
    PROTOBUF = "application/x-protobuf"


_FORMS: Final = {form.value: form for form in Form} | {
    "application/x-msgpack": Form.MSGPACK,
    "application/protobuf": Form.PROTOBUF,
}


def form_of(content_type: str) -> Form:
    """Returns the form of a body. Types that are none of ours count as JSON.

    As in TensorFlow Serving: curl says of its data that it comes from a form in a page.
    """
    return _FORMS.get(content_type.partition(";")[0].strip().lower(), Form.JSON)


def wanted_form(accept: str, sent: Form) -> Form:
    """Returns the form of the answer: the first of ours that is accepted, or as sent."""
    return next((_FORMS[each] for each in accepted(accept) if each in _FORMS), sent)


PARSERS: Final[Mapping[Form, Callable[[Buffer], PredictBody]]] = {
    Form.JSON: PredictBody.parse,
    Form.MSGPACK: parse_msgpack,
    Form.NPY: parse_npy,
}
_MESSAGES: Final = PredictReplies(as_tensor_content=True)


@dataclass(frozen=True, slots=True)
class FormedReplies(ReplyWriter):
    """Writes replies in one form. Immutable.

    Attributes:
        form: The form.
        layout: Of replies in JSON.

    """

    form: Form
    layout: Layout

    def write(self, answerer: Answerer, outputs: Tensors) -> Reply:
        if self.form is Form.JSON:
            return write_predict_reply(outputs, self.layout)
        if self.form is Form.MSGPACK:
            return write_msgpack(outputs)
        if self.form is Form.NPY:
            head, elements = write_npy(outputs)
            return head, memoryview(elements)
        return _MESSAGES.write(answerer, outputs)

    def write_all(
        self, answerer: Answerer, outputs: Tensors, num_rows: int, num_replies: int
    ) -> Sequence[bytes] | None:
        if len(outputs) != 1:
            return None
        ((name, view),) = outputs.items()
        if self.form is Form.JSON:
            return write_plain_replies(view, self.layout, num_rows, num_replies)
        dtype, shape = view.dtype, (num_rows, *view.shape[1:])
        if view.size_bytes > LARGE_BYTES or not view.shape or dtype is STRING:
            return None
        is_npy = self.form is Form.NPY
        head = npy_head(dtype, shape) if is_npy else msgpack_head(name, dtype, shape)
        return [b"".join((head, part)) for part in view.parts(num_rows, num_replies)]
