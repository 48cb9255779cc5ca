"""Takes the definitions a model needs out of the script that trains it.

A class of ``__main__`` lives in a file whose top level trains, exports and prints;
importing that file on a server would do it all again. So only the statements that
define what the model uses go into the archive, word for word.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from symtable import SymbolTable, symtable


def needed_source(source: str, names: Collection[str]) -> str:
    """Returns the top-level statements of ``source`` that ``names`` depend on.

    Imports, definitions and assignments are kept if a kept statement uses the names
    that they bind. With them are kept calls on such an object (``TABLE.update(...)``),
    but not on imported modules (``torch.save(...)``). Definitions that register
    themselves in a kept object are kept as well: by a decorator that belongs to it
    (``@TABLE.register``), or by one that is a function which fills a kept table. A
    block that tests ``__name__`` is never kept.

    Raises:
        SyntaxError: The source does not parse.

    """
    statements = [s for s in ast.parse(source).body if not _asks_for_name(s)]
    imported = {
        name
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in _bound(node)
    }
    wanted = set(names)
    kept: set[int] = set()
    fills = {
        each.name: _filled(each)
        for each in statements
        if isinstance(each, ast.FunctionDef | ast.ClassDef)
    }
    changed = True
    while changed:
        changed = False
        for index, statement in enumerate(statements):
            if index in kept or not (
                _is_needed(statement, wanted, imported)
                or _enters_itself(statement, wanted - imported, fills)
            ):
                continue
            kept.add(index)
            wanted |= _used(statement)
            changed = True
    lines = source.splitlines(keepends=True)
    return "".join(_text(lines, statements[index]) for index in sorted(kept))


def _is_needed(
    statement: ast.stmt, wanted: Collection[str], imported: Collection[str]
) -> bool:
    if isinstance(statement, ast.ImportFrom) and (
        statement.module == "__future__" or statement.names[0].name == "*"
    ):
        return True
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        owner = statement.value.func
        while isinstance(owner, ast.Attribute):
            owner = owner.value
        return (
            isinstance(owner, ast.Name)
            and isinstance(statement.value.func, ast.Attribute)
            and owner.id in wanted
            and owner.id not in imported
        )
    return any(name in wanted for name in _bound(statement))


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


def _bound(node: ast.AST) -> Iterator[str]:
    """Yields the names a statement binds or changes at the top level."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    if isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(
        node.ctx, ast.Store
    ):
        owner: ast.expr = node
        while isinstance(owner, ast.Attribute | ast.Subscript):
            owner = owner.value
        if isinstance(owner, ast.Name):
            yield owner.id
    for child in ast.iter_child_nodes(node):
        yield from _bound(child)


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
    """Returns the names in an annotation, quoted or not."""
    plain = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    return plain | _quoted(annotation)


def _quoted(annotation: ast.expr) -> set[str]:
    """Returns the names that an annotation has in quotes: ``"Config | None"``.

    No other text is searched: ``register_buffer("mask", ...)`` has nothing to do with a
    ``mask`` of the script.
    """
    names: set[str] = set()
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


def _asks_for_name(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__"
        for node in ast.walk(statement.test)
    )


def _text(lines: list[str], statement: ast.stmt) -> str:
    first = statement.lineno
    for decorator in getattr(statement, "decorator_list", ()):
        first = min(first, decorator.lineno)
    last = statement.end_lineno or first
    text = "".join(lines[first - 1 : last])
    return text if text.endswith("\n") else text + "\n"
