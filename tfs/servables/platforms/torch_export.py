"""Platform ``torch_export``: ``model.pt2``, of torch.export or AOTInductor.

The signature is read out of an exported program without torch and without running it. A
``.pt2`` archive describes its graph in JSON: names, element types and sizes of inputs and
outputs, with symbols for the sizes that are free.

A graph is data, but torch's reader trusts whoever wrote it: it unpickles example inputs
and odd tensors, looks operators up as attributes of ``torch``, and evaluates expressions
of sizes. Here an archive counts as code unless all of that is plainly harmless
(:func:`why_code`).
"""

from __future__ import annotations

import io
import json
import os
import pickletools
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tfs.core.dtype import DTYPES, DType
from tfs.core.errors import InvalidArgument
from tfs.core.resources import ResourceAllocation
from tfs.core.signature import DEFAULT_SIGNATURE, FREE, Method, Signature, TensorSpec
from tfs.core.version.version_layout import PROGRAM
from tfs.core.version_directory import SIGNATURES
from tfs.servables.version_files import (
    ArchiveKind,
    VersionDescription,
    contents_of,
    copied_resources,
    describe,
    inspect_archive,
    is_archive_of,
    mapped_resources,
)

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


_TENSOR_GLOBALS: Final = frozenset(
    {
        "collections OrderedDict",
        "torch Size",
        "torch device",
        "torch._utils _rebuild_parameter",
        "torch._utils _rebuild_tensor",
        "torch._utils _rebuild_tensor_v2",
        "torch.serialization _get_layout",
    }
)
"""The globals that a pickle of tensors and containers names, besides storage types."""
_STORAGE: Final = re.compile(r"torch (\w+Storage|b?float\d+|u?int\d+|bool|complex\d+)")
_PLAIN_OPERATOR: Final = re.compile(
    r"_operator\.(abs|add|and_|eq|floordiv|ge|getitem|gt|inv|invert|le|lshift|lt|mod|mul"
    r"|ne|neg|not_|or_|pos|pow|rshift|sub|truediv|xor)"
    r"|math\.(ceil|exp|floor|log|log2|pow|sqrt|trunc)"
)
_OPERATOR: Final = re.compile(
    r"torch\.ops\.(?!load_library\b|import_module\b|loaded_libraries\b)"
    r"[A-Za-z]\w*\.(?!from_file\b)(?!__)\w+(\.(?!__)\w+)?|torch\.sym_[a-z]+"
)
_SIZE_TOKEN: Final = re.compile(
    r"\s+|\d+(\.\d+)?([eE][-+]?\d+)?|'\w+'|(?P<name>[A-Za-z]\w*|_\w*)(?P<call>\s*\()?"
    r"|[-+*/%(),<>=!&|~^]"
)
_SIZE_FUNCTION: Final = re.compile(
    "Symbol|Integer|Float|Rational|Add|Mul|Pow|Max|Min|Abs|Mod|Piecewise|ExprCondPair"
    "|Eq|Ne|Lt|Le|Gt|Ge|Equality|Unequality|StrictLessThan|LessThan|StrictGreaterThan"
    "|GreaterThan|And|Or|Not|Xor|floor|ceiling|sqrt|log|exp|FloorDiv|ModularIndexing"
    "|Where|PythonMod|CleanDiv|CeilToInt|FloorToInt|CeilDiv|LShift|RShift|PowByNatural"
    "|FloatPow|FloatTrueDiv|IntTrueDiv|IsNonOverlappingAndDenseIndicator|TruncToFloat"
    "|TruncToInt|RoundToInt|RoundDecimal|ToFloat|Identity"
)


def why_code(path: str) -> str | None:
    """Returns what in a ``torch.export`` archive may run code; None if nothing may.

    Raises:
        OSError: It cannot be read.
        zipfile.BadZipFile: It is damaged.

    """
    with zipfile.ZipFile(path) as archive:
        found = archive.namelist()
        names = {name.partition("/")[2] or name: name for name in found}
        if len(names) < len(found):
            return "files of one name, of which another reader may take the other"
        if "archive_format" not in names:
            return "it was written by an old torch.export, which pickles"
        for inner, name in names.items():
            why = None
            if inner.startswith("models/"):
                why = _why_program(archive.read(name))
            elif inner.startswith(("data/weights/", "data/constants/")):
                why = _why_payload(archive, names, inner)
            elif inner.endswith((".pt", ".pkl")):
                why = _why_pickle(archive.read(name))
            elif inner.startswith("data/aotinductor/"):
                why = "machine code"
            if why is not None:
                return f"{inner}: {why}"
    return None


def _why_payload(
    archive: zipfile.ZipFile, names: dict[str, str], inner: str
) -> str | None:
    """Looks at a file of tensors' bytes, or at the list of them."""
    file = inner.rpartition("/")[2]
    if file.startswith(("custom_obj", "opaque_obj")):
        return "a pickled object"
    if file.endswith(".pt"):
        return _why_pickle(archive.read(names[inner]))
    if not file.endswith(".json"):
        return None
    folder = inner.rpartition("/")[0]
    for item in _dicts(json.loads(archive.read(names[inner]))):
        if item.get("use_pickle"):
            pickled = names.get(f"{folder}/{item.get('path_name')}")
            why = "it is missing"
            if pickled is not None:
                why = _why_pickle(archive.read(pickled)) or ""
            if why:
                return f"{item.get('path_name')}: {why}"
    return None


def _why_pickle(data: bytes) -> str | None:
    """Returns what a file of ``torch.save`` names that is not a tensor."""
    if not data:
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
            found = [_why_opcodes(archive.read(name)) for name in pickles]
    except (zipfile.BadZipFile, ValueError):
        return "a pickle that cannot be looked into"
    if not found:
        return "a pickle that cannot be looked into"
    return next((why for why in found if why is not None), None)


def _why_opcodes(pickled: bytes) -> str | None:
    """Returns what a pickle names or makes that is not a tensor.

    Raises:
        ValueError: It is no pickle.

    """
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ"):
            return f"its pickle holds {opcode.name}"
        if opcode.name == "GLOBAL":
            named = str(argument)
            if named not in _TENSOR_GLOBALS and not _STORAGE.fullmatch(named):
                return f"its pickle names {named}"
    return None


def _why_program(data: bytes) -> str | None:
    """Returns what a graph names that is no operator, or computes that is no size."""
    if b"__enum__" in data:
        return "it names an enumeration of some module"
    try:
        program = json.loads(data)
    except ValueError:
        return "a graph that cannot be looked into"
    for item in _dicts(program):
        for key in ("target", "as_operator"):
            named = item.get(key)
            if (
                isinstance(named, str)
                and not _PLAIN_OPERATOR.fullmatch(named)
                and not _OPERATOR.fullmatch(named)
                and not (key == "target" and "inputs" not in item)
            ):
                return f"it calls {named!r}"
        size = item.get("expr_str")
        if isinstance(size, str) and not _is_size(size):
            return f"it evaluates {size!r}"
    return None


def _is_size(text: str) -> bool:
    """Whether an expression is arithmetic on named sizes and nothing else."""
    position = 0
    while position < len(text):
        token = _SIZE_TOKEN.match(text, position)
        if token is None:
            return False
        name = token["name"]
        if name is not None and (
            "__" in name or (token["call"] and not _SIZE_FUNCTION.fullmatch(name))
        ):
            return False
        position = token.end()
    return True


def _dicts(form: object) -> Iterator[dict[str, object]]:
    waiting = [form]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
