"""Reads and writes the bodies of /infer: JSON, and behind it tensors as they are.

With ``Inference-Header-Content-Length`` the body is that many bytes of JSON, and then the
raw contents of the inputs that have ``binary_data_size``, in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeVar

from tfs.codec.decode_options import DEFAULT_OPTIONS, FillBudget
from tfs.codec.json.document import Value, parse_object, wrong_form
from tfs.codec.json.tensor_reader import may_have_bools, read_tensor
from tfs.codec.json.tensor_writer import array_of, dump
from tfs.codec.oip.datatype import (
    DATATYPES,
    datatype_of,
    dtype_of,
    raw_contents,
    read_raw,
)
from tfs.codec.oip.infer_view import (
    BINARY_SIZE,
    InferRequestView,
    read_inputs,
    read_outputs,
    read_settings,
)
from tfs.codec.predict_response import Answerer, Reply
from tfs.codec.tensor import check_empty, count_elements
from tfs.core.dtype import STRING, DType
from tfs.core.errors import InvalidArgument
from tfs.core.servable import Tensors
from tfs.core.tensor_view import Buffer, TensorView

T = TypeVar("T", str, list[Any], dict[str, Any])

_KINDS: Final = {dict: "an object", list: "a list", str: "a string"}


def parse_infer(body: Buffer, json_bytes: int) -> tuple[InferRequestView, JsonReplies]:
    """Returns a request, whose tensors may borrow the body, and what writes its answer.

    The first ``json_bytes`` of the body are JSON.

    Raises:
        ServingError: It is no such request.

    """
    whole = memoryview(body)
    text = bytes(whole[:json_bytes])
    document = parse_object(text)
    settings = read_settings(_field(document, "parameters", {}))
    request_id = _field(document, "id", "")
    reader = _InputReader(whole[json_bytes:], may_have_bools(text))
    inputs = read_inputs(_named(document, "inputs"), reader.read)
    num_left = len(reader.binary) - reader.index
    if num_left:
        raise InvalidArgument(
            f"{num_left} bytes more than the inputs have follow the JSON; {BINARY_SIZE} "
            "says how many are an input's"
        )
    outputs = read_outputs([each[:2] for each in _named(document, "outputs")])
    return (
        InferRequestView(None, inputs, tuple(outputs), settings=settings),
        JsonReplies(request_id, outputs, settings.binary_output),
    )


def _field(document: dict[str, Value], key: str, absent: T) -> T:
    value: T = document.get(key, absent)
    if type(value) is not type(absent):
        raise InvalidArgument(f"{key} must be {_KINDS[type(absent)]}")
    return value


def _named(
    document: dict[str, Value], key: str
) -> list[tuple[str, dict[str, Value], dict[str, Value]]]:
    """Returns name, parameters and the whole of each input, or output."""
    named = []
    for each in _field(document, key, []):
        name = each.get("name") if type(each) is dict else None
        if not isinstance(name, str):
            raise InvalidArgument(f"every one of {key} must be an object with a name")
        named.append((name, _field(each, "parameters", {}), each))
    return named


@dataclass(slots=True)
class _InputReader:
    """Reads the inputs of one body, in order."""

    binary: memoryview
    has_bools: bool
    index: int = 0
    budget: FillBudget = field(
        default_factory=lambda: FillBudget(DEFAULT_OPTIONS.max_tensor_bytes)
    )

    def read(self, document: dict[str, Value]) -> TensorView:
        datatype, sizes = document.get("datatype"), document.get("shape")
        if not isinstance(datatype, str):
            raise InvalidArgument("it has no datatype")
        if not isinstance(sizes, list) or not all(
            type(size) is int and 0 <= size < 1 << 63 for size in sizes
        ):
            raise InvalidArgument("its shape must be a list of sizes, each 0 or more")
        dtype, shape = dtype_of(datatype), tuple(sizes)
        num_bytes = _field(document, "parameters", {}).get(BINARY_SIZE)
        if num_bytes is None:
            if "data" not in document:
                raise InvalidArgument(f"it has neither data nor {BINARY_SIZE}")
            return self._of_values(document["data"], dtype, shape)
        if "data" in document:
            raise InvalidArgument(f"it has both data and {BINARY_SIZE}")
        if type(num_bytes) is not int or num_bytes < 0:
            raise InvalidArgument(f"{BINARY_SIZE} must be an integer, 0 or more")
        start = self.index
        self.index += num_bytes
        if self.index > len(self.binary):
            raise InvalidArgument(
                f"{BINARY_SIZE} is {num_bytes}, and {len(self.binary) - start} bytes "
                "are left behind the JSON"
            )
        return read_raw(dtype, shape, self.binary[start : self.index], self.budget)

    def _of_values(
        self, values: Value, dtype: DType, shape: tuple[int, ...]
    ) -> TensorView:
        """Reads elements that are flat, or nested as their shape is."""
        if type(values) is not list:
            raise wrong_form(values, "is not the list of elements that data must be")
        if not count_elements(shape):
            check_empty(dtype, shape, self.budget)
        view = read_tensor(values, dtype, has_bools=self.has_bools)
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


@dataclass(frozen=True, slots=True)
class JsonReplies:
    """Writes answers of /infer: JSON, or a tuple of it and the raw contents behind it.

    A ``ReplyWriter``. Immutable. An output that the protocol has no datatype for raises
    Unimplemented. Requests come together if all of their outputs are binary.

    Attributes:
        request_id: The caller's name for the request; empty for none.
        wanted: By the name of an output whether it is to be binary, if it says so.
        binary_output: Whether the others are.

    """

    request_id: str = ""
    wanted: Mapping[str, bool | None] = field(default_factory=dict)
    binary_output: bool = False

    def is_binary(self, output: str) -> bool:
        """Whether an output is wanted as it is, behind the JSON."""
        wanted = self.wanted.get(output)
        return self.binary_output if wanted is None else wanted

    def write_if_quick(self, answerer: Answerer, outputs: Tensors) -> Reply:
        return self.write(answerer, outputs)

    def write(self, answerer: Answerer, outputs: Tensors) -> Reply:
        model, version, _ = answerer
        documents: list[dict[str, Any]] = []
        document: dict[str, Any] = {"model_name": model, "model_version": str(version)}
        if self.request_id:
            document["id"] = self.request_id
        document["outputs"] = documents
        parts: list[bytes | memoryview] = []
        for name, view in outputs.items():
            output: dict[str, Any] = {
                "name": name,
                "datatype": datatype_of(name, view.dtype),
                "shape": list(view.shape),
            }
            if self.is_binary(name):
                parts.append(raw_contents(view))
                output["parameters"] = {BINARY_SIZE: len(parts[-1])}
            elif view.dtype is STRING:
                output["data"] = [
                    each.decode("utf-8", "replace") for each in view.strings
                ]
            else:
                output["data"] = array_of(view).reshape(-1)
            documents.append(output)
        head = dump(document)
        return (head, *parts) if parts else head

    def write_all(
        self, answerer: Answerer, outputs: Tensors, num_rows: int, num_replies: int
    ) -> Sequence[Reply] | None:
        views = outputs.values()
        if any(view.dtype is STRING or not view.shape for view in views):
            return None
        shapes = [
            (name, view.dtype, (num_rows, *view.shape[1:]))
            for name, view in outputs.items()
        ]
        head = _binary_head(answerer, tuple(shapes))
        columns = [
            TensorView(view.dtype, view.shape, raw_contents(view)).parts(
                num_rows, num_replies
            )
            for view in views
        ]
        return [(head, *parts) for parts in zip(*columns, strict=True)]


@lru_cache(1024)
def _binary_head(
    answerer: Answerer, outputs: tuple[tuple[str, DType, tuple[int, ...]], ...]
) -> bytes:
    """Returns the JSON of an answer whose outputs are all binary."""
    views = {
        name: TensorView(dtype, shape, bytes(dtype.item_bytes * math.prod(shape)))
        for name, dtype, shape in outputs
    }
    return bytes(JsonReplies(binary_output=True).write(answerer, views)[0])
