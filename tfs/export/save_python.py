"""``save_python``: a version of a class in a file, for what is not an ``nn.Module``."""

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
from typing import Final

import torch

from tfs.core.errors import InvalidArgument, ServingError
from tfs.core.manifest import read_signatures
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE, Signature
from tfs.core.version_directory import EXAMPLES, commit
from tfs.export.derived import Derived
from tfs.export.examples import place_examples
from tfs.export.opened_files import watched_files
from tfs.export.own_code import own_code_out_of_reach
from tfs.export.publish import Extras, producer, publish
from tfs.export.read_variables import warned_of_variables
from tfs.export.server_defaults import server_defaults
from tfs.export.values import Values, as_strings, from_array, is_strings, view_of
from tfs.export.verify import warn_of_files
from tfs.runtime.guest.guest_model import GuestModel, VersionFiles, load_guest_model
from tfs.runtime.guest.model_source import ModelSource, concurrency_of
from tfs.runtime.guest.python import methods_of_class

log = logging.getLogger(__name__)

SOURCE: Final = "servable.py"
_WEIGHTS: Final = ("weights.safetensors", "weights.pt")
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


def save_python(
    source: str | os.PathLike[str],
    base_path: str | os.PathLike[str],
    version: int | None = None,
    *,
    signatures: Mapping[str, Signature | Mapping[str, object]] | None = None,
    class_name: str | None = None,
    methods: Mapping[str, str] = MappingProxyType({}),
    weights: Mapping[str, torch.Tensor] | str | os.PathLike[str] | None = None,
    example_inputs: Mapping[str, object] | None = None,
    assets: str | os.PathLike[str] | None = None,
    batching_parameters: str | None = None,
) -> str:
    """Writes a new version from a Python file with a class that serves.

    The class needs ``predict(self, **inputs)``; it may have ``load(self, version)``,
    ``validate(self, **item)``, ``preprocess``, ``postprocess``, ``methods`` and
    ``concurrency`` (see :mod:`tfs.runtime.guest.python`). Its code runs here once: the
    version is loaded, and called if there are example inputs, before it appears by one
    rename. Blocks.

    Args:
        source: The file; stored as ``servable.py``. It may import what every server
            has, nothing that lies beside it.
        base_path: The model's directory; created if absent.
        version: The version's number; None takes the next free one.
        signatures: By key, each as an object or in the form of a manifest; None takes
            the class's ``signatures``: such a dict, or a method without arguments that
            returns one.
        class_name: Which class; None takes the only one with ``predict``.
        methods: By signature key, the method to call instead of ``predict``; goes
            before ``methods`` of the class.
        weights: Tensors to store as safetensors, or a file of weights
            (``.safetensors``, or ``.pt`` that loads with ``weights_only=True``).
        example_inputs: Inputs of ``serving_default`` by name, with at least two
            different rows if possible.
        assets: A folder to copy to ``assets/``.
        batching_parameters: Text of a BatchingParameters message for this version.

    Returns:
        The new version's directory.

    Raises:
        InvalidArgument: The class cannot be loaded, described or called; says why.
            Nothing was written.
        FailedPrecondition: The version exists already. It was not touched.
        OSError: The version cannot be written there. Nothing was.

    """
    place = os.fspath(source)
    if not os.path.isfile(place):
        raise InvalidArgument(f"no such file: {place}")
    found = (
        _signatures_of(signatures, place)
        if signatures is not None
        else class_signatures(place, class_name)
    )
    entry: dict[str, object] = {}
    if class_name is not None:
        entry["class"] = class_name
    if methods:
        entry["methods"] = dict(methods)
    _check_methods({**class_methods(place, class_name), **methods}, found, place)
    concurrency = class_concurrency(place, class_name)
    if concurrency is not None:
        entry["concurrency"] = concurrency
    extras = Extras(assets, batching_parameters)
    example = _example(example_inputs, found)

    def fill(folder: str) -> None:
        shutil.copyfile(place, os.path.join(folder, SOURCE))
        _write_weights(weights, folder)
        extras.write(folder)
        placed = dict(found)
        if example:
            derived = Derived(found[DEFAULT_SIGNATURE], example, {})
            examples, blob = place_examples({DEFAULT_SIGNATURE: derived})
            placed.update(examples)
            Path(folder, EXAMPLES).write_bytes(blob)
        with (
            own_code_out_of_reach() as finder,
            watched_files(folder) as opened,
            warned_of_variables(),
            server_defaults(),
        ):
            try:
                _try(folder, entry, placed, example)
                needed = []
            except ServingError:
                needed = sorted(set(finder.refused))
                if not needed:
                    raise
        warn_of_files(opened)
        if needed:
            log.warning(
                "event=own_modules_needed file=%s modules=%s no server has them: put "
                "their code into the file, or install them beside every server",
                place,
                ",".join(needed),
            )
            _try(folder, entry, placed, example)
        commit(folder, "python", placed, entry, producer())

    final = publish(os.fspath(base_path), version, fill)
    log.info("event=version_exported path=%s platform=python", final)
    return final


