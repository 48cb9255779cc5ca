"""Writes a module, its code and its weights into one hermetic torch.package archive.

What goes in is decided for each module of Python: by the author's rules first, then by
where the module comes from (``default_action``). If a module is still undecided, that
is an error which shows the whole tree and what to do about each undecided module.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import linecache
import logging
import sys
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol, cast

import torch
from torch import nn
from torch.package.analyze.is_from_package import is_from_package
from torch.package.glob_group import GlobGroup
from torch.package.importer import Importer, sys_importer
from torch.package.package_exporter import PackageExporter, PackagingErrorReason
from torch.package.package_importer import PackageImporter

from tfs.core.errors import InvalidArgument
from tfs.export.module_copy import without_parametrizations
from tfs.export.packaging.archive_file import archive_file
from tfs.export.packaging.dependency_report import (
    Action,
    DependencyReport,
    ModuleReport,
    Unsaved,
)
from tfs.export.packaging.module_origin import (
    default_action,
    plain_name,
    takes_pythons_name,
    trouble,
)
from tfs.export.packaging.packaging import Packaging
from tfs.export.packaging.pickling import DryPickler, unsaved_of
from tfs.export.packaging.script_source import in_utf8, needed_source, read_source
from tfs.export.wrappers import (
    unwrapped,
    without_compiled_parts,
    without_parallelism,
)

PACKAGE: Final = "model"
"""Package of an archive that contains the pickled model, and resources that name no
folder."""

BESIDE: Final = "packaged_model"
"""The package used instead of PACKAGE if the author has a module called "model"."""

RESOURCE: Final = "model.pkl"


def package_of(module: nn.Module, rules: Packaging) -> str:
    """Returns the package of an archive in which its model is pickled.

    Raises:
        InvalidArgument: The author has a module called model, and resources for the
            package of that name.

    """
    own = {type(part).__module__ for part in module.modules()}
    repackaged = [
        name for name in own if name != PACKAGE and plain_name(name) == PACKAGE
    ]
    if not _is_file_of_the_authors(PACKAGE, rules) and not any(
        not hasattr(sys.modules.get(name), "__path__") for name in repackaged
    ):
        return PACKAGE
    for name in rules.resources:
        if name.rpartition("/")[0] in ("", PACKAGE):
            raise InvalidArgument(
                f"resource {name!r} would lie in the package {PACKAGE!r}, which is a "
                "module of yours and no folder: put it into another one "
                f'("resources/{name.rpartition("/")[2]}")'
            )
    return BESIDE


def _is_file_of_the_authors(name: str, rules: Packaging) -> bool:
    """Whether a module of the author's may go into the archive as a file, not a folder."""
    if name in rules.sources:
        return Path(rules.sources[name]).is_file()
    module = sys.modules.get(name)
    if module is not None and hasattr(module, "__path__"):
        return False
    is_used = module is not None or name in rules.include
    return is_used and default_action(name)[0] is Action.INTERNED


def write_archive(
    module: nn.Module, path: str, rules: Packaging, classes: Sequence[str]
) -> DependencyReport:
    """Writes the archive at ``path`` and returns what went into it.

    It includes the modules of ``classes`` (``nets:Box``), the classes of the model's
    arguments.

    Raises:
        InvalidArgument: The module cannot be pickled, or modules are unresolved; says
            why, with the tree. The file must not be used.
        OSError: It could not be written, and must not be used.

    """
    module = without_parametrizations(module)
    importers = _importers(module, rules)
    # Whoever edits a file and reloads its module, as in a notebook, has the old source
    # in this cache, and torch.package reads it from there.
    linecache.checkcache()
    with (
        archive_file(path) as file,
        Exporter(file, rules, importers) as exporter,
    ):
        unsaved = _save(exporter, module, rules, classes)
        report: DependencyReport = exporter.report(unsaved)
        if not report.is_complete:
            raise InvalidArgument(
                f"{type(module).__name__} cannot be packaged: {report.summary()}\n"
                f"{report.advice()}\n\n{report.complaint()}"
            )
    return report


def explain(module: nn.Module, rules: Packaging) -> DependencyReport:
    """Returns what packaging would do, without writing anything.

    Raises:
        InvalidArgument: The module cannot be pickled, though no single value is at
            fault.

    """
    module = unwrapped(without_parallelism(module))
    with without_compiled_parts(module):
        module = without_parametrizations(module)
        importers = _importers(module, rules)
        exporter = Exporter(io.BytesIO(), rules, importers)
        try:
            return exporter.report(_save(exporter, module, rules))
        finally:
            exporter.abandon()


