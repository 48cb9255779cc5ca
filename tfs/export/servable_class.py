"""The class of a ``servable.py``, and the signatures and settings that it states."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tfs.core.errors import InvalidArgument
from tfs.core.signature import Signature
from tfs.core.version.manifest import read_signatures
from tfs.export.packaging.own_modules import imported_from
from tfs.runtime.guest.model_source import concurrency_of
from tfs.runtime.guest.platforms.python import (
    classes_of,
    methods_of_class,
    wrong_classes,
)

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
