"""Platform ``torch_export``: ``model.pt2``, of torch.export or AOTInductor.

The signature is read out of an exported program without torch and without running it. A
``.pt2`` archive describes its graph in JSON: names, element types and sizes of inputs and
outputs, with symbols for the sizes that are free.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tfs.core.dtype import DTYPES, DType
from tfs.core.errors import InvalidArgument
from tfs.core.resources import ResourceAllocation
from tfs.core.signature import DEFAULT_SIGNATURE, FREE, Method, Signature, TensorSpec
from tfs.core.version.version_layout import PROGRAM
from tfs.core.version_directory import SIGNATURES
from tfs.servables.archives import (
    ArchiveKind,
    contents_of,
    copied_resources,
    inspect_archive,
    is_archive_of,
    mapped_resources,
)
from tfs.servables.platform import VersionDescription, describe
from tfs.servables.reach.exported_code import why_code

_GRAPH: Final = "models/model.json"

_DTYPE_BY_NUMBER: Final[Mapping[int, DType]] = {
    number: DTYPES[name]
    for number, name in {
        1: "uint8",
        2: "int8",
        3: "int16",
        4: "int32",
        5: "int64",
        6: "float16",
        7: "float32",
        8: "float64",
        10: "complex64",
        11: "complex128",
        12: "bool",
        13: "bfloat16",
        28: "uint16",
        29: "float8_e4m3fn",
        30: "float8_e5m2",
        31: "float8_e4m3fnuz",
        32: "float8_e5m2fnuz",
        34: "uint32",
        35: "uint64",
    }.items()
}
"""ScalarType of torch's export schema, version 8."""


_SYMBOL: Final = re.compile(r"Symbol\('(\w+)'")
_DICTS: Final = ("builtins.dict", "collections.OrderedDict")


