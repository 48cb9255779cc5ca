"""Platform ``python``: a class in ``servable.py``, which may have weights beside it.

What the class says of itself is read without running the file.
"""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tfs.core.errors import InvalidArgument, NotFound
from tfs.core.resources import ResourceAllocation
from tfs.core.version.manifest import read_signatures
from tfs.core.version.version_layout import SOURCE
from tfs.core.version_directory import SIGNATURES
from tfs.servables.source_reach import MAX_SOURCE_BYTES, why_folder
from tfs.servables.version_files import VersionDescription, describe

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


def _classes(path: str) -> Sequence[ast.ClassDef]:
    """Returns the classes of a source file. A long one holds Python's lock for 0.1 s."""
    with _refused(path):
        if os.path.getsize(path) > MAX_SOURCE_BYTES:
            raise ValueError(
                f"{os.path.getsize(path)} bytes are too many for a file without a "
                "manifest; write the version with tfs.export.save_python"
            )
        body = ast.parse(Path(path).read_bytes()).body
        return [each for each in body if isinstance(each, ast.ClassDef)]


def _literal(
    classes: Sequence[ast.ClassDef], path: str, name: str
) -> tuple[str, object] | None:
    """Returns the first class that assigns a plain literal to a name, and the literal."""
    for kind in classes:
        for statement in kind.body:
            value = _assigned(statement, name)
            if value is not None:
                with _refused(path):
                    return kind.name, _evaluated(value, f"{kind.name}.{name}")
    return None


@contextlib.contextmanager
def _refused(path: str) -> Iterator[None]:
    """Raises InvalidArgument for what cannot be read of a source."""
    file_name = os.path.basename(path)
    try:
        yield
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise InvalidArgument(
            f"bad {file_name}: {where}{error.msg}; it is no Python that can be run"
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"bad {file_name}: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise InvalidArgument(f"bad {file_name}: it is nested too deep") from error


def _assigned(statement: ast.stmt, name: str) -> ast.expr | None:
    """Returns what a statement assigns to a name; None if it does not."""
    if isinstance(statement, ast.Assign):
        targets, value = statement.targets, statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets, value = [statement.target], statement.value
    else:
        return None
    is_meant = any(isinstance(t, ast.Name) and t.id == name for t in targets)
    return value if is_meant else None


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


_ASSUMED_BYTES: Final = 16 << 20
"""Bytes that the code and its objects are assumed to take, because nothing in the
version tells."""


class PythonModel:
    """See :class:`tfs.servables.platform.VersionReader`. Immutable."""

    name: Final = "python"

    def recognizes(self, path: str) -> bool:
        return os.path.isfile(os.path.join(path, SOURCE))

    def runs_code(self, path: str) -> bool:
        return True

    def describe(self, path: str) -> VersionDescription:
        """Returns the manifest's description, or else that of the class's source."""
        return describe(path, self.name, self._own)

    def estimate(self, path: str) -> ResourceAllocation:
        """Returns the size of weights and assets, twice: most code reads them in."""
        if not os.path.isfile(os.path.join(path, SOURCE)):
            raise NotFound(f"no {SOURCE} in the version")
        size_bytes = 0
        for folder, _, names in os.walk(path):
            size_bytes += sum(_size_bytes(os.path.join(folder, n)) for n in names)
        return ResourceAllocation.ram(_ASSUMED_BYTES + 2 * size_bytes)

    def why_apart(self, path: str) -> str:
        return why_folder(path)

    def _own(self, path: str) -> VersionDescription:
        file = os.path.join(path, SOURCE)
        classes = _classes(file)
        found = _literal(classes, file, "concurrency")
        entry = {} if found is None else {"concurrency": found[1]}
        if os.path.isfile(os.path.join(path, SIGNATURES)):
            return VersionDescription({}, entry)
        form = _signatures(classes, file)
        return VersionDescription(read_signatures(form, SOURCE), entry)


def _signatures(classes: Sequence[ast.ClassDef], path: str) -> object:
    """Returns ``signatures`` of the class in a ``servable.py``, without running it.

    Raises:
        InvalidArgument: No class states its signatures as a plain dict.

    """
    try:
        found = _literal(classes, path, "signatures")
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{error.message}; write the version with tfs.export.save_python"
        ) from error
    if found is None:
        raise InvalidArgument(
            f"no class in {SOURCE} says its signatures; write the version with "
            f"tfs.export.save_python, or put a {SIGNATURES} beside it"
        )
    return found[1]


def _size_bytes(path: str) -> int:
    """Returns a file's size; 0 for a link that leads nowhere, as editors leave them."""
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0
