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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from torch.package._mangling import demangle
from torch.package.package_importer import PackageImporter


class PackagedFile:
    """A file or folder of an archive, whether it exists or not. Immutable.

    A ``Traversable`` of ``importlib.resources``.

    Args:
        importer: The archive's importer.
        path: A path within the archive: "nets/config.json"; "" is all of it.

    """

    def __init__(self, importer: PackageImporter, path: str) -> None:
        self._importer = importer
        self._path = path

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._path.rpartition("/")[2]

    def iterdir(self) -> Iterator[PackagedFile]:
        """Yields the contents of the folder, each once."""
        names = {path.partition("/")[0]: None for path in self._below()}
        for name in names:
            yield self / name

    def is_dir(self) -> bool:
        """Whether it contains anything."""
        return any(True for _ in self._below())

    def is_file(self) -> bool:
        """Whether the archive has it."""
        return bool(self._importer.zip_reader.has_record(self._path))

    def joinpath(self, *descendants: object) -> PackagedFile:
        """Returns a file or folder further down."""
        parts = filter(None, (self._path, *map(str, descendants)))
        return PackagedFile(self._importer, "/".join(parts))

    def __truediv__(self, child: object) -> PackagedFile:
        return self.joinpath(child)

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
        """Opens it for reading, as text unless ``mode`` is "rb".

        Raises:
            FileNotFoundError: The archive does not have it; says how it would.

        """
        content = io.BytesIO(self.read_bytes())
        return content if "b" in mode else io.TextIOWrapper(content, *args, **kwargs)

    def read_bytes(self) -> bytes:
        """Returns the content; raises as ``open``."""
        if not self.is_file():
            raise FileNotFoundError(
                f"{self._path} is not in the archive: pass packaging="
                f'Packaging(resources={{"{self._path}": text}}) to save'
            )
        content: bytes = self._importer.zip_reader.get_record(self._path)
        return content

    def read_text(self, encoding: str | None = None, errors: str = "strict") -> str:
        """Returns the content; raises as ``open``."""
        return self.read_bytes().decode(encoding or "utf-8", errors)

    def _below(self) -> Iterator[str]:
        prefix = self._path and f"{self._path}/"
        for record in self._importer.zip_reader.get_all_records():
            if record.startswith(prefix):
                yield record.removeprefix(prefix)


def packaged_resources(importer: PackageImporter) -> types.ModuleType:
    """Returns ``importlib.resources`` for an archive's code; same for other packages."""

    def files(anchor: Any) -> Any:
        folder = folder_of(importer, anchor)
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

    return _replaced(
        importlib.resources,
        files, read_text, read_binary, open_text, open_binary, path, is_resource,
    )  # fmt: skip


def packaged_pkgutil(importer: PackageImporter) -> types.ModuleType:
    """Returns ``pkgutil`` for an archive's code; same for the data of other packages."""

    def get_data(package: str, resource: str) -> bytes | None:
        folder = folder_of(importer, package)
        if folder is None:
            with _explained(package):
                return pkgutil.get_data(package, resource)
        return folder.joinpath(resource).read_bytes()

    return _replaced(pkgutil, get_data)


def folder_of(importer: PackageImporter, anchor: object) -> PackagedFile | None:
    """Returns the folder of a package, or of a module's file; None if it is elsewhere.

    An archive has the files of a package that are imported, its ``__init__.py`` only if
    that is.
    """
    name = anchor.__name__ if isinstance(anchor, types.ModuleType) else anchor
    if not isinstance(name, str):
        return None
    folder = PackagedFile(importer, demangle(name).replace(".", "/"))
    if folder.joinpath("__init__.py").is_file():
        return folder
    outer, _, module = demangle(name).replace(".", "/").rpartition("/")
    around = PackagedFile(importer, outer)
    if around.joinpath(f"{module}.py").is_file():
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
