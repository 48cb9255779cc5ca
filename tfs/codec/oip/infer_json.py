"""Reads and writes the bodies of /infer: JSON, and behind it tensors as they are.

With ``Inference-Header-Content-Length`` the body is that many bytes of JSON, and then the
raw contents of the inputs that have ``binary_data_size``, in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tfs.codec.decode_options import DEFAULT_OPTIONS, FillBudget
from tfs.codec.json.document import Value, parse_object, wrong_form
from tfs.codec.json.tensor_reader import Content, content_of, read_tensor
from tfs.codec.json.tensor_writer import array_of, dump
from tfs.codec.oip.datatype import (
    DATATYPES,
    datatype_of,
    dtype_of,
    raw_contents,
    read_raw,
)
from tfs.codec.oip.infer_view import (
    BINARY,
    BINARY_SIZE,
    InferSettings,
    check_parameters,
    read_settings,
)
from tfs.codec.predict_response import Reply
from tfs.codec.tensor import check_empty, count_elements
from tfs.core.dtype import STRING, DType
from tfs.core.errors import InvalidArgument, ServingError
from tfs.core.tensor_view import Buffer, TensorView


@dataclass(frozen=True, slots=True)
class WantedAnswer:
    """What a request says of its answer. Immutable.

    Attributes:
        outputs: The wanted outputs, and whether each is to be binary, if it says so;
            empty for all.
        request_id: The caller's name for the request; empty for none.
        binary_output: Whether outputs that do not say otherwise are binary.

    """

    outputs: Mapping[str, bool | None]
    request_id: str
    binary_output: bool

    def is_binary(self, output: str) -> bool:
        """Whether an output is wanted as it is, behind the JSON of the answer."""
        wanted = self.outputs.get(output)
        return self.binary_output if wanted is None else wanted


@dataclass(frozen=True, slots=True)
class InferBody:
    """A request to /infer, whose inputs are read. Its tensors may borrow the body. Immutable.

    Attributes:
        inputs: Tensors by name, in the order sent.
        settings: What its parameters ask for.
        answer: What it says of its answer.
        num_binary_bytes: How many bytes stand behind its JSON.

    """

    inputs: dict[str, TensorView]
    settings: InferSettings
    answer: WantedAnswer
    num_binary_bytes: int

    @classmethod
    def parse(cls, body: Buffer, json_bytes: int) -> InferBody:
        """Parses a body of which the first ``json_bytes`` are JSON.

        Raises:
            InvalidArgument: It is no such request.

        """
        whole = memoryview(body)
        text = bytes(whole[:json_bytes])
        document = parse_object(text)
        settings = read_settings(_object(document, "parameters").items())
        request_id = document.get("id", "")
        if not isinstance(request_id, str):
            raise InvalidArgument("id must be a string")
        reader = _InputReader(whole[json_bytes:], content_of(text))
        inputs: dict[str, TensorView] = {}
        for each in _list(document, "inputs"):
            name = _name(each, "input")
            if name in inputs:
                raise InvalidArgument(f"input {name!r} comes twice")
            try:
                inputs[name] = reader.read(name, each)
            except ServingError as error:
                raise type(error)(
                    f"tensor parsing error: {name}: {error.message}"
                ) from error
        reader.check_end()
        outputs: dict[str, bool | None] = {}
        for each in _list(document, "outputs"):
            name = _name(each, "output")
            if name in outputs:
                raise InvalidArgument(f"output {name!r} comes twice")
            parameters = _object(each, "parameters")
            check_parameters("output", name, parameters, BINARY)
            wanted = parameters.get(BINARY)
            if wanted is not None and not isinstance(wanted, bool):
                raise InvalidArgument(f"output {name!r}: {BINARY} must be a boolean")
            outputs[name] = wanted
        answer = WantedAnswer(outputs, request_id, settings.binary_output)
        return cls(inputs, settings, answer, len(whole) - json_bytes)


class _InputReader:
    """Reads the inputs of one body, in order."""

    def __init__(self, binary: memoryview, content: Content) -> None:
        self._binary = binary
        self._content = content
        self._index = 0
        self._budget = FillBudget(DEFAULT_OPTIONS.max_tensor_bytes)

    def read(self, name: str, document: dict[str, Value]) -> TensorView:
        datatype, sizes = document.get("datatype"), document.get("shape")
        if not isinstance(datatype, str):
            raise InvalidArgument("it has no datatype")
        if not isinstance(sizes, list) or not all(
            type(size) is int and 0 <= size < 1 << 63 for size in sizes
        ):
            raise InvalidArgument("its shape must be a list of sizes, each 0 or more")
        dtype, shape = dtype_of(datatype), tuple(sizes)
        parameters = _object(document, "parameters")
        check_parameters("input", name, parameters, BINARY_SIZE)
        num_bytes = parameters.get(BINARY_SIZE)
        if num_bytes is None:
            if "data" not in document:
                raise InvalidArgument(f"it has neither data nor {BINARY_SIZE}")
            return self._of_values(document["data"], dtype, shape)
        if "data" in document:
            raise InvalidArgument(f"it has both data and {BINARY_SIZE}")
        if type(num_bytes) is not int or num_bytes < 0:
            raise InvalidArgument(f"{BINARY_SIZE} must be an integer, 0 or more")
        start, self._index = self._index, self._index + num_bytes
        if self._index > len(self._binary):
            raise InvalidArgument(
                f"{BINARY_SIZE} is {num_bytes}, and {len(self._binary) - start} bytes "
                "are left behind the JSON"
            )
        return read_raw(dtype, shape, self._binary[start : self._index], self._budget)

    def _of_values(
        self, values: Value, dtype: DType, shape: tuple[int, ...]
    ) -> TensorView:
        """Reads elements that are flat, or nested as their shape is."""
        if type(values) is not list:
            raise wrong_form(values, "is not the list of elements that data must be")
        if not count_elements(shape):
            check_empty(dtype, shape, self._budget)
        view = read_tensor(values, dtype, self._content)
        flat = TensorView(dtype, shape, view.data)
        if view.shape != shape and (
            len(view.shape) != 1 or view.num_elements != flat.num_elements
        ):
            raise InvalidArgument(
                f"its data has the shape {list(view.shape)}; {DATATYPES[dtype]} "
                f"{list(shape)} takes that shape, or {flat.num_elements} elements in "
                "one list"
            )
        return flat

    def check_end(self) -> None:
        if self._index != len(self._binary):
            raise InvalidArgument(
                f"{len(self._binary) - self._index} bytes more than the inputs have "
                f"follow the JSON; {BINARY_SIZE} says how many are an input's"
            )


def _object(document: dict[str, Value], key: str) -> dict[str, Value]:
    value = document.get(key, {})
    if type(value) is not dict:
        raise InvalidArgument(f"{key} must be an object")
    return value


def _list(document: dict[str, Value], key: str) -> list[Value]:
    value = document.get(key, [])
    if type(value) is not list:
        raise InvalidArgument(f"{key} must be a list")
    return value


def _name(document: Value, what: str) -> str:
    name = document.get("name") if type(document) is dict else None
    if not isinstance(name, str):
        raise InvalidArgument(f"every {what} must be an object with a name")
    return name


def write_json_reply(
    model: str, version: int, outputs: Mapping[str, TensorView], wanted: WantedAnswer
) -> Reply:
    """Returns the answer: JSON, or a tuple of it and the raw contents behind it.

    Raises:
        Unimplemented: The protocol has no datatype for an output.

    """
    documents: list[dict[str, Any]] = []
    document: dict[str, Any] = {"model_name": model, "model_version": str(version)}
    if wanted.request_id:
        document["id"] = wanted.request_id
    document["outputs"] = documents
    parts: list[bytes | memoryview] = []
    for name, view in outputs.items():
        output: dict[str, Any] = {
            "name": name,
            "datatype": datatype_of(name, view.dtype),
            "shape": list(view.shape),
        }
        if wanted.is_binary(name):
            parts.append(raw_contents(view))
            output["parameters"] = {BINARY_SIZE: len(parts[-1])}
        elif view.dtype is STRING:
            output["data"] = [each.decode("utf-8", "replace") for each in view.strings]
        else:
            output["data"] = array_of(view).reshape(-1)
        documents.append(output)
    head = dump(document)
    return (head, *parts) if parts else head


def write_binary_replies(
    model: str,
    version: int,
    outputs: Mapping[str, TensorView],
    num_rows: int,
    num_replies: int,
) -> Sequence[Reply] | None:
    """Returns the answers to requests that were computed together, all outputs binary.

    None if that takes more than copying elements: for strings.

    Args:
        model: The model that answered.
        version: Its version.
        outputs: Tensors with at least ``num_rows * num_replies`` rows.
        num_rows: Rows of each request.
        num_replies: How many requests.

    """
    views = outputs.values()
    if any(view.dtype is STRING or not view.shape for view in views):
        return None
    head = _binary_head(
        model,
        version,
        tuple(
            [
                (name, view.dtype, (num_rows, *view.shape[1:]))
                for name, view in outputs.items()
            ]
        ),
    )
    columns = [
        TensorView(view.dtype, view.shape, raw_contents(view)).parts(
            num_rows, num_replies
        )
        for view in views
    ]
    return [(head, *parts) for parts in zip(*columns, strict=True)]


@lru_cache(1024)
def _binary_head(
    model: str, version: int, outputs: tuple[tuple[str, DType, tuple[int, ...]], ...]
) -> bytes:
    """Returns the JSON of an answer whose outputs are all binary."""
    views = {
        name: TensorView(dtype, shape, bytes(dtype.item_bytes * math.prod(shape)))
        for name, dtype, shape in outputs
    }
    reply = write_json_reply(model, version, views, WantedAnswer({}, "", True))
    return bytes(reply[0])
