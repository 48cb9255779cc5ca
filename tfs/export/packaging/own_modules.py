"""Takes the author's own modules along that a class in a file imports."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.package.importer import sys_importer

from tfs.core.errors import InvalidArgument
from tfs.export.packaging.dependency_report import Action
from tfs.export.packaging.package import Exporter
from tfs.export.packaging.packaging import Packaging
from tfs.export.packaging.script_source import read_source

_SERVABLE = "servable"
_TAKEN = ("assets", _SERVABLE)


def write_own_modules(place: str, folder: str, packaging: Packaging) -> None:
    """Copies the author's modules that a file imports into a version, beside the file.

    What is installed as a library is left to the server.

    Raises:
        InvalidArgument: The file's imports cannot be read, or a module cannot be copied.

    """
    exporter = _OwnModules(io.BytesIO(), packaging, [sys_importer])
    try:
        with imported_from(place):
            exporter.save_source_string(_SERVABLE, read_source(place))
            for name in packaging.include:
                exporter.save_module(name)
            graph: Any = exporter.dependency_graph
            while parents := _missing_parents(graph.nodes):
                for name in parents:
                    exporter.add_dependency(name)
            _refuse_missing(exporter, place)
        for name, attributes in graph.nodes.items():
            source = attributes.get("source")
            if source is None or name == _SERVABLE:
                continue
            if name.partition(".")[0] in _TAKEN:
                raise InvalidArgument(
                    f"{place} imports {name}, a name that a version has for itself: "
                    "rename it"
                )
            end = ("__init__.py",) if attributes["is_package"] else ()
            path = Path(folder, *name.split("."), *end)
            path = path if end else path.with_name(f"{path.name}.py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
    except (ImportError, SyntaxError) as error:
        raise InvalidArgument(
            f"{place}: its imports cannot be read: {error}"
        ) from error
    finally:
        exporter.abandon()


@contextlib.contextmanager
def imported_from(place: str) -> Iterator[None]:
    """Lets modules beside a file be imported, as when Python runs the file."""
    folder = os.path.dirname(os.path.abspath(place))
    if folder in map(os.path.abspath, sys.path):
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


class _OwnModules(Exporter):
    """Takes the author's modules, and leaves every library to the server."""

    def _decide(self, name: str) -> tuple[Action, str]:
        action, reason = super()._decide(name)
        return (Action.EXTERN if action is Action.UNRESOLVED else action), reason


def _missing_parents(nodes: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Returns the packages around modules that were taken, as far as they were not."""
    taken = [name for name, each in nodes.items() if each.get("source") is not None]
    parents = {name.rpartition(".")[0] for name in taken}
    return {name for name in parents if name and name not in nodes}


def _refuse_missing(exporter: Exporter, place: str) -> None:
    report = exporter.report()
    if report.unresolved:
        raise InvalidArgument(
            f"{place} imports what cannot be taken along:\n{report.advice()}"
        )