def read_exported_signature(path: str) -> Signature:
    """Returns the one signature of the exported program at ``path``.

    Inputs have the names of ``forward``'s parameters, outputs those of the dict that it
    returns. A single output without a name is called "output", several "output_0" and
    so on. The first dimension is the batch if it is the same symbol in every input, and
    any symbol in every output.

    Raises:
        InvalidArgument: The program takes or returns something other than tensors, or
            has an unknown form.

    """
    try:
        program = _read_program(path)
        module = program["graph_module"]
        values = module["graph"]["tensor_values"]
        given = [
            _tensor_name(spec["user_input"]["arg"])
            for spec in module["signature"]["input_specs"]
            if "user_input" in spec
        ]
        called = module["module_call_graph"][0]["signature"] or {}
        names = called.get("forward_arg_names")
        results = [
            _tensor_name(spec["user_output"]["arg"])
            for spec in module["signature"]["output_specs"]
            if "user_output" in spec
        ]
        inputs = [(_spec(values[name]), _first_symbol(values[name])) for name in given]
        outputs = [
            (_spec(values[name]), _first_symbol(values[name])) for name in results
        ]
        output_names = _output_names(called.get("out_spec"), len(results))
    except (KeyError, IndexError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidArgument(
            "the exported program does not tell its signature "
            f"({type(error).__name__}: {error}); put a signatures.json beside it"
        ) from error
    if not isinstance(names, list) or len(names) != len(given):
        names = given
    input_symbols = {symbol for _, symbol in inputs}
    batched = bool(
        len(input_symbols) == 1
        and None not in input_symbols
        and all(symbol is not None for _, symbol in outputs)
    )
    return Signature(
        method=Method.PREDICT,
        inputs={name: spec for name, (spec, _) in zip(names, inputs, strict=True)},
        outputs={
            name: spec for name, (spec, _) in zip(output_names, outputs, strict=True)
        },
        batched=batched,
    )


def read_max_rows(path: str) -> int | None:
    """Returns the most rows that the exported program at ``path`` takes at once.

    None if it sets no limit, or if its form is unknown. A limit that holds for an
    expression of sizes, such as a multiple, shows only when the program is called.
    """
    try:
        return _max_rows(_read_program(path))
    except (KeyError, IndexError, TypeError, ValueError, zipfile.BadZipFile, OSError):
        return None


def _read_program(path: str) -> Any:
    with zipfile.ZipFile(path) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/" + _GRAPH)]
        return json.loads(archive.read(name))


def _max_rows(program: Mapping[str, Any]) -> int | None:
    """Returns the least upper bound of the first sizes of the program's inputs."""
    module = program["graph_module"]
    values = module["graph"]["tensor_values"]
    ranges = program.get("range_constraints") or {}
    symbols = [
        _first_symbol(values[_tensor_name(spec["user_input"]["arg"])])
        for spec in module["signature"]["input_specs"]
        if "user_input" in spec
    ]
    names = [_SYMBOL.match(symbol) for symbol in symbols if symbol is not None]
    bounds = [
        bound
        for name in names
        if name and (bound := ranges.get(name[1], {}).get("max_val")) is not None
    ]
    return min(map(int, bounds), default=None)


def _output_names(out_spec: str | None, num_outputs: int) -> list[str]:
    """Returns the keys of the dict that the program returns, or names by position.

    Raises:
        TypeError: The program returns tensors within nested containers.

    """
    if out_spec is not None:
        _, top = json.loads(out_spec)
        if any(child["type"] is not None for child in top["children_spec"]):
            raise TypeError("it returns nested values")
        if top["type"] in _DICTS:
            return [str(key) for key in json.loads(top["context"])]
    if num_outputs == 1:
        return ["output"]
    return [f"output_{index}" for index in range(num_outputs)]


def _tensor_name(argument: Mapping[str, Any]) -> str:
    return str(argument["as_tensor"]["name"])


def _spec(value: Mapping[str, Any]) -> TensorSpec:
    shape = tuple(int(size.get("as_int", FREE)) for size in value["sizes"])
    return TensorSpec(_DTYPE_BY_NUMBER[value["dtype"]], shape)


def _first_symbol(value: Mapping[str, Any]) -> str | None:
    """Returns the symbol of the size of dimension 0; None if it is fixed."""
    if not value["sizes"] or "as_int" in value["sizes"][0]:
        return None
    return str(value["sizes"][0]["as_expr"]["expr_str"])


_KINDS: Final = (ArchiveKind.EXPORTED, ArchiveKind.AOTINDUCTOR)


class TorchExport:
    """See :class:`tfs.servables.platform.VersionReader`. Immutable."""

    name: Final = "torch_export"

    def recognizes(self, path: str) -> bool:
        return is_archive_of(os.path.join(path, PROGRAM), *_KINDS)

    def runs_code(self, path: str) -> bool:
        """Whether it holds machine code (AOTInductor), pickles or odd names."""
        return bool(self.why_apart(path))

    def describe(self, path: str) -> VersionDescription:
        """Returns the manifest's description, or else that of the program.

        Its signatures have the program's limit of rows in any case.
        """
        description = describe(path, self.name, self._own)
        max_rows = read_max_rows(os.path.join(path, PROGRAM))
        if max_rows is None:
            return description
        bounded = {
            name: replace(signature, max_rows=max_rows)
            if signature.batched
            else signature
            for name, signature in description.signatures.items()
        }
        return replace(description, signatures=bounded)

    def estimate(self, path: str) -> ResourceAllocation:
        """Returns the size of the mapped file; or of compiled tensors, and the file."""
        contents = contents_of(os.path.join(path, PROGRAM), *_KINDS)
        if contents.kind is ArchiveKind.EXPORTED:
            return mapped_resources(contents)
        return copied_resources(contents)

    def why_apart(self, path: str) -> str:
        file = os.path.join(path, PROGRAM)
        if inspect_archive(file).kind is not ArchiveKind.EXPORTED:
            return f"{PROGRAM} is machine code"
        try:
            why = why_code(file)
        except Exception:
            why = "it cannot be read"  # loading it says what is wrong
        return f"{PROGRAM} is more than a graph: {why}" if why else ""

    def _own(self, path: str) -> VersionDescription:
        if os.path.isfile(os.path.join(path, SIGNATURES)):
            return VersionDescription({})
        archive = os.path.join(path, PROGRAM)
        if inspect_archive(archive).kind is not ArchiveKind.EXPORTED:
            raise InvalidArgument(
                "an AOTInductor package does not tell its signature: write the version "
                f"with tfs.export.save, or put a {SIGNATURES} beside it"
            )
        return VersionDescription({DEFAULT_SIGNATURE: read_exported_signature(archive)})
