"""``importlib.resources`` and ``pkgutil`` as packaged code sees them.

A packaged module is in no folder, and only the archive's importer knows it by its name,
so Python's own functions do not find its files. This is imported only for archives that
use them.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import io
import pkgutil
import types
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from torch.package._mangling import demangle
from torch.package.package_importer import PackageImporter


class PackagedFile(zipfile.Path):
    """A file or folder of an archive, whether it exists or not; a ``Traversable``."""

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Opens it for reading, as text unless ``mode`` is "rb".

        Raises:
            FileNotFoundError: The archive does not have it; says how it would.

        """
        if not self.is_file():
            path = self.at.partition("/")[2]  # all is in one folder
            raise FileNotFoundError(
                f"{path} is not in the archive: pass packaging="
                f'Packaging(resources={{"{path}": text}}) to save'
            )
        return super().open(mode, *args, **kwargs)  # type: ignore[call-overload]


def replacements(importer: PackageImporter) -> tuple[types.ModuleType, ...]:
    """Returns ``importlib.resources`` and ``pkgutil`` for an archive's code.

    For the files of other packages they do the same as Python's own.
    """
    top = next(PackagedFile(importer.zip_reader.zip_file()).iterdir())

    def files(anchor: Any) -> Any:
        folder = _folder_of(top, anchor)
        if folder is not None:
            return folder
        with _explained(anchor):
            return importlib.resources.files(anchor)

    def read_text(
        package: object, resource: str, encoding: str = "utf-8", errors: str = "strict"
    ) -> str:
        return read_binary(package, resource).decode(encoding, errors)

    def read_binary(package: object, resource: str) -> bytes:
        content: bytes = files(package).joinpath(resource).read_bytes()
        return content

    def open_text(
        package: object, resource: str, encoding: str = "utf-8", errors: str = "strict"
    ) -> IO[str]:
        return io.StringIO(read_text(package, resource, encoding, errors))

    def open_binary(package: object, resource: str) -> IO[bytes]:
        return io.BytesIO(read_binary(package, resource))

    def path(package: object, resource: str) -> AbstractContextManager[Path]:
        return importlib.resources.as_file(files(package).joinpath(resource))

    def is_resource(package: object, name: str) -> bool:
        return bool(files(package).joinpath(name).is_file())

    def get_data(package: str, resource: str) -> bytes | None:
        folder = _folder_of(top, package)
        if folder is None:
            with _explained(package):
                return pkgutil.get_data(package, resource)
        return folder.joinpath(resource).read_bytes()

    return (
        _replaced(
            importlib.resources,
            files, read_text, read_binary, open_text, open_binary, path, is_resource,
        ),
        _replaced(pkgutil, get_data),
    )  # fmt: skip


def _folder_of(top: zipfile.Path, anchor: object) -> zipfile.Path | None:
    """Returns the folder of a package, or of a module's file; None if it is elsewhere.

    An archive has the files of a package that are imported, its ``__init__.py`` only if
    that is.
    """
    name = anchor.__name__ if isinstance(anchor, types.ModuleType) else anchor
    if not isinstance(name, str):
        return None
    *outer, last = demangle(name).split(".")
    around = top.joinpath(*outer)
    folder = around.joinpath(last)
    if folder.joinpath("__init__.py").is_file():
        return folder
    if around.joinpath(f"{last}.py").is_file():
        return around
    return folder if folder.is_dir() else None


@contextlib.contextmanager
def _explained(anchor: object) -> Iterator[None]:
    """Adds to the error for a missing package how its files get into the archive."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not isinstance(anchor, str) or not f"{anchor}.".startswith(f"{error.name}."):
            raise
        path = anchor.replace(".", "/")
        raise ModuleNotFoundError(
            f"{anchor} is not in the archive: pass packaging="
            f'Packaging(resources={{"{path}/FILE": text}}) to save, for each of its files',
            name=anchor,
        ) from error


def _replaced(
    original: types.ModuleType, *functions: Callable[..., object]
) -> types.ModuleType:
    module = types.ModuleType(original.__name__, original.__doc__)
    vars(module).update(vars(original))
    for function in functions:
        setattr(module, function.__name__, function)
    return module