def _save(
    exporter: Exporter,
    module: nn.Module,
    rules: Packaging,
    classes: Sequence[str] = (),
) -> tuple[Unsaved, ...]:
    _refuse_two_of_a_name(module)
    package = package_of(module, rules)
    unsaved = _scripted(module)
    _save_script(exporter, module, classes)
    for path in classes:
        exporter.add_dependency(path.partition(":")[0])
    for name, place in rules.sources.items():
        _save_source(exporter, name, Path(place))
    unsaved = unsaved or _pickle(exporter, module, package)
    if unsaved:  # so that the tree shows what the parts' classes need
        for part in module.modules():
            name = type(part).__module__
            if name != "__main__" and not isinstance(part, torch.jit.ScriptModule):
                exporter.add_dependency(name)
    for name in rules.include:
        try:
            exporter.save_module(name)
        except ImportError as error:
            raise InvalidArgument(f"include {name!r}: {error}") from error
    for name, content in rules.resources.items():
        folder, _, file = name.rpartition("/")
        data = content.encode() if isinstance(content, str) else content
        exporter.save_binary((folder or PACKAGE).replace("/", "."), file, data)
    return unsaved


def _save_source(exporter: PackageExporter, module: str, place: Path) -> None:
    """Puts a file, or all files of a folder, into the archive as the code of a module."""
    for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        inner = file.relative_to(place).with_suffix("").parts if place != file else ()
        is_package = file.name == "__init__.py"
        name = ".".join((module, *(inner[:-1] if is_package else inner)))
        exporter.save_source_string(name, read_source(file), is_package)


def _pickle(exporter: Exporter, module: nn.Module, package: str) -> tuple[Unsaved, ...]:
    try:
        with warnings.catch_warnings(), quiet(_IMPORTER_LOG):
            # torch's own exporter uses a method of storages that torch has deprecated.
            warnings.filterwarnings("ignore", "TypedStorage is deprecated")
            exporter.save_pickle(package, RESOURCE, module)
    except RecursionError as error:
        raise InvalidArgument(
            f"{type(module).__name__} cannot be packaged: its parts are nested more "
            f"deeply than Python's recursion limit, {sys.getrecursionlimit()}, lets "
            "pickle go; call sys.setrecursionlimit with more before you save it, or "
            "keep the parts side by side (nn.ModuleList)"
        ) from error
    except Exception as error:
        unsaved = unsaved_of(module)
        if not unsaved:
            raise InvalidArgument(
                f"{type(module).__name__} cannot be packaged: {error}"
            ) from error
        return unsaved
    return ()


class _Graph(Protocol):
    """The part of torch.package's dependency graph that is used here."""

    @property
    def nodes(self) -> Mapping[str, Mapping[str, Any]]: ...

    def successors(self, name: str) -> Iterator[str]: ...

    def predecessors(self, name: str) -> Iterator[str]: ...


class Exporter(PackageExporter):
    """Decides about every module when the graph first reaches it.

    It extends three private methods of torch's: without them, sources in other encodings,
    files that have a name of Python's, and objects whose attributes are items cannot be
    packaged.
    """

    def __init__(
        self, file: IO[bytes], rules: Packaging, importers: Sequence[Importer]
    ) -> None:
        # With a list of one importer, torch would log every object that is not found,
        # before this exporter explains it.
        super().__init__(
            file, importer=importers if len(importers) > 1 else importers[0]
        )
        self._reasons: dict[str, str] = {}
        self._is_again = len(importers) > 1
        self._rules = [
            (GlobGroup(list(globs)), action)
            for globs, action in (
                (rules.mock, Action.MOCKED),
                (rules.extern, Action.EXTERN),
                (rules.intern, Action.INTERNED),
            )
            if globs
        ]

    def add_dependency(self, module_name: str, dependencies: bool = True) -> None:
        if module_name not in self._reasons:
            action, reason = self._decide(module_name)
            self._reasons[module_name] = reason
            if action is Action.MOCKED:
                self.mock(module_name)
            elif action is Action.EXTERN:
                self.extern(module_name)
            elif action is Action.INTERNED:
                self.intern(module_name)
        super().add_dependency(module_name, dependencies)

    def _get_source_of_module(self, module: types.ModuleType) -> str | None:
        source: str | None = super()._get_source_of_module(module)
        return None if source is None else in_utf8(source)

    def _can_implicitly_extern(self, module_name: str) -> bool:
        """Like torch's method, but an author's file is not taken for Python's of that name."""
        if takes_pythons_name(plain_name(module_name)):
            return False
        known: bool = super()._can_implicitly_extern(module_name)
        return known

    def _persistent_id(self, obj: object) -> object:
        """Like torch's method, but looks up its hook in the class, as for special methods.

        torch asks the object itself. An object that turns its items into attributes
        answers with KeyError, or with anything.
        """
        is_special = torch.is_storage(obj) or isinstance(obj, torch.TypedStorage)
        if not is_special and not hasattr(type(obj), "__reduce_package__"):
            return None
        persistent: object = super()._persistent_id(obj)  # type: ignore[no-untyped-call]
        return persistent

    def abandon(self) -> None:
        """Gives up the archive."""
        self.__exit__(RuntimeError, None, None)  # type: ignore[no-untyped-call]

    def report(self, unsaved: tuple[Unsaved, ...] = ()) -> DependencyReport:
        """Returns the decisions so far."""
        graph = cast("_Graph", self.dependency_graph)
        modules = {}
        pickles = []
        included = []
        for name, attributes in graph.nodes.items():
            if attributes.get("is_pickle"):
                pickles.append(name)
                continue
            if name == "torch_package_importer" or name == "_mock":
                continue
            imports = tuple(plain_name(each) for each in graph.successors(name))
            modules[plain_name(name)] = self._module(name, attributes, imports)
            if not list(graph.predecessors(name)):
                included.append(plain_name(name))
        roots = [
            plain_name(each) for name in pickles for each in graph.successors(name)
        ]
        return DependencyReport(modules, (*roots, *included), unsaved)

    def _decide(self, name: str) -> tuple[Action, str]:
        for globs, action in self._rules:
            if globs.matches(plain_name(name)):
                return action, "you said so"
        if self._is_again and _is_packaged(self.importer, name):
            return Action.INTERNED, "code of the package it was loaded from"
        return default_action(name)

    def _module(
        self, name: str, attributes: Mapping[str, Any], imports: tuple[str, ...]
    ) -> ModuleReport:
        plain = plain_name(name)
        reason = self._reasons.get(name, "included by hand")
        error: PackagingErrorReason | None = attributes.get("error")
        if error is not None:
            why, advice = trouble(plain, error, attributes.get("error_context") or "")
            return ModuleReport(plain, Action.UNRESOLVED, why, advice, imports)
        action = Action[attributes["action"].name.replace("INTERN", "INTERNED")
                        .replace("MOCK", "MOCKED")]  # fmt: skip
        return ModuleReport(plain, action, reason, "", imports)


