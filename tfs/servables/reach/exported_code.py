"""Whether a ``.pt2`` archive can run anything but the operators of its graph.

A graph is data, but torch's reader trusts whoever wrote it: it unpickles example inputs
and odd tensors, looks operators up as attributes of ``torch``, and evaluates expressions
of sizes. Here an archive counts as code unless all of that is plainly harmless. Reads
the archive without torch, and nothing of the tensors.
"""

from __future__ import annotations

import io
import json
import pickletools
import re
import zipfile
from collections.abc import Iterator
from typing import Final

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
