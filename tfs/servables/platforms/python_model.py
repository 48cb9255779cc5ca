"""Platform ``python``: a class in ``servable.py``, which may have weights beside it.

What the class says of itself is read without running the file. Parsing a whole file holds
the interpreter's lock, and so every request, for seconds per megabyte. So the file is only
cut into lines by the tokenizer, which is Python and lets others run; what is parsed is the
one statement that was asked for.
"""

from __future__ import annotations

import ast
import io
import os
import tokenize
from collections.abc import Iterator
from typing import Final

from tfs.core.errors import InvalidArgument, NotFound
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import Servable
from tfs.core.version.manifest import read_signatures
from tfs.core.version_directory import SIGNATURES
from tfs.servables.platform import LoadContext, VersionDescription, describe
from tfs.servables.reach.source_reach import why_folder
from tfs.servables.version_loader import VersionLoader

MAX_SOURCE_BYTES: Final = 1 << 20
"""Largest source file that is read; this takes seconds of one thread and holds up no
other."""

_MAX_STATEMENT_CHARS: Final = 64 << 10  # parsed in tens of milliseconds
_MAX_DEPTH: Final = 50
_MAX_SHOWN_CHARS: Final = 60
_LITERALS: Final = (
    ast.Constant,
    ast.Dict,
    ast.List,
    ast.Set,
    ast.Tuple,
    ast.UnaryOp,
    ast.BinOp,
)
_OPENING: Final = frozenset("([{")
_CLOSING: Final = frozenset(")]}")


