"""The forms in which tensors travel over HTTP, by ``Content-Type`` and ``Accept``.

Most requests are one tensor of numbers. Those of them that come together are read together:
JSON straight into an array, by the dtype that the signature showed. A ``.npy`` file, and
MessagePack as it is usually written, end in the elements, and what is before them recurs.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tfs.codec.json.packed import (
    msgpack_head,
    npy_head,
    parse_msgpack,
    parse_npy,
    write_msgpack,
    write_npy,
)
from tfs.codec.json.predict_body import (
    Layout,
    PlainKind,
    PredictBody,
    read_plain_json,
)
from tfs.codec.json.tensor_writer import write_plain_replies, write_predict_reply
from tfs.codec.model_spec import ModelSpec
from tfs.codec.predict_response import Answerer, PredictReplies, Reply
from tfs.core.dtype import STRING, DType
from tfs.core.errors import ServingError
from tfs.core.http_call import HttpCall, accepted
from tfs.core.servable import Tensors
from tfs.core.signature import Signature
from tfs.core.tensor_view import LARGE_BYTES, Buffer, TensorView
from tfs.handlers.request_bursts import (
    BurstTemplate,
    Plain,
    RequestBursts,
    may_come_together,
)
from tfs.handlers.request_format import ReplyWriter

_MAX_TEMPLATES: Final = 64
_MAX_JSON_BYTES: Final = 6 << 10  # longer JSON asks for room before it is parsed
_FLIPPED: Final = bytes(range(255, -1, -1))


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
    """Returns the form of the answer: the first of ours that is accepted, or as sent.

    It is JSON for who refuses the form that was sent, by ``q=0``.
    """
    taken = [_FORMS[each] for each in accepted(accept) if each in _FORMS]
    return (*taken, Form.JSON if sent.value in accept.lower() else sent)[0]


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


@dataclass(slots=True, eq=False)
class JsonReader:
    """Reads JSON that is one tensor. A ``BurstReader``. Confined to the serving loop.

    Attributes:
        spec: The model that is asked for.
        wanted: The form of answers.
        name: The only input of its signature.
        dtype: Its dtype.

    """

    spec: ModelSpec
    wanted: Form
    name: str
    dtype: DType
    _templates: dict[PlainKind, BurstTemplate] = field(default_factory=dict)

    def __call__(self, bodies: Sequence[Buffer]) -> Sequence[Plain | None]:
        if max(map(len, bodies)) > _MAX_JSON_BYTES:
            return [None] * len(bodies)
        templates = self._templates
        plain: list[Plain | None] = []
        for found in read_plain_json(bodies, self.dtype):
            if found is None:
                plain.append(None)
            else:
                kind, elements = found
                template = templates.get(kind) or self._new_template(*kind)
                plain.append((template, elements))
        return plain

    def _new_template(self, layout: Layout, shape: tuple[int, ...]) -> BurstTemplate:
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        template = self._templates[layout, shape] = BurstTemplate(
            self.spec,
            ((self.name, self.dtype, shape),),
            FormedReplies(self.wanted, layout),
            self.wanted.value,
        )
        return template


def learn(
    bursts: RequestBursts,
    call: HttpCall,
    spec: ModelSpec,
    form: Form,
    inputs: Mapping[str, TensorView],
    signature: Signature,
    replies: FormedReplies,
) -> None:
    """Has requests like this one, for a default signature, taken together if they can be.

    Large ones gain nothing by that, and are not learned.
    """
    if len(signature.inputs) != 1 or not may_come_together(call, signature, inputs):
        return
    ((name, view),) = inputs.items()
    if form is Form.JSON:
        known, dtype = bursts.reader_of(call), view.dtype
        if not (
            isinstance(known, JsonReader)
            and known.dtype is dtype
            and known.name == name
        ):
            bursts.learn(call, JsonReader(spec, replies.form, name, dtype))
    elif view.size_bytes <= LARGE_BYTES and _ends_in_elements(
        form, call.message, signature, view
    ):
        bursts.learn_end(call, spec, inputs, replies)


def _ends_in_elements(
    form: Form, body: Buffer, signature: Signature, view: TensorView
) -> bool:
    """Whether another end of the body is read as other elements, and nothing else."""
    size = view.size_bytes
    if not size or bytes(body[-size:]) != bytes(view.buffer):
        return False
    other = bytes(view.buffer).translate(_FLIPPED)
    try:
        (found,) = PARSERS[form](bytes(body[:-size]) + other).read(signature).values()
    except ServingError:
        return False
    return found == TensorView(view.dtype, view.shape, other)
