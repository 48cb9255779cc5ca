"""Reads the JSON of a Predict request: rows (``instances``) or columns (``inputs``).

Ordinary ones, with one tensor of numbers each and nothing else, are read several at a
time by :func:`read_plain_json`; whatever has more in it, or a fault, by
:class:`PredictBody`. (TensorFlow Serving: util/json_tensor.cc,
FillPredictRequestFromJson.)
"""

from __future__ import annotations

import contextlib
import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import orjson

from tfs.codec.json.document import (
    Value,
    parse_object,
    shown,
    signature_name_of,
    wrong_form,
)
from tfs.codec.json.tensor_reader import (
    is_bytes,
    may_have_bools,
    plain_array,
    read_tensor,
)
from tfs.core.dtype import STRING, DType
from tfs.core.errors import InvalidArgument, ServingError
from tfs.core.signature import Signature, TensorSpec
from tfs.core.tensor_view import Buffer, TensorView

INSTANCES: Final = "instances"
INPUTS: Final = "inputs"
_EXACT: Final = 2.0**53  # integers up to that are floats, too
MAX_ITEMS: Final = 1024
"""Most rows that get results of their own: each takes the loop as long as a request."""


class Layout(enum.Enum):
    """Whether a request lists its rows, or has one value for each input."""

    ROWS = "rows"
    COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class PredictBody:
    """A parsed request whose tensors are yet to be read. Immutable.

    Attributes:
        signature_name: As sent; empty for the default one.
        layout: The layout of the request, and so of its reply.
        values: What stands under the layout's key.
        has_bools: Whether true and false may stand in it, or the JSON that tells. To
            look at that takes longer than the rest where it has images as strings.
        first_row: The number of the first row, for errors.

    """

    signature_name: str
    layout: Layout
    values: Value
    has_bools: bool | bytes
    first_row: int = 0

    @classmethod
    def parse(cls, body: Buffer) -> PredictBody:
        """Parses a request.

        Raises:
            InvalidArgument: It is no such request.

        """
        whole = bytes(body)
        return cls.of(parse_object(whole), whole)

    @classmethod
    def of(cls, document: dict[str, Value], has_bools: bool | bytes) -> PredictBody:
        """Returns the request that a document is.

        Raises:
            InvalidArgument: It is no such request.

        """
        signature_name = signature_name_of(document)
        has_instances = INSTANCES in document
        if has_instances and INPUTS in document:
            raise wrong_form(
                document,
                f"Not formatted correctly expecting only one of '{INPUTS}' or "
                f"'{INSTANCES}' keys to exist ",
            )
        if not has_instances and INPUTS not in document:
            raise InvalidArgument(f"Missing '{INPUTS}' or '{INSTANCES}' key")
        values = document[INSTANCES if has_instances else INPUTS]
        if has_instances and type(values) not in (list, TensorView):
            raise wrong_form(document, f"Expecting '{INSTANCES}' to be an list/array")
        if has_instances and values == []:
            raise wrong_form(document, f"No values in '{INSTANCES}' array")
        layout = Layout.ROWS if has_instances else Layout.COLUMNS
        return cls(signature_name, layout, values, has_bools)

    def rows(self) -> list[PredictBody]:
        """Returns a request for each row.

        Raises:
            InvalidArgument: It lists no rows, or too many.

        """
        if self.layout is not Layout.ROWS or type(self.values) is not list:
            raise InvalidArgument(
                f"results per item need '{INSTANCES}' with a list of rows"
            )
        if len(self.values) > MAX_ITEMS:
            raise InvalidArgument(
                f"results per item are for up to {MAX_ITEMS} rows; {len(self.values)} "
                "came"
            )
        has_bools = self._may_have_bools()
        return [
            replace(self, values=[row], has_bools=has_bools, first_row=index)
            for index, row in enumerate(self.values)
        ]

    def read(self, signature: Signature) -> dict[str, TensorView]:
        """Returns the inputs, by the dtypes of a signature; shapes are as sent.

        Raises:
            InvalidArgument: Inputs are missing or malformed; says which.
            Unimplemented: An input's dtype has no form in JSON.

        """
        values, specs = self.values, signature.inputs
        is_rows = self.layout is Layout.ROWS and type(values) is list
        first = values[0] if is_rows else values
        is_named = type(first) is dict and not is_bytes(first)
        if signature.defaults:
            sent = first if is_named else ()
            specs = {
                name: spec
                for name, spec in specs.items()
                if name in sent or name not in signature.defaults
            }
            if not (is_named or specs):
                specs = signature.inputs  # a plain value is for one with a default
        if not is_named and len(specs) > 1:
            got, wanted = "inputs is a plain value/list", "an object"
            if is_rows:
                got, wanted = "instances is a plain list", "list of objects"
            raise InvalidArgument(
                f"{got}, but expecting {wanted} as multiple input tensors required as "
                "per tensorinfo_map"
            )
        if is_named and is_rows:
            self._check_keys(specs)
        has_bools = any(s.dtype is not STRING for s in specs.values()) and (
            self._may_have_bools()
        )
        views: dict[str, TensorView] = {}
        for name, spec in specs.items():
            value = values
            if is_named and is_rows:
                value = [row[name] for row in values]
            elif is_named:
                if name not in values:
                    raise InvalidArgument(
                        f"Missing named input: {name} in '{INPUTS}' object."
                    )
                value = values[name]
            try:
                views[name] = read_tensor(value, spec.dtype, has_bools=has_bools)
            except ServingError:
                if is_rows:
                    self._find_fault(value, name, spec, has_bools, named=is_named)
                raise
        return views

    def _may_have_bools(self) -> bool:
        found = self.has_bools
        return found if isinstance(found, bool) else may_have_bools(found)

    def _check_keys(self, specs: Mapping[str, TensorSpec]) -> None:
        """Refuses the first row that does not name all inputs, and nothing else."""
        keys = specs.keys()
        for index, row in enumerate(self.values, self.first_row):
            if type(row) is not dict or is_bytes(row):
                raise InvalidArgument(
                    f"Expecting object but got list at item {index} of input list"
                )
            if row.keys() == keys:
                continue
            for name in row:
                if name not in specs:
                    raise InvalidArgument(
                        f"Failed to process element: {index} key: {name} of "
                        f"'{INSTANCES}' list. Error: INVALID_ARGUMENT: JSON object: "
                        f"does not have named input: {name}"
                    )
            raise InvalidArgument(
                f"Failed to process element: {index} of '{INSTANCES}' list. JSON object: "
                f"{shown(row)} keys must be equal to: {','.join(sorted(specs))}"
            )

    def _find_fault(
        self,
        rows: list[Value],
        name: str,
        spec: TensorSpec,
        has_bools: bool,
        *,
        named: bool,
    ) -> None:
        """Raises the error of the first row that is at fault by itself, or by its shape.

        By halves, because numpy takes as long for one row as for hundreds.
        """
        begin, end, shape = 0, len(rows), None
        while end - begin > 1:
            middle = (begin + end) // 2
            own = None
            with contextlib.suppress(ServingError):
                own = read_tensor(
                    rows[begin:middle], spec.dtype, has_bools=has_bools
                ).shape[1:]
            if own is None or shape not in (None, own):
                end = middle
            else:
                begin, shape = middle, own
        row, index = rows[begin], begin + self.first_row
        if not named and type(row) is dict and not is_bytes(row):
            raise InvalidArgument(
                f"Expecting value/list but got object at item {index} of input list"
            )
        try:
            own = read_tensor(row, spec.dtype, has_bools=True).shape
            _check_shape(own if shape is None else shape, own)
        except ServingError as error:
            key = f" key: {name}" if named else ""
            raise type(error)(
                f"Failed to process element: {index}{key} of '{INSTANCES}' list. "
                f"Error: {error.code.name}: {error.message}"
            ) from error


