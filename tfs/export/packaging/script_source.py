"""Takes the definitions a model needs out of the script that trains it.

A class of ``__main__`` lives in a file whose top level trains, exports and prints;
importing that file on a server would do it all again. So only statements that define
what the model uses go into the archive, word for word: imports, functions, classes,
assignments, and an ``if`` or ``try`` that has nothing else in it. Loops, ``with`` and
everything else stay behind. If one of these sets a name that the model uses, the script
is refused: nobody could tell what belongs to the model.
"""

from __future__ import annotations

import ast
import os
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from symtable import SymbolTable, symtable
from typing import Final

from tfs.core.errors import InvalidArgument

_COOKIE: Final = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII)


def read_source(path: str | os.PathLike[str]) -> str:
    """Returns the text of a file in the encoding that its mark or its first lines name.

    Raises:
        SyntaxError: It is in no such encoding.

    """
    with tokenize.open(path) as file:
        return in_utf8(file.read())


def in_utf8(source: str) -> str:
    """Returns the source without a comment that names another encoding.

    An archive's files are UTF-8, and Python would believe such a comment.
    """
    lines = source.split("\n", 2)
    for index, line in enumerate(lines[:2]):
        if _COOKIE.match(line):
            lines[index] = "# saved as UTF-8"
    return "\n".join(lines)


_DEFINITIONS: Final = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)
_ASSIGNMENTS: Final = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_SCOPES: Final = (
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement at the top of the script.

    Attributes:
        node: The statement.
        defines: Whether it does nothing but import, define or assign.
        binds: The names that it binds at the top of the script.
        fills: The names into whose items or attributes it writes.

    """

    node: ast.stmt
    defines: bool
    binds: frozenset[str]
    fills: frozenset[str]


def needed_source(source: str, names: Collection[str], script: str = "script") -> str:
    """Returns the top-level statements of ``source`` that ``names`` depend on.

    Kept as well is what completes a kept object: assignments to its items and attributes,
    calls of its methods (``TABLE.update(...)``, but not ``torch.save(...)``), and
    definitions that a decorator enters into it.

    Raises:
        SyntaxError: The source does not parse.
        InvalidArgument: A name that is needed is set by a statement that is not kept.

    """
    # Python's parser knows no other line breaks; str.splitlines does.
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    statements = [_described(node) for node in ast.parse(source).body]
    imported = {
        name
        for statement in statements
        for node in ast.walk(statement.node)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in _bound(node)
    }
    fills = {
        each.node.name: _filled(each.node)
        for each in statements
        if isinstance(each.node, ast.FunctionDef | ast.ClassDef)
    }
    wanted = set(names)
    kept: set[int] = set()
    grown = True
    while grown:
        grown = False
        for index, each in enumerate(statements):
            own = wanted - imported
            if index not in kept and (
                (each.defines and (each.binds & wanted or _imports_all(each.node)))
                or _completes(each, own)
                or _enters_itself(each.node, own, fills)
            ):
                kept.add(index)
                wanted |= _used(each.node)
                grown = True
    for index, each in enumerate(statements):
        changed = (each.binds | each.fills) & (wanted - imported)
        if index not in kept and changed:
            raise InvalidArgument(
                f"{script}, line {each.node.lineno}, sets {min(changed)!r} in a "
                f"statement that does more than define, and {', '.join(sorted(names))} "
                "would need it on a server: move the class, and what it uses, into a "
                "module of its own (nets.py) and import it"
            )
    return "".join(_text(source, statements[index].node) for index in sorted(kept))


def _described(node: ast.stmt) -> _Statement:
    stored = [
        each
        for each in _within(node)
        if isinstance(each, ast.Attribute | ast.Subscript)
        and not isinstance(each.ctx, ast.Load)
    ]
    owners = [owner.id for each in stored if (owner := _owner(each))]
    return _Statement(node, _defines(node), frozenset(_bound(node)), frozenset(owners))


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        parts = [*node.body, *node.orelse]
    elif isinstance(node, ast.Try):
        parts = [*node.body, *node.orelse, *node.finalbody]
        parts += [each for handler in node.handlers for each in handler.body]
    else:
        return isinstance(node, (*_DEFINITIONS, *_ASSIGNMENTS, ast.Pass))
    asks_for_name = isinstance(node, ast.If) and any(
        isinstance(each, ast.Name) and each.id == "__name__"
        for each in ast.walk(node.test)
    )
    return not asks_for_name and all(map(_defines, parts))


def _imports_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and (
        node.module == "__future__" or node.names[0].name == "*"
    )


def _completes(statement: _Statement, own: Collection[str]) -> bool:
    """Whether it writes into one of the script's own objects, or calls its method."""
    node = statement.node
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        owner = _owner(called) if isinstance(called, ast.Attribute) else None
        return owner is not None and owner.id in own
    return isinstance(node, _ASSIGNMENTS) and any(
        name in own for name in statement.fills
    )


def _enters_itself(
    statement: ast.stmt, wanted: Collection[str], fills: Mapping[str, Collection[str]]
) -> bool:
    """Whether a decorator registers a definition in something that is wanted.

    Args:
        statement: A statement at the top level.
        wanted: Names that the script itself binds.
        fills: The names into which each function and class of the script writes.

    """
    if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return False
    for decorator in statement.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        owner = _owner(called)
        if owner is called:  # the decorator is a function of the script
            if any(name in wanted for name in fills.get(owner.id, ())):
                return True
        elif owner is not None and owner.id in wanted:
            return True
    return False


def _filled(definition: ast.stmt) -> set[str]:
    """Returns the names that a definition writes into, or whose methods it calls."""
    owners = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.Call):
            owner = _owner(node.func) if isinstance(node.func, ast.Attribute) else None
        elif isinstance(node, ast.Attribute | ast.Subscript):
            owner = _owner(node) if isinstance(node.ctx, ast.Store) else None
        else:
            continue
        if owner is not None:
            owners.add(owner.id)
    return owners


