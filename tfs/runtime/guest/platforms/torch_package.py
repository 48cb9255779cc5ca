"""Platform ``torch_package``: model, code and weights in one hermetic archive.

Source: "Using Python for Model Inference in Deep Learning", section 4.4. Code is
imported only from the archive, and from the modules that it declares extern. It is
imported under a mangled name, so that two archives may have classes of the same name.
Tensors are views of the archive's bytes: nothing is read or copied until a kernel
touches it.

Packaged code has an ``importlib.resources`` and a ``pkgutil`` of its own: a packaged module
is in no folder, and only the archive's importer knows it by its name, so the functions of
Python do not find its files.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.resources
import importlib.util
import io
import linecache
import pickle
import pkgutil
import sys
import types
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import torch
from torch.package._mangling import demangle
from torch.package.package_importer import PackageImporter

from tfs.core.errors import DataLoss, NotFound
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.version.version_layout import ARCHIVE
from tfs.runtime.guest.guest_model import GuestModel
from tfs.runtime.guest.memory_files import SealedFile, VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.module_call import class_in
from tfs.runtime.guest.platforms.torch_callable import (
    TorchCallable,
    called_modules,
    methods_of,
)
from tfs.runtime.guest.weights import MappedReader


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

    What finds the files of a package in them looks into the archive. Of the files of other
    packages they know what Python's own know.
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


_RESOURCES = "importlib.resources"


def load(source: ModelSource, files: VersionFiles) -> GuestModel:
    """Loads the model of a version; see :class:`GuestModel`.

    Raises:
        DataLoss: The archive is damaged.
        NotFound: It contains no such resource.
        InvalidArgument: The manifest's entry does not fit the model.

    """
    package = source.text("package", "model")
    resource = source.text("resource", "model.pkl")
    importer = open_package(files[ARCHIVE], f"{source.id.slashed}: {ARCHIVE}")
    reader = importer.zip_reader
    try:
        if not reader.has_record(f"{package.replace('.', '/')}/{resource}"):
            raise NotFound(
                f"{source.id.slashed}: its archive holds no {resource!r} in package "
                f"{package!r}"
            )
        model = importer.load_pickle(package, resource, map_location=source.device)
        if isinstance(model, torch.nn.Module):
            model.eval()
        find_class = functools.partial(class_in, importer.import_module)
        functions = methods_of(source, model, find_class)
    except BaseException:
        close_package(importer)
        raise
    return TorchCallable(
        source,
        functions,
        on_close=lambda: close_package(importer),
        cuttable=called_modules(source, model),
    )


def open_package(
    file: SealedFile, who: str, on_map: Callable[[int], None] | None = None
) -> PackageImporter:
    """Opens an archive whose tensors are views of ``file``.

    Args:
        file: The archive.
        who: Its name, for errors.
        on_map: Told how much memory is mapped; see :class:`MappedReader`.

    Raises:
        DataLoss: It is not an archive, or not one of torch.package.

    """
    try:
        importer = MappedImporter(MappedReader(file, on_map))
    except (RuntimeError, zipfile.BadZipFile) as error:
        raise DataLoss(
            f"{who} is not a torch.package archive or is damaged; write it again"
        ) from error
    importer.modules = _Modules(importer)
    vars(importer)["Unpickler"] = functools.partial(_Unpickler, importer)
    _replace_finders(importer)
    return importer


def _replace_finders(importer: PackageImporter) -> None:
    """Lets packaged code find the archive's modules and data by Python's own functions."""
    used = {"importlib", _RESOURCES, "pkgutil"} & {*importer.extern_modules}
    if not used:
        return
    own = importer.modules["importlib"] = _importlib_of(importer)
    if used == {"importlib"}:
        return

    resources, pkgutil = replacements(importer)
    own.__dict__["resources"] = importer.modules[_RESOURCES] = resources
    if "pkgutil" in used:
        importer.modules["pkgutil"] = pkgutil


def _importlib_of(importer: PackageImporter) -> types.ModuleType:
    """Returns ``importlib`` as packaged code sees it: it looks into the archive first.

    The import statement does so by itself. A name that is computed at run time goes
    through this function, and would otherwise be looked for only on the server.
    """

    def import_module(name: str, package: str | None = None) -> types.ModuleType:
        """Imports from the archive, or else from the environment."""
        plain = demangle(importlib.util.resolve_name(name, package))
        try:
            found: types.ModuleType = importer.import_module(plain)
        except ModuleNotFoundError as error:
            if error.name is not None and not f"{plain}.".startswith(f"{error.name}."):
                raise  # it is there; something that it imports is not
        else:
            return found
        try:
            return importlib.import_module(plain)
        except ModuleNotFoundError as error:
            if error.name is None or not plain.startswith(f"{error.name}."):
                raise
            raise ModuleNotFoundError(
                f"No module named {plain!r} in the archive, nor outside: include it when "
                "the model is saved, or install it beside the server",
                name=plain,
            ) from error

    return _replaced(importlib, import_module)


class _Unpickler(pickle.Unpickler):
    """Finds the names in a pickle through the package's own imports.

    torch's own unpickler is written in Python and takes a millisecond for a small
    network, five times as long. It also renames modules of Python 2, but those do not
    occur in pickles of the protocols that torch.package writes (3 and 4).
    """

    def __init__(self, importer: PackageImporter, file: io.BytesIO) -> None:
        super().__init__(file)
        self._importer = importer

    def find_class(self, module: str, name: str) -> object:
        yield_to_requests()
        return getattr(self._importer.import_module(module), name)


class _Modules(dict[str, types.ModuleType]):
    """A package's modules, known to Python under their mangled names as well.

    Dataclasses, typing and pickle look up a class's module in ``sys.modules`` and fail
    if it is not there. Nobody else can import a mangled name
    (``<torch_package_0>.nets``).
    """

    def __init__(self, importer: PackageImporter) -> None:
        super().__init__(importer.modules)
        self._prefix = f"{importer.id()}."  # type: ignore[no-untyped-call]

    def __setitem__(self, name: str, module: types.ModuleType) -> None:
        yield_to_requests()  # it is compiled and run next
        super().__setitem__(name, module)
        if sys.modules.get(name) is not module:  # not an extern one
            sys.modules[self._prefix + name] = module


def close_package(importer: PackageImporter) -> None:
    """Removes what importing left in the process; the rest is freed as garbage."""
    importer.zip_reader.release()
    prefix = f"{importer.id()}."  # type: ignore[no-untyped-call]
    # Other threads add to both, so their names are copied, which no thread interrupts.
    for name in [name for name in list(linecache.cache) if name.startswith(prefix)]:
        linecache.cache.pop(name, None)
    for name in [name for name in list(sys.modules) if name.startswith(prefix)]:
        del sys.modules[name]
    importer.modules.clear()
    # Whoever prints an old traceback asks for source, which would import it again.
    importer.get_source = _no_source  # type: ignore[method-assign]


def _no_source(module_name: str) -> str:
    raise ImportError(f"{module_name} was unloaded")


class MappedImporter(PackageImporter):
    """Imports an archive in memory; every object that it loads may write to its weights.

    Until an object does, its weights are the pages of the archive.
    """

    def _load_module(self, name: str, parent: str) -> types.ModuleType:
        """Like torch's method, but Python and torch can be imported by every archive.

        torch only allows modules that import statements name, and ``__import__(name)``
        is not such a statement.
        """
        top = name.partition(".")[0]
        if (
            name not in self.extern_modules
            and (top in sys.stdlib_module_names or top == "torch")
            and not self._has_own(top)
        ):
            module = self.modules[name] = importlib.import_module(name)
            return module
        loaded: types.ModuleType = super()._load_module(name, parent)
        return loaded

    def _has_own(self, top: str) -> bool:
        reader = self.zip_reader
        return reader.has_record(f"{top}.py") or any(
            record.startswith(f"{top}/") for record in reader.get_all_records()
        )

    def load_pickle(
        self, package: str, resource: str, map_location: object = None
    ) -> object:
        """Unpickles a resource, over a mapping to which nobody has written."""
        self.zip_reader.remap()
        with warnings.catch_warnings():
            # torch's own reader of packages says it, to whoever loads one.
            warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
            loaded: object = super().load_pickle(package, resource, map_location)
        return loaded