def class_literal(path: str, name: str) -> tuple[str, object] | None:
    """Returns what the first class that assigns to ``name`` assigns, and the class.

    The assignment stands in the class's own body, and its value is a plain literal. None
    if no class of the file has one. Reads the file; blocks.

    Raises:
        InvalidArgument: The file is no Python source, is too large, or the value is not
            a literal.

    """
    file_name = os.path.basename(path)
    try:
        for kind, statement in _statements(_read(path), name):
            value = _assigned(statement, name)
            if value is not None:
                return kind, _evaluated(value, f"{kind}.{name}")
    except tokenize.TokenError as error:
        text, (line, _) = error.args
        raise InvalidArgument(
            f"bad {file_name}: line {line}: {text}; it is no Python that can be run"
        ) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise InvalidArgument(f"bad {file_name}: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise InvalidArgument(f"bad {file_name}: {name} is nested too deep") from error
    return None


def _read(path: str) -> str:
    size_bytes = os.path.getsize(path)
    if size_bytes > MAX_SOURCE_BYTES:
        raise ValueError(
            f"{size_bytes} bytes are too many for a file without a manifest; write the "
            "version with tfs.export.save_python"
        )
    with tokenize.open(path) as file:  # its first lines may say how it is encoded
        text = file.read()
    if "\0" in text:
        raise ValueError("source code holds a null byte")
    return text


def _statements(source: str, name: str) -> Iterator[tuple[str, str]]:
    """Yields class and text of the statements in class bodies that assign to a name.

    A statement may only look like one; parsing it will show.
    """
    lines = source.splitlines(keepends=True)
    kind = ""  # the class whose body this is; "" outside of classes
    level = 0  # of indentation
    depth = 0  # of brackets
    first: tokenize.TokenInfo | None = None  # first token of the logical line
    is_named = is_wanted = False
    header: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.INDENT:
            level += 1
        elif token.type == tokenize.DEDENT:
            level -= 1
            kind = kind if level else ""
        elif token.type == tokenize.NEWLINE:
            if level == 0:
                kind = header[1] if header[:1] == ["class"] and header[1:] else ""
            elif first is not None and level == 1 and kind and is_wanted:
                yield kind, _text(lines, first.start, token.start)
            first, is_named, is_wanted, header = None, False, False, []
        elif token.type == tokenize.ERRORTOKEN:
            # The tokenizer would go on, which takes quadratic time behind an open
            # quote.
            raise ValueError(f"line {token.start[0]} is not Python: {token.string!r}")
        elif token.type not in (tokenize.NL, tokenize.COMMENT):
            first = first or token
            if len(header) < 2:
                header.append(token.string)
            if token.type == tokenize.NAME:
                is_named = is_named or (depth == 0 and token.string == name)
            elif token.type == tokenize.OP and token.string == "=":
                is_wanted = is_wanted or (depth == 0 and is_named)
            elif token.type == tokenize.OP and token.string in _OPENING:
                depth += 1
                if depth > _MAX_DEPTH and is_wanted:
                    raise ValueError(f"{name} is nested too deep")
            elif token.type == tokenize.OP and token.string in _CLOSING:
                depth -= 1


def _text(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    (row, column), (end_row, end_column) = start, end
    if row == end_row:
        return lines[row - 1][column:end_column]
    between = lines[row : end_row - 1]
    return "".join([lines[row - 1][column:], *between, lines[end_row - 1][:end_column]])


def _assigned(statement: str, name: str) -> ast.expr | None:
    """Returns what a statement assigns to a name; None if it does not."""
    if len(statement) > _MAX_STATEMENT_CHARS:
        raise ValueError(
            f"{name} is said in {len(statement)} characters; write the version with "
            "tfs.export.save_python"
        )
    for each in ast.parse(statement).body:
        if isinstance(each, ast.Assign):
            targets, value = each.targets, each.value
        elif isinstance(each, ast.AnnAssign) and each.value is not None:
            targets, value = [each.target], each.value
        else:
            continue
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return value
    return None


def _evaluated(value: ast.expr, what: str) -> object:
    try:
        literal: object = ast.literal_eval(value)
    except (ValueError, TypeError) as error:
        why = next((f"; {text!r} is none" for text in _computed(value)), "")
        raise InvalidArgument(f"{what} is not a plain literal{why}") from error
    return literal


def _computed(value: ast.expr) -> Iterator[str]:
    """Yields the parts of an expression that have to be computed, outermost first."""
    for node in ast.walk(value):
        if isinstance(node, ast.expr) and not isinstance(node, _LITERALS):
            yield ast.unparse(node)[:_MAX_SHOWN_CHARS]


def syntax_error(path: str) -> str:
    """Returns what is wrong with a source file's syntax, and in which line; "" if nothing.

    Larger files are not looked at: parsing them would hold up others. Reads the file;
    blocks.
    """
    try:
        source = _read(path)
        if len(source) <= _MAX_STATEMENT_CHARS:
            ast.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (OSError, ValueError, RecursionError, MemoryError):
        pass
    return ""


FILE: Final = "servable.py"
_ASSUMED_BYTES: Final = 16 << 20
"""Bytes that the code and its objects are assumed to take, because nothing in the
version tells."""


class PythonModel:
    """See :class:`tfs.servables.platform.Platform`. Immutable."""

    name: Final = "python"

    def recognizes(self, path: str) -> bool:
        return os.path.isfile(os.path.join(path, FILE))

    def runs_code(self, path: str) -> bool:
        return True

    def loader(self, path: str, context: LoadContext) -> Loader[Servable]:
        return VersionLoader(path, self, context)

    def describe(self, path: str) -> VersionDescription:
        """Returns the manifest's description, or else that of the class's source."""
        return describe(path, self.name, self._own)

    def estimate(self, path: str) -> ResourceAllocation:
        """Returns the size of weights and assets, twice: most code reads them in."""
        if not os.path.isfile(os.path.join(path, FILE)):
            raise NotFound(f"no {FILE} in the version")
        size_bytes = 0
        for folder, _, names in os.walk(path):
            size_bytes += sum(_size_bytes(os.path.join(folder, n)) for n in names)
        return ResourceAllocation.ram(_ASSUMED_BYTES + 2 * size_bytes)

    def why_apart(self, path: str) -> str:
        return why_folder(path)

    def _own(self, path: str) -> VersionDescription:
        file = os.path.join(path, FILE)
        concurrency = literal_concurrency(file)
        entry = {} if concurrency is None else {"concurrency": concurrency}
        if os.path.isfile(os.path.join(path, SIGNATURES)):
            return VersionDescription({}, entry)
        form = literal_signatures(file)
        return VersionDescription(read_signatures(form, FILE), entry)


def literal_signatures(path: str) -> object:
    """Returns ``signatures`` of the class in a ``servable.py``, without running it.

    Raises:
        InvalidArgument: The file is no Python source, or no class states its signatures
            as a plain dict.

    """
    try:
        found = class_literal(path, "signatures")
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{error.message}; write the version with tfs.export.save_python"
        ) from error
    if found is None:
        fault = syntax_error(path)
        if fault:
            raise InvalidArgument(f"{FILE} is no Python that can be run: {fault}")
        raise InvalidArgument(
            f"no class in {FILE} says its signatures; write the version with "
            f"tfs.export.save_python, or put a {SIGNATURES} beside it"
        )
    return found[1]


def literal_concurrency(path: str) -> object:
    """Returns ``concurrency`` of the class in a ``servable.py``, None if it has none.

    Raises:
        InvalidArgument: The file is no source, or the value is not a plain number.

    """
    found = class_literal(path, "concurrency")
    return None if found is None else found[1]


def _size_bytes(path: str) -> int:
    """Returns a file's size; 0 for a link that leads nowhere, as editors leave them."""
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0