def class_signatures(path: str, class_name: str | None = None) -> dict[str, Signature]:
    """Runs a ``servable.py`` and returns what its class says of its signatures.

    Raises:
        InvalidArgument: There is no such class, or it does not say.

    """
    kind = _class_of(path, class_name)
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
    return _signatures_of(form, path)


def _signatures_of(
    form: Mapping[str, Signature | Mapping[str, object]], path: str
) -> dict[str, Signature]:
    return {
        str(key): value
        if isinstance(value, Signature)
        else read_signatures({key: json.loads(json.dumps(value))}, path)[key]
        for key, value in form.items()
    }


def class_concurrency(path: str, class_name: str | None = None) -> int | None:
    """Runs a ``servable.py`` and returns its class's ``concurrency``, None if none.

    Raises:
        InvalidArgument: There is no such class, or the value is no such number.

    """
    value = getattr(_class_of(path, class_name), "concurrency", None)
    return None if value is None else concurrency_of({"concurrency": value}, path)


def class_methods(path: str, class_name: str | None = None) -> dict[str, str]:
    """Runs a ``servable.py`` and returns its class's ``methods`` by signature key.

    Raises:
        InvalidArgument: There is no such class.

    """
    return methods_of_class(_class_of(path, class_name))


def _check_methods(
    methods: Mapping[str, str], signatures: Mapping[str, Signature], path: str
) -> None:
    unknown = [key for key in methods if key not in signatures]
    if unknown:
        raise InvalidArgument(
            f"{path}: methods names {', '.join(map(repr, unknown))}, which is no "
            f"signature; there are {', '.join(signatures)}"
        )


def _class_of(path: str, class_name: str | None) -> type:
    module = types.ModuleType("servable")
    # Dataclasses look their module up by name, so it has one for as long as it runs.
    module.__name__ = f"servable_{id(module):x}"
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        exec(
            compile(Path(path).read_text(encoding="utf-8"), path, "exec"), vars(module)
        )
    except Exception as error:
        raise InvalidArgument(
            f"{path} cannot be run: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.modules.pop(module.__name__, None)
    classes: list[type] = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and (name == class_name if class_name else hasattr(value, "predict"))
    ]
    if len(classes) != 1:
        raise InvalidArgument(
            f"{path} must define {class_name or 'one class with predict'}; found "
            f"{', '.join(kind.__name__ for kind in classes) or 'none'} (an nn.Module "
            "is for tfs.export.save, or tfs package MODULE:NAME)"
        )
    return classes[0]


def _example(
    example_inputs: Mapping[str, object] | None, signatures: Mapping[str, Signature]
) -> Values:
    if example_inputs is None:
        return {}
    signature = signatures.get(DEFAULT_SIGNATURE)
    if signature is None:
        raise InvalidArgument(f"example_inputs belong to {DEFAULT_SIGNATURE}")
    # Callers without a type checker pass tensors in order, as to save.
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


def _try(
    folder: str,
    entry: Mapping[str, object],
    signatures: Mapping[str, Signature],
    example: Values,
) -> None:
    """Loads the version as an interpreter will, and calls it on the example."""
    source = ModelSource(ServableId("export", 0), folder, "python", entry, signatures)
    files = VersionFiles.stage(source)
    try:
        model = load_guest_model(source, files)
    finally:
        files.close()
    try:
        if example:
            views = {name: view_of(value) for name, value in example.items()}
            signature = signatures[DEFAULT_SIGNATURE]
            with torch.inference_mode():
                model.call(DEFAULT_SIGNATURE, signature.with_defaults(views))
            _try_others(model, signatures, views)
    finally:
        model.close()


def _try_others(
    model: GuestModel, signatures: Mapping[str, Signature], views: Tensors
) -> None:
    """Calls the signatures that take the same example; warns of those that fail.

    No more than that: the example was given for another one.
    """
    for key, signature in signatures.items():
        given = signature.with_defaults(views)
        try:
            signature.check_inputs(given)
        except InvalidArgument:
            continue  # it takes something else
        try:
            if key != DEFAULT_SIGNATURE:
                with torch.inference_mode():
                    model.call(key, given)
        except ServingError as error:
            log.warning(
                "event=signature_failed signature=%s on the example of %s: %s; which "
                "method a signature calls, `methods` says",
                key,
                DEFAULT_SIGNATURE,
                error.message,
            )


def _write_weights(
    weights: Mapping[str, torch.Tensor] | str | os.PathLike[str] | None, folder: str
) -> None:
    if weights is None:
        return
    if isinstance(weights, Mapping):
        write_safetensors(weights, os.path.join(folder, _WEIGHTS[0]))
        return
    place = os.fspath(weights)
    if not os.path.isfile(place):
        raise InvalidArgument(f"no such weights: {place}")
    suffix = os.path.splitext(place)[1]
    for name in _WEIGHTS:
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
    # The largest element first, so that every tensor lies at a multiple of its own.
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