def _importers(module: nn.Module, rules: Packaging) -> list[Importer]:
    """Returns where to look for classes: the author's importers, then those found."""
    found: list[Importer] = list(rules.importers)
    for part in module.modules():
        if not is_from_package(part):
            continue
        source = sys.modules.get(type(part).__module__)
        spec = getattr(source, "__spec__", None) or _globals(part).get("__spec__")
        loader = getattr(spec, "loader", None)
        if isinstance(loader, PackageImporter) and loader not in found:
            found.append(loader)
    return [*found, sys_importer]


def _is_packaged(importer: Importer, name: str) -> bool:
    """Whether the code comes from a package; an extern module of one does not."""
    try:
        module = importer.import_module(name)
    except Exception:
        return False
    return bool(getattr(module, "__torch_package__", False))


def _scripted(module: nn.Module) -> tuple[Unsaved, ...]:
    """Returns the parts that are TorchScript, which cannot be pickled."""
    return tuple(
        Unsaved(
            ".".join(filter(None, ("model", name))),
            "TorchScript, which torch.package does not take",
            "package the module it was made from, or save the whole with "
            "platform='torchscript'",
        )
        for name, part in module.named_modules()
        if isinstance(part, torch.jit.ScriptModule)
        and ("." not in name or not _is_in_script(module, name))
    )


def _is_in_script(module: nn.Module, name: str) -> bool:
    outer = module.get_submodule(name.rpartition(".")[0])
    return isinstance(outer, torch.jit.ScriptModule)


def _refuse_two_of_a_name(module: nn.Module) -> None:
    """Checks that no two files of one name are wanted, as an archive holds one."""
    sources: dict[str, tuple[str, str]] = {}
    for part in module.modules():
        name = type(part).__module__
        plain = plain_name(name)
        if plain.partition(".")[0] == "torch":
            continue
        source = _source(part)
        before, other = sources.setdefault(plain, (source, name))
        if source != before:
            raise InvalidArgument(
                f"the model uses two different modules called {plain!r}, {other} and "
                f"{name}, and an archive holds one: rename one of them, or export "
                "each part by itself"
            )


def _source(part: nn.Module) -> str:
    loader = getattr(_globals(part).get("__spec__"), "loader", None)
    if isinstance(loader, PackageImporter):
        return str(loader.get_source(plain_name(type(part).__module__)))
    try:
        return inspect.getsource(sys.modules[type(part).__module__])
    except (KeyError, OSError, TypeError):
        return ""


_IMPORTER_LOG: Final = "torch.package.importer"


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Holds back the warnings of a logger for the block.

    torch warns for every object that is not found in the first of several importers.
    """
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _globals(part: nn.Module) -> Mapping[str, Any]:
    for value in vars(type(part)).values():
        if callable(value) and hasattr(value, "__globals__"):
            return cast("Mapping[str, Any]", value.__globals__)
    return {}


def _save_script(
    exporter: PackageExporter, module: nn.Module, classes: Sequence[str]
) -> None:
    """Puts the parts of the running script that the model uses into the archive."""
    dry = DryPickler()
    try:
        dry.dump(module)
    except Exception:
        return  # save_pickle will raise the error that explains it
    for path in classes:
        owner, _, name = path.partition(":")
        if owner == "__main__":
            dry.names.add(name.partition(".")[0])
    place = getattr(sys.modules["__main__"], "__file__", None)
    if not dry.names or not place or not Path(place).is_file():
        return
    source = needed_source(read_source(place), dry.names, Path(place).name)
    exporter.save_source_string("__main__", source)