def _owner(node: ast.expr) -> ast.Name | None:
    """Returns the name at the start of a chain of attributes and items, if there is one."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """Yields a node and those in it that belong to the same scope."""
    yield node
    if isinstance(node, (*_DEFINITIONS, *_SCOPES)):
        return
    for child in ast.iter_child_nodes(node):
        yield from _within(child)


def _bound(statement: ast.AST) -> Iterator[str]:
    """Yields the names that a statement binds, or deletes, in its own scope."""
    for node in _within(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            if node.name is not None:
                yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest is not None:
            yield node.rest


def _used(statement: ast.stmt) -> set[str]:
    used = _global_names(symtable(ast.unparse(statement), "script", "exec"))
    for node in ast.walk(statement):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            used |= _annotated(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
            used |= _annotated(node.returns)
    return used


def _global_names(scope: SymbolTable) -> set[str]:
    """Returns the names that a scope, and the scopes in it, look up at the top level.

    A parameter or variable of a function is not a name of the script:
    ``for scale in (1, 2): save(Net(scale))`` does not belong to a class whose
    ``__init__`` has a ``scale``.
    """
    at_top = scope.get_type() == "module"
    names = {
        each.get_name()
        for each in scope.get_symbols()
        if at_top
        or each.is_declared_global()
        or (each.is_referenced() and (each.is_global() or scope.get_type() == "class"))
    }
    return names.union(*map(_global_names, scope.get_children()))


def _annotated(annotation: ast.expr) -> set[str]:
    """Returns the names in an annotation, quoted or not.

    No other text is searched: ``register_buffer("mask", ...)`` has nothing to do with a
    ``mask`` of the script.
    """
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                quoted = ast.parse(node.value, mode="eval")
            except SyntaxError:
                continue  # such as Literal["any text"]
            names |= {
                each.id for each in ast.walk(quoted) if isinstance(each, ast.Name)
            }
    return names


def _text(source: str, statement: ast.stmt) -> str:
    if isinstance(statement, (ast.Import, ast.ImportFrom, *_ASSIGNMENTS, ast.Expr)):
        # Others may stand in its line: ``SCALE = 2; train()``.
        return f"{ast.get_source_segment(source, statement)}\n"
    decorators = getattr(statement, "decorator_list", ())
    first = min(each.lineno for each in (statement, *decorators))
    lines = source.split("\n")[first - 1 : statement.end_lineno]
    return "\n".join(lines) + "\n"
