"""Platform ``torch_package``: model, code and weights in one hermetic archive.

Source: "Using Python for Model Inference in Deep Learning", section 4.4. The code is
imported from the archive only (and from what it names extern), under a mangled name,
so that two archives whose classes share a name live side by side. Tensors are views
of the archive's bytes: nothing is read or copied until a kernel touches it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import linecache
import pickle
import sys
import types
import warnings
import zipfile
from collections.abc import Callable

import torch
from torch.package._mangling import demangle
from torch.package.package_importer import PackageImporter

from tfs.core.errors import DataLoss, NotFound
from tfs.core.right_of_way import make_way
from tfs.runtime.guest.devices.device_weights import DeviceWeights
from tfs.runtime.guest.fast_layers.packed_convolutions import quicken_convolutions
from tfs.runtime.guest.fast_layers.quickening import quicken
from tfs.runtime.guest.guest_model import GuestModel
from tfs.runtime.guest.mapped_reader import MappedReader
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.nested_values import class_in
from tfs.runtime.guest.sealed_file import SealedFile
from tfs.runtime.guest.torch_callable import TorchCallable, methods_of
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.guest.weight_places import by_address

ARCHIVE = "model.pt"
_RESOURCES = "importlib.resources"


def load(
    source: ModelSource, files: VersionFiles, weights: DeviceWeights | None = None
) -> GuestModel:
    """Loads the model of a version; see :class:`GuestModel`.

    Raises:
        DataLoss: The archive is damaged.
        NotFound: It holds no such resource.
        InvalidArgument: The manifest's entry does not fit the model.

    """
    package = source.text("package", "model")
    resource = source.text("resource", "model.pkl")
    importer = open_package(files[ARCHIVE], f"{source.id.slashed}: {ARCHIVE}")
    make_way()
    reader = importer.zip_reader
    try:
        if not reader.has_record(f"{package.replace('.', '/')}/{resource}"):
            raise NotFound(
                f"{source.id.slashed}: its archive holds no {resource!r} in package "
                f"{package!r}"
            )
        location: object = source.device
        if weights is not None:
            location = weights.restorer(ARCHIVE, by_address(reader.mappings))
        model = importer.load_pickle(package, resource, map_location=location)
        if isinstance(model, torch.nn.Module):
            make_way()
            model.eval()
            quicken(model)
            make_way()
            if source.packs_weights:
                quicken_convolutions(model, by_address(reader.mappings))
        find_class = functools.partial(class_in, importer.import_module)
        functions = methods_of(source, model, find_class)
    except BaseException:
        close_package(importer)
        raise
    make_way()
    return TorchCallable(
        source,
        functions,
        written_pages=reader.num_written_pages,
        on_close=lambda: close_package(importer),
    )


def open_package(
    file: SealedFile, who: str, on_map: Callable[[int], None] | None = None
) -> PackageImporter:
    """Opens an archive whose tensors are views of ``file``.

    Args:
        file: The archive.
        who: It, for errors.
        on_map: Told of the memory that is mapped; see :class:`MappedReader`.

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
    """Has packaged code find modules and data of the archive by Python's own ways."""
    extern = importer.extern_modules
    if (
        "importlib" not in extern
        and _RESOURCES not in extern
        and "pkgutil" not in extern
    ):
        return
    own = importer.modules["importlib"] = _importlib_of(importer)
    if _RESOURCES not in extern and "pkgutil" not in extern:
        return
    from tfs.runtime.guest import packaged_resources

    resources = packaged_resources.packaged_resources(importer)
    own.__dict__["resources"] = importer.modules[_RESOURCES] = resources
    if "pkgutil" in extern:
        importer.modules["pkgutil"] = packaged_resources.packaged_pkgutil(importer)


def _importlib_of(importer: PackageImporter) -> types.ModuleType:
    """Returns ``importlib`` as packaged code sees it: it looks into the archive first.

    The import statement does so by itself; a name that is made up at run time goes
    through this function, and would be looked for on the server alone.
    """

    def import_module(name: str, package: str | None = None) -> types.ModuleType:
        """Imports from the archive, else from the environment."""
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

    module = types.ModuleType("importlib", importlib.__doc__)
    vars(module).update(
        {k: v for k, v in vars(importlib).items() if k not in vars(module)}
    )
    vars(module)["import_module"] = import_module
    return module


class _Unpickler(pickle.Unpickler):
    """Finds what a pickle names as its package imports it.

    torch's own is written in Python, which takes a millisecond for a small network,
    five times as long. That also renames modules of Python 2, which pickles of the
    protocols that torch.package writes (3 and 4) do not name.
    """

    def __init__(self, importer: PackageImporter, file: io.BytesIO) -> None:
        super().__init__(file)
        self._importer = importer

    def find_class(self, module: str, name: str) -> object:
        make_way()
        return getattr(self._importer.import_module(module), name)


class _Modules(dict[str, types.ModuleType]):
    """A package's modules, known to Python under their mangled names as well.

    Dataclasses, typing and pickle look a class's module up in ``sys.modules`` and
    fail where it is absent; a mangled name (``<torch_package_0>.nets``) can be
    imported by nobody else.
    """

    def __init__(self, importer: PackageImporter) -> None:
        super().__init__(importer.modules)
        self._prefix = f"{importer.id()}."  # type: ignore[no-untyped-call]

    def __setitem__(self, name: str, module: types.ModuleType) -> None:
        make_way()  # it is compiled and run next
        super().__setitem__(name, module)
        if sys.modules.get(name) is not module:  # not an extern one
            sys.modules[self._prefix + name] = module


def close_package(importer: PackageImporter) -> None:
    """Undoes what importing left in the process; the rest goes with the garbage."""
    importer.zip_reader.release()
    prefix = f"{importer.id()}."  # type: ignore[no-untyped-call]
    for name in [name for name in linecache.cache if name.startswith(prefix)]:
        del linecache.cache[name]
    for name in [name for name in sys.modules if name.startswith(prefix)]:
        del sys.modules[name]
    importer.modules.clear()
    # Whoever prints an old traceback asks for source, which would import it again.
    importer.get_source = _no_source  # type: ignore[method-assign]


def _no_source(module_name: str) -> str:
    raise ImportError(f"{module_name} was unloaded")


class MappedImporter(PackageImporter):
    """Imports an archive in memory; every object it loads has weights of its own.

    Of its own to write to, that is: until it writes, they are the archive's pages.
    """

    def _load_module(self, name: str, parent: str) -> types.ModuleType:
        """As torch has it, but Python and torch are there for every archive.

        torch asks the list of what import statements name; ``__import__(name)`` is none.
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
        """Whether the archive brings a module or package of that name."""
        reader = self.zip_reader
        return reader.has_record(f"{top}.py") or any(
            record.startswith(f"{top}/") for record in reader.get_all_records()
        )

    def load_pickle(
        self, package: str, resource: str, map_location: object = None
    ) -> object:
        """Unpickles a resource, over a mapping that nobody has written to."""
        self.zip_reader.remap()
        with warnings.catch_warnings():
            # torch's own reader of packages says it, to whoever loads one.
            warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
            loaded: object = super().load_pickle(package, resource, map_location)
        return loaded
