"""``save_python``: makes a version of a class in a file that is not an ``nn.Module``."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

import torch

from tfs.core.errors import InvalidArgument
from tfs.core.signature import DEFAULT_SIGNATURE, Signature
from tfs.core.version.manifest import read_signatures
from tfs.core.version.version_layout import CHECKPOINT, SAFETENSORS, SOURCE
from tfs.core.version_directory import EXAMPLES, commit
from tfs.export.checking.export_check import check_version
from tfs.export.packaging.own_modules import imported_from, write_own_modules
from tfs.export.packaging.packaging import Packaging
from tfs.export.publish import place_examples, producer, publish, write_beside
from tfs.export.signatures.signature import Derived
from tfs.export.values import Values, as_strings, from_array, is_strings, view_of
from tfs.runtime.guest.model_source import concurrency_of
from tfs.runtime.guest.platforms.python import (
    classes_of,
    methods_of_class,
    wrong_classes,
)

Weights: TypeAlias = "Mapping[str, torch.Tensor] | str | os.PathLike[str]"

_SAFETENSORS_NAMES: Final[Mapping[torch.dtype, str]] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


def write_weights(weights: Weights, folder: str) -> None:
    """Puts the weights of a ``servable.py`` into a version's directory.

    Raises:
        InvalidArgument: They have a form that no server reads.

    """
    if isinstance(weights, Mapping):
        write_safetensors(weights, os.path.join(folder, SAFETENSORS))
        return
    place = os.fspath(weights)
    if not os.path.isfile(place):
        raise InvalidArgument(f"no such weights: {place}")
    suffix = os.path.splitext(place)[1]
    for name in (SAFETENSORS, CHECKPOINT):
        if name.endswith(suffix) and suffix:
            shutil.copyfile(place, os.path.join(folder, name))
            return
    raise InvalidArgument(f"weights must be a .safetensors or a .pt file: {place}")


def write_safetensors(tensors: Mapping[str, torch.Tensor], path: str) -> None:
    """Writes tensors as a safetensors file, aligned for mapping.

    Raises:
        InvalidArgument: The format has no name for a tensor's type.

    """
    header: dict[str, object] = {}
    # Tensors with the largest elements come first, so that every tensor is aligned to
    # the size of its elements.
    names = sorted(tensors, key=lambda name: -getattr(tensors[name], "itemsize", 0))
    offset = 0
    for name in names:
        tensor = tensors[name]
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgument(
                f"weights: {name!r} is a {type(tensor).__name__}, not a tensor"
            )
        if tensor.dtype not in _SAFETENSORS_NAMES:
            raise InvalidArgument(f"weights: {name!r} is {tensor.dtype}")
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(view_of(tensors[name]).buffer)


log = logging.getLogger(__name__)


def save_python(
    source: str | os.PathLike[str],
    base_path: str | os.PathLike[str],
    version: int | None = None,
    *,
    signatures: SignatureForms | None = None,
    class_name: str | None = None,
    methods: Mapping[str, str] = MappingProxyType({}),
    weights: Weights | None = None,
    example_inputs: Mapping[str, object] | None = None,
    assets: str | os.PathLike[str] | None = None,
    packaging: Packaging | None = None,
) -> str:
    """Writes a new version from a Python file with a class that serves.

    The class needs ``predict(self, **inputs)``; it may have ``load(self, version)``,
    ``validate(self, **item)``, ``preprocess``, ``postprocess``, ``methods`` and
    ``per_item`` and ``concurrency`` (see :mod:`tfs.runtime.guest.platforms.python`). Its
    code runs here once, to read the class's signatures and settings. Before the version
    appears by one rename, it is loaded in a process of its own, as a server's worker
    loads it, and called if there are example inputs. Blocks.

    Args:
        source: The file; stored as ``servable.py``, with the modules of your own that
            it imports. Libraries are left to the server.
        base_path: The model's directory; created if absent.
        version: The version's number; None takes the next free one.
        signatures: By key, each as an object or in the form of a manifest; None takes
            the class's ``signatures``: such a dict, or a method without arguments that
            returns one.
        class_name: Which class; None takes the only one with ``predict``.
        methods: By signature key, the method to call instead of ``predict``; overrides
            ``methods`` of the class.
        weights: Tensors to store as safetensors, or a file of weights
            (``.safetensors``, or ``.pt`` that loads with ``weights_only=True``).
        example_inputs: Inputs of ``serving_default`` by name, with at least two
            different rows if possible.
        assets: A folder to copy to ``assets/``.
        packaging: Modules to take along although nothing imports them visibly
            (``include``), or to leave to the server (``extern``), and the version's
            batching parameters.

    Returns:
        The new version's directory.

    Raises:
        InvalidArgument: The class cannot be loaded, described or called; says why.
            Nothing was written.
        FailedPrecondition: The version exists already. It was not touched.
        OSError: The version cannot be written there. Nothing was written.

    """
    place = os.fspath(source)
    if not os.path.isfile(place):
        raise InvalidArgument(f"no such file: {place}")
    found, entry = _described(place, class_name, signatures, methods)
    packaging = packaging or Packaging()
    example = _example(example_inputs, found)

    def fill(folder: str) -> None:
        write_beside(folder, assets, packaging)
        shutil.copyfile(place, os.path.join(folder, SOURCE))
        write_own_modules(place, folder, packaging)
        if weights is not None:
            write_weights(weights, folder)
        placed = dict(found)
        if example:
            derived = Derived(found[DEFAULT_SIGNATURE], example, {})
            examples, blob = place_examples({DEFAULT_SIGNATURE: derived})
            placed.update(examples)
            Path(folder, EXAMPLES).write_bytes(blob)
        commit(folder, "python", placed, entry, producer())
        check_version(folder, "python", has_own_extern=bool(packaging.extern))

    final = publish(os.fspath(base_path), version, fill)
    log.info("event=version_exported path=%s platform=python", final)
    return final


def _described(
    place: str,
    class_name: str | None,
    signatures: SignatureForms | None,
    methods: Mapping[str, str],
) -> tuple[Mapping[str, Signature], dict[str, object]]:
    kind = find_class(place, class_name)
    found = (
        signatures_of(kind, place)
        if signatures is None
        else read_forms(signatures, place)
    )
    return found, entry_of(kind, place, class_name, methods, found)


def _example(
    example_inputs: Mapping[str, object] | None, signatures: Mapping[str, Signature]
) -> Values:
    if example_inputs is None:
        return {}
    signature = signatures.get(DEFAULT_SIGNATURE)
    if signature is None:
        raise InvalidArgument(f"example_inputs belong to {DEFAULT_SIGNATURE}")
    # Callers without a type checker may pass tensors in order, as they do to ``save``.
    if not isinstance(example_inputs, Mapping):
        raise InvalidArgument(
            f"example_inputs are a dict by name: {', '.join(signature.inputs)}; got a "
            f"{type(example_inputs).__name__}"
        )
    example: Values = {}
    for name, given in example_inputs.items():
        value = from_array(given)
        if is_strings(value):
            example[name] = as_strings(value)
        elif isinstance(value, torch.Tensor):
            example[name] = value
        else:
            raise InvalidArgument(
                f"example input {name!r} is a {type(value).__name__}; use a tensor, a "
                "numpy array or a list of strings"
            )
    views = {name: view_of(value) for name, value in example.items()}
    signature.check_inputs(signature.with_defaults(views))
    return example


SignatureForms: TypeAlias = Mapping[str, Signature | Mapping[str, object]]
"""Signatures by key, each as an object or in the form of a manifest."""


def find_class(path: str, class_name: str | None = None) -> type:
    """Runs a ``servable.py`` and returns its class.

    Args:
        path: The file.
        class_name: Which class; None takes the only one with ``predict``.

    Raises:
        InvalidArgument: The file cannot be run, or has no such class.

    """
    module = types.ModuleType("servable")
    # Dataclasses look up their module by name, so the module has one while it runs.
    module.__name__ = f"servable_{id(module):x}"
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        with imported_from(path):
            exec(compile(Path(path).read_bytes(), path, "exec"), vars(module))
    except Exception as error:
        raise InvalidArgument(
            f"{path} cannot be run: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.modules.pop(module.__name__, None)
    classes = classes_of(module, class_name or "")
    if len(classes) != 1:
        raise InvalidArgument(
            f"{path} {wrong_classes(classes, class_name or '')} (an nn.Module is for "
            "tfs.export.save, or tfs package MODULE:NAME)"
        )
    return classes[0]


def signatures_of(kind: type, path: str) -> dict[str, Signature]:
    """Returns the signatures that a class states.

    Raises:
        InvalidArgument: It states none, or not in the form of a manifest.

    """
    form = getattr(kind, "signatures", None)
    if form is None:
        raise InvalidArgument(
            f"{kind.__name__} has no signatures: give it a dict of that name in "
            "the form of a manifest, or pass signatures"
        )
    if callable(form):
        form = kind().signatures()
    if not isinstance(form, Mapping):
        raise InvalidArgument(f"{kind.__name__}.signatures must be a dict")
    return read_forms(form, path)


def read_forms(forms: SignatureForms, path: str) -> dict[str, Signature]:
    """Returns signatures that were given in either form.

    Args:
        forms: The signatures.
        path: The file that they are for, for messages.

    Raises:
        InvalidArgument: One of them is not a signature.

    """
    return {
        str(key): value
        if isinstance(value, Signature)
        else read_signatures({key: json.loads(json.dumps(value))}, path)[key]
        for key, value in forms.items()
    }


def entry_of(
    kind: type,
    path: str,
    class_name: str | None,
    methods: Mapping[str, str],
    signatures: Mapping[str, Signature],
) -> dict[str, object]:
    """Returns the entry of a version's manifest for its class.

    Args:
        kind: The class.
        path: Its file, for messages.
        class_name: The name by which a server finds it; None if the file has only one.
        methods: By signature key, the method to call; overrides those of the class.
        signatures: The signatures of the version.

    Raises:
        InvalidArgument: ``methods`` names a signature that does not exist, or the
            class's ``concurrency`` is not a valid number.

    """
    unknown = [
        key for key in {**methods_of_class(kind), **methods} if key not in signatures
    ]
    if unknown:
        raise InvalidArgument(
            f"{path}: methods names {', '.join(map(repr, unknown))}, which is no "
            f"signature; there are {', '.join(signatures)}"
        )
    entry: dict[str, object] = {}
    if class_name is not None:
        entry["class"] = class_name
    if methods:
        entry["methods"] = dict(methods)
    concurrency = getattr(kind, "concurrency", None)
    if concurrency is not None:
        entry["concurrency"] = concurrency_of({"concurrency": concurrency}, path)
    return entry
