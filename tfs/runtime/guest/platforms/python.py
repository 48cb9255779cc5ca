"""Platform ``python``: a class in ``servable.py`` and, optionally, weights.

It is for models that are not a single ``nn.Module``: tokenizers, pipelines,
scikit-learn.

    class Servable:
        signatures = {"serving_default": {...}}         # as in a manifest
        def load(self, version): ...                    # a Version; once
        def predict(self, **inputs): ...                # a dict, a tuple or one value
        def validate(self, **item): ...                 # optional: one row; raises
        def preprocess(self, **inputs): ...             # optional: predict's inputs
        def postprocess(self, outputs): ...             # optional: predict's result
        per_item = True                                 # optional: these by one row
        methods = {"count": "count"}                    # optional: by signature
        concurrency = 8                                 # optional: requests at once

Only ``predict`` is required. Inputs are tensors; strings are nested lists of bytes.

Two versions may have modules of one name beside their ``servable.py``, so they are not put
on Python's import path. The servable is a package of a unique name whose folder is the
version's: ``import model`` in its code, or in that of a module beside it, imports
``tfs_servable_7f3a.model``. Only import statements find them.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tfs.core.errors import DataLoss, InvalidArgument
from tfs.core.version.version_layout import SOURCE
from tfs.runtime.guest.faults import one_line
from tfs.runtime.guest.guest_model import GuestModel
from tfs.runtime.guest.memory_files import SealedFile, VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.servable_pipeline import pipeline
from tfs.runtime.guest.platforms.torch_callable import TorchCallable
from tfs.runtime.guest.weights import weights_of


@dataclass(frozen=True, slots=True)
class Version:
    """The argument of ``load``: where the version is, and its weights. Immutable.

    Attributes:
        path: The version directory, absolute.
        device: Where to compute: "cpu" or "cuda[:i]".
        weights: Tensors by name, on ``device``; empty without a weights file. On the
            CPU they are shared with other interpreters until they are written to.

    """

    path: str
    device: str
    weights: Mapping[str, torch.Tensor]

    @property
    def assets(self) -> str:
        """The folder ``assets/`` of the version; it may be absent."""
        return os.path.join(self.path, "assets")


def load(source: ModelSource, files: VersionFiles) -> GuestModel:
    """Runs the version's code and loads its object; see :class:`GuestModel`.

    Raises:
        DataLoss: The weights are damaged, or the file is no Python.
        InvalidArgument: The file defines no usable class.

    """
    module = _import(source, files[SOURCE])
    try:
        servable = _class_of(source, module)()
        weights = weights_of(source, files)
        prepare = getattr(servable, "load", None)
        if prepare is not None:
            with _found_by_pickles(module):
                prepare(Version(source.path, source.device, weights))
        functions = _functions(source, servable)
    except BaseException:
        _forget(module)
        raise
    return TorchCallable(source, functions, on_close=lambda: _forget(module))


def _import(source: ModelSource, file: SealedFile) -> types.ModuleType:
    """Runs ``servable.py`` as a module with a name of its own, beside all others."""
    with open(file.path, "rb") as opened:
        code = opened.read()  # its first lines may say how it is encoded
    place = os.path.join(source.path, SOURCE)
    try:
        compiled = compile(code, place, "exec")
    except (SyntaxError, ValueError) as error:  # ValueError is of zero bytes
        raise DataLoss(
            f"{source.id.slashed}: {SOURCE} is no Python: {one_line(error)}; write the "
            "version again"
        ) from error
    module = types.ModuleType("tfs_servable")
    # Dataclasses and pickles look their module up by name, so the name is unique.
    module.__name__ = f"{PREFIX}{id(module):x}"
    module.__file__ = place
    sys.modules[module.__name__] = module
    try:
        place_beside(module, source.path, modules_in(source.path, SOURCE))
        exec(compiled, module.__dict__)
    except BaseException:
        _forget(module)
        raise
    return module


@contextlib.contextmanager
def _found_by_pickles(module: types.ModuleType) -> Iterator[None]:
    """Lets pickles that ``load`` reads find classes of the file and the modules beside it.

    They name them ``servable`` and ``model``, as files of other versions are called, so
    one loads at a time.
    """
    with _loading:
        own = {"servable": module, **loaded_beside(module)}
        before = {name: sys.modules.get(name) for name in own}
        sys.modules.update(own)
        try:
            yield
        finally:
            for name, other in before.items():
                if other is None:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = other


_loading: Final = threading.RLock()
"""Held while a ``load`` runs; only leaves are taken under it."""


def _forget(module: types.ModuleType) -> None:
    for name in loaded_beside(module):
        sys.modules.pop(f"{module.__name__}.{name}", None)
    sys.modules.pop(module.__name__, None)
    module.__dict__.clear()
    module.__name__ = "tfs_servable_closed"


def _class_of(source: ModelSource, module: types.ModuleType) -> Callable[[], object]:
    wanted = source.text("class", "")
    found = classes_of(module, wanted)
    if len(found) != 1:
        raise InvalidArgument(
            f"{source.id.slashed}: {SOURCE} {wrong_classes(found, wanted)}"
        )
    return found[0]


def classes_of(module: types.ModuleType, wanted: str = "") -> list[type]:
    """Returns the classes of a file that can be meant: one, if the file is right.

    Of several with ``predict``, those with signatures are meant, and of a class and what
    it inherits from, the class.
    """
    own = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }
    if wanted:
        return [own[wanted]] if wanted in own else []
    found = [kind for kind in own.values() if hasattr(kind, "predict")]
    found = [kind for kind in found if hasattr(kind, "signatures")] or found
    return [
        kind
        for kind in found
        if not any(other is not kind and issubclass(other, kind) for other in found)
    ]


def wrong_classes(found: Sequence[type], wanted: str = "") -> str:
    """Returns what is wrong with a file that has no such class, or several."""
    if wanted:
        return f"must define the class {wanted}; found none"
    if not found:
        return "must define one class with predict; found none"
    names = ", ".join(kind.__name__ for kind in found)
    return (
        f"must define one class with predict; found {names}: leave the signatures to one "
        "of them, or name it (class_name= of save_python)"
    )


def methods_of_class(kind: type) -> dict[str, str]:
    """Returns which method answers which signature, as far as the class says so.

    A method of the class that happens to be called ``methods`` says nothing.
    """
    said = getattr(kind, "methods", None)
    if not isinstance(said, Mapping):
        return {}
    return {str(key): str(method) for key, method in said.items()}


def _functions(
    source: ModelSource, servable: object
) -> dict[str, Callable[..., object]]:
    methods = {**methods_of_class(type(servable)), **source.texts("methods")}
    source.check_methods(methods)
    functions = {}
    for name, signature in source.signatures.items():
        method = methods.get(name, "predict")
        predict = getattr(servable, method, None)
        if not callable(predict):
            raise InvalidArgument(
                f"{source.id.slashed}: signature {name!r} needs a method {method!r}"
            )
        who = f"{source.id.slashed}, signature {name!r}"
        functions[name] = pipeline(servable, predict, signature, who)
    return functions


PREFIX: Final = "tfs_servable_"
_NO_MODULES: Final = frozenset({"assets", "assets.extra"})


def modules_in(folder: str, source: str) -> frozenset[str]:
    """Returns the top-level names of the modules beside ``source`` in a version."""
    found = set()
    for entry in os.scandir(folder):
        stem, suffix = os.path.splitext(entry.name)
        if entry.is_dir():
            is_package = os.path.isfile(os.path.join(entry.path, "__init__.py"))
            if is_package and entry.name not in _NO_MODULES:
                found.add(entry.name)
        elif suffix == ".py" and entry.name != source:
            found.add(stem)
    return frozenset(found)


def place_beside(module: types.ModuleType, folder: str, own: Collection[str]) -> None:
    """Has import statements of a module, which was not run yet, find ``own`` in a folder."""
    if not own:
        return
    prefix = module.__name__
    module.__path__ = [folder]
    vars(module)["__builtins__"] = {
        **vars(builtins),
        "__import__": _importing(prefix, own),
    }
    if not any(isinstance(each, _BesideFinder) for each in sys.meta_path):
        sys.meta_path.insert(0, _BesideFinder())


def loaded_beside(module: types.ModuleType) -> dict[str, types.ModuleType]:
    """Returns the modules that were imported for a servable, by their plain names."""
    prefix = f"{module.__name__}."
    return {
        name.removeprefix(prefix): found
        for name, found in list(sys.modules.items())
        if name.startswith(prefix)
    }


def _importing(prefix: str, own: Collection[str]) -> Any:
    def import_(
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        top = name.partition(".")[0]
        if level or top not in own:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        found = importlib.import_module(f"{prefix}.{name}")
        if not fromlist:
            return sys.modules[f"{prefix}.{top}"]
        for each in fromlist:
            if each != "*" and not hasattr(found, each):
                with contextlib.suppress(ModuleNotFoundError):
                    importlib.import_module(f"{found.__name__}.{each}")
        return found

    return import_


class _BesideFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of all servables. Thread-safe."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if path is None or not fullname.startswith(PREFIX):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            spec.loader = _BesideLoader(fullname, spec.origin)
        return spec


class _BesideLoader(importlib.machinery.SourceFileLoader):
    """Runs a module with the import statement of its servable, and writes no bytecode."""

    def exec_module(self, module: types.ModuleType) -> None:
        servable = sys.modules[module.__name__.partition(".")[0]]
        vars(module)["__builtins__"] = vars(servable)["__builtins__"]
        super().exec_module(module)

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return compile(self.get_data(path), path, "exec", dont_inherit=True)
