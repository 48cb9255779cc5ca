"""Predict requests of one tensor of numbers, which most are, for requests that come together.

JSON is read straight into an array, by the dtype that the signature showed. A ``.npy`` file,
and MessagePack as it is usually written, end in the elements, and what is before them recurs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tfs.codec.json.predict_body import Layout, read_plain_json
from tfs.codec.model_spec import ModelSpec
from tfs.core.dtype import DType
from tfs.core.errors import ServingError
from tfs.core.http_call import HttpCall
from tfs.core.signature import Signature
from tfs.core.tensor_view import LARGE_BYTES, Buffer, TensorView
from tfs.handlers.request_bursts import (
    BurstTemplate,
    Plain,
    RequestBursts,
    may_come_together,
)
from tfs.handlers.rest.forms import PARSERS, Form, FormedReplies

_MAX_TEMPLATES: Final = 64
_MAX_JSON_BYTES: Final = 6 << 10  # longer JSON asks for room before it is parsed

_FLIPPED: Final = bytes(range(255, -1, -1))


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
    _templates: dict[tuple[Layout, tuple[int, ...]], BurstTemplate] = field(
        default_factory=dict
    )

    def __call__(self, bodies: Sequence[Buffer]) -> Sequence[Plain | None]:
        if any(len(body) > _MAX_JSON_BYTES for body in bodies):
            return [None] * len(bodies)
        return [
            None if found is None else (self._template(*found[:2]), found[2:])
            for found in read_plain_json(bodies, self.dtype)
        ]

    def _template(self, layout: Layout, shape: tuple[int, ...]) -> BurstTemplate:
        template = self._templates.get((layout, shape))
        if template is None:
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[layout, shape] = BurstTemplate(
                self.spec,
                ((self.name, self.dtype, shape),),
                FormedReplies(self.wanted, layout),
                self.wanted.value,
            )
        return template

    def is_for(self, dtype: DType, name: str) -> bool:
        """Whether it reads what the signature takes by now."""
        return self.dtype is dtype and self.name == name


def learn(
    bursts: RequestBursts,
    call: HttpCall,
    spec: ModelSpec,
    form: Form,
    inputs: Mapping[str, TensorView],
    signature: Signature,
    replies: FormedReplies,
) -> None:
    """Has requests like one for a default signature taken together, if they can be.

    Large ones gain nothing by that, and are not learned.

    Args:
        bursts: Takes them.
        call: The request.
        spec: The model that it asks for.
        form: How it was sent.
        inputs: What it says.
        signature: What it is checked against.
        replies: Writes its answer.

    """
    if len(signature.inputs) != 1 or not may_come_together(call, signature, inputs):
        return
    ((name, view),) = inputs.items()
    if form is Form.JSON:
        known = bursts.reader_of(call)
        if not (isinstance(known, JsonReader) and known.is_for(view.dtype, name)):
            bursts.learn(call, JsonReader(spec, replies.form, name, view.dtype))
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
