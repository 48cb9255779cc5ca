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
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import re
import sys
import threading
import types
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch

from tfs.core.errors import DataLoss, InvalidArgument
from tfs.runtime.guest.guest_model import GuestModel, VersionFiles, one_line
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.servable_modules import (
    PREFIX,
    loaded_beside,
    modules_in,
    place_beside,
)
from tfs.runtime.guest.platforms.servable_pipeline import pipeline
from tfs.runtime.guest.platforms.torch_callable import TorchCallable
from tfs.runtime.guest.sealed_file import SealedFile

SOURCE: Final = "servable.py"
SAFETENSORS: Final = "weights.safetensors"
CHECKPOINT: Final = "weights.pt"

_MAX_NAMES: Final = 20  # of weights, in a message

_SAFETENSORS_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


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


class NoSuchWeight(KeyError):
    """A name that the version's weights do not have; says which they have."""

    def __str__(self) -> str:
        return str(self.args[0])


class Weights(dict[str, Any]):
    """Weights by name, which tell who asks for another name what there is.

    Args:
        weights: The weights.
        where: What they come from, with a verb, for the message.

    """

    def __init__(self, weights: Mapping[str, Any], where: str = "it holds") -> None:
        super().__init__(weights)
        self._where = where

    def __missing__(self, name: object) -> object:
        names = [str(each) for each in self]
        told = ", ".join(sorted(names)[:_MAX_NAMES]) or "nothing"
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        raise NoSuchWeight(f"no weight {name!r}: {self._where} {told}{more}")


def load(source: ModelSource, files: VersionFiles) -> GuestModel:
    """Runs the version's code and loads its object; see :class:`GuestModel`.

    Raises:
        DataLoss: The weights are damaged, or the file is no Python.
        InvalidArgument: The file defines no usable class.

    """
    module = _import(source, files[SOURCE])
    try:
        servable = _class_of(source, module)()
        weights = _weights(source, files)
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


def _weights(source: ModelSource, files: VersionFiles) -> Mapping[str, torch.Tensor]:
    who = source.id.slashed
    try:
        if SAFETENSORS in files.files:
            weights = read_safetensors(files[SAFETENSORS].map())
            if source.device != "cpu":
                weights = {k: each.to(source.device) for k, each in weights.items()}
            return Weights(weights, f"{SAFETENSORS} holds")
        if CHECKPOINT in files.files:
            path = files[CHECKPOINT].path
            # Mapped privately; what torch wrote before 1.6 cannot be.
            is_mapped = source.device == "cpu" and zipfile.is_zipfile(path)
            loaded = torch.load(
                path, map_location=source.device, weights_only=True, mmap=is_mapped
            )
            if type(loaded) is dict:
                return Weights(loaded, f"{CHECKPOINT} holds")
            return cast("Mapping[str, torch.Tensor]", loaded)
    except pickle.UnpicklingError as error:
        raise DataLoss(f"{who}: {CHECKPOINT} {_not_only_weights(error)}") from error
    except Exception as error:
        raise DataLoss(
            f"{who}: its weights cannot be read: {one_line(error)}"
        ) from error
    none = f"without {SAFETENSORS} or {CHECKPOINT} it has"
    return Weights({}, none)


def _not_only_weights(error: pickle.UnpicklingError) -> str:
    """Returns what is wrong with a checkpoint, without torch's advice to trust it."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    if found is None:
        return "is no checkpoint of torch.save that weights_only=True reads"
    return (
        f"holds a {found[1]}, and only tensors, numbers, strings and containers of them "
        "are read from it (weights_only): save what it computes with as tensors, or put "
        "its file into assets/ and read it in load()"
    )


def read_safetensors(buffer: Any) -> dict[str, torch.Tensor]:
    """Returns the tensors of a safetensors file as views of a writable buffer.

    Raises:
        ValueError: It is not such a file, or damaged.

    """
    header_bytes = int.from_bytes(buffer[:8], "little")
    start = 8 + header_bytes
    if len(buffer) < 8 or start > len(buffer):
        raise ValueError("the header is cut short")
    header = json.loads(bytes(buffer[8:start]))
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = _SAFETENSORS_DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"tensor {name!r} is of unknown type {entry['dtype']!r}")
        shape = tuple(map(int, entry["shape"]))
        begin, end = map(int, entry["data_offsets"])
        num = math.prod(shape)
        if not 0 <= begin <= end <= len(buffer) - start or end - begin != (
            num * dtype.itemsize
        ):
            raise ValueError(f"tensor {name!r} lies outside the file")
        if not num:
            tensors[name] = torch.empty(shape, dtype=dtype)
            continue
        if (start + begin) % dtype.itemsize:  # torch reads what it takes to be aligned
            piece = bytearray(buffer[start + begin : start + end])
            flat = torch.frombuffer(piece, dtype=dtype)
        else:
            flat = torch.frombuffer(
                buffer, dtype=dtype, count=num, offset=start + begin
            )
        tensors[name] = flat.view(shape)
    return tensors
