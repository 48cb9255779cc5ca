"""What a platform does: it recognizes, describes and loads one kind of version."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tfs.core.errors import InvalidArgument
from tfs.core.loader import Loader
from tfs.core.manifest import read_signatures
from tfs.core.servable import Servable
from tfs.core.signature import Signature
from tfs.core.strict_json import read_strict
from tfs.core.version_directory import (
    SIGNATURES,
    is_committed,
    read_description,
    read_manifest,
)
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.interpreter import Interpreter
from tfs.servables.measuring.profiler import Profiler


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What a server gives every loader. Immutable.

    Attributes:
        interpreter_for: Chooses the interpreter that will run a version; called
            during the load, on a manager thread. It may start one.
        device: "cpu" or "cuda[:i]".
        intra_op_threads: Threads one call may use inside torch.
        profiler: Measures versions after their load, from which estimates learn; None
            measures nothing.

    """

    interpreter_for: Callable[[ModelSource], Interpreter]
    device: str = "cpu"
    intra_op_threads: int = 1
    profiler: Profiler | None = None


@dataclass(frozen=True, slots=True)
class VersionDescription:
    """What a version is, before anything of it runs. Immutable.

    Attributes:
        signatures: The signatures by key.
        entry: What to call in the payload; only the platform reads it.

    """

    signatures: Mapping[str, Signature]
    entry: Mapping[str, object] = field(default_factory=dict)


class Platform(Protocol):
    """One way of storing and running a model. Immutable, thread-safe.

    Third parties register theirs under the entry-point group ``tfs.platforms``; the
    entry point names an object with these members, or a function without arguments
    that returns one.

    Implementors promise:

    1. ``recognizes`` and ``runs_code`` look at the version's files and run none of
       its code; they are quick whatever the size of the version;
    2. ``loader`` only makes the loader; a fault of the version shows when it is
       estimated or loaded, or as a ServingError raised here;
    3. each call gives a new loader.
    """

    @property
    def name(self) -> str:
        """The name that manifests and ``model_platform`` use."""
        ...

    def recognizes(self, path: str) -> bool:
        """Whether the version directory, which has no manifest, is of this platform."""
        ...

    def runs_code(self, path: str) -> bool:
        """Whether loading the version executes code that came with it."""
        ...

    def loader(self, path: str, context: LoadContext) -> Loader[Servable]:
        """Returns a loader for the version directory ``path``."""
        ...


def describe(
    path: str, platform: str, own: Callable[[str], VersionDescription]
) -> VersionDescription:
    """Returns the description of a version.

    That is the manifest if there is one, else ``signatures.json``, else what the
    platform can find out by itself.

    Args:
        path: The version directory.
        platform: The platform it is read as.
        own: The platform's own description. Its signatures are asked for last, and its
            entry whenever there is no manifest. It raises whatever prevents that.

    Raises:
        ServingError: The description is damaged, of another platform, or absent.

    """
    if is_committed(path):
        manifest = read_manifest(path)
        if manifest.platform != platform:
            raise InvalidArgument(
                f"its manifest says platform {manifest.platform!r}, the configuration "
                f"says {platform!r}; leave model_platform out, or correct it"
            )
        return VersionDescription(manifest.signatures, manifest.entry)
    own_description = own(path)
    by_hand = os.path.join(path, SIGNATURES)
    if not os.path.isfile(by_hand):
        return own_description
    return VersionDescription(_read_by_hand(by_hand), own_description.entry)


def _read_by_hand(path: str) -> Mapping[str, Signature]:
    try:
        form = read_strict(read_description(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"bad {SIGNATURES}: {error}") from error
    return read_signatures(form, SIGNATURES)