def _check_shape(shape: tuple[int, ...], own: tuple[int, ...]) -> None:
    if own == shape:
        return
    size, own_size = math.prod(shape), math.prod(own)
    if size != own_size:
        raise InvalidArgument(f"Expecting tensor size: {size} but got: {own_size}")
    wanted, got = (",".join(map(str, each)) for each in (shape, own))
    raise InvalidArgument(f"Expecting shape [{wanted}] but got: [{got}]")


PlainKind: TypeAlias = tuple[Layout, tuple[int, ...]]
"""The layout of a request with one tensor, and the tensor's shape."""

PlainBody: TypeAlias = tuple[PlainKind, tuple[bytes]]
"""Of which kind it is, and its elements."""


def read_plain_json(
    bodies: Sequence[Buffer], dtype: DType
) -> Sequence[PlainBody | None]:
    """Returns what each body of JSON is; None for those that are more, or wrong.

    The dtype is that of the only input of the signature.
    """
    with np.errstate(over="ignore"):
        found = _read_alike(bodies, dtype)
        if found is not None:
            return found
        if len(bodies) == 1:
            return [None]
        alone = [_read_alike((body,), dtype) for body in bodies]
        return [None if each is None else each[0] for each in alone]


def _read_alike(bodies: Sequence[Buffer], dtype: DType) -> list[PlainBody] | None:
    """Returns what bodies of one layout and shape are; None if they are not just that."""
    num = len(bodies)
    try:
        documents = list(map(orjson.loads, bodies))
        layout, key = Layout.ROWS, INSTANCES
        if key not in documents[0]:
            layout, key = Layout.COLUMNS, INPUTS
        values = [document[key] for document in documents]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return None
    # Each has a string, its key, so it is the only one if there are no others in all of
    # them. Then no key comes twice, nothing else is named, and of true, false and null,
    # which numpy takes for numbers, one letter shows.
    text = b"".join(bodies)
    if (
        text.count(b'"') != 2 * num
        or b"\\" in text  # an escape in a key would hide one of its letters
        or b"r" in text
        or b"l" in text
    ):
        return None
    array = plain_array(values, dtype)
    if array is None or array.ndim < 2 or not array.size:
        return None
    if num > 1 and array.dtype.kind == "f" and abs(array).max() > _EXACT:
        return None  # an integer may have become a float for the sake of the others
    kind, elements = (layout, array.shape[1:]), array.tobytes()
    size = len(elements) // num
    return [
        (kind, (elements[start : start + size],))
        for start in range(0, num * size, size)
    ]
