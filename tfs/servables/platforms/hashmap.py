"""Platform ``hashmap``: lookup tables, ``table.csv`` or ``table.json``. No torch.

It answers on the serving loop itself, because a lookup takes less time than handing it
over. (TensorFlow Serving: servables/hashmap, the paper's example of a second platform.)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from tfs.core.dtype import BOOL, STRING
from tfs.core.errors import FailedPrecondition, InvalidArgument, NotFound, ServingError
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import InferenceTask, OneByOne, Outcome, Servable
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.core.version_directory import (
    PLATFORM_BY_FILE,
    is_committed,
    read_manifest,
    verify_files,
)
from tfs.servables.platform import LoadContext, VersionDescription, describe
from tfs.servables.platforms.lookup_table import FOUND, LookupTable, read_table

FILES: Final = tuple(name for name, of in PLATFORM_BY_FILE.items() if "hashmap" in of)
_BYTES_PER_FILE_BYTE: Final = 12
"""With CPython 3.11, a table of short cells takes 8 to 11 times as much as its file."""


class Hashmap:
    """See :class:`tfs.servables.platform.Platform`. Immutable."""

    name: Final = "hashmap"

    def recognizes(self, path: str) -> bool:
        return any(os.path.isfile(os.path.join(path, name)) for name in FILES)

    def runs_code(self, path: str) -> bool:
        return False

    def loader(self, path: str, context: LoadContext) -> Loader[Servable]:
        return HashmapLoader(path)

    def describe(self, path: str) -> VersionDescription:
        """Returns the manifest's description, or else that of the table."""
        return describe(path, self.name, self._own)

    def _own(self, path: str) -> VersionDescription:
        return VersionDescription(table_signatures(read_table(_table_file(path))))


class HashmapLoader:
    """Reads a table. Confined to one caller at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._servable: HashmapServable | None = None

    def estimate_resources(self) -> ResourceAllocation:
        try:
            size_bytes = os.path.getsize(self._file())
        except OSError as error:
            raise NotFound(f"cannot read the table: {error.strerror}") from error
        return ResourceAllocation.ram(_BYTES_PER_FILE_BYTE * size_bytes, size_bytes)

    def load(self, servable_id: ServableId) -> None:
        table_signature: Signature | None = None
        if is_committed(self._path):
            manifest = read_manifest(self._path)
            verify_files(self._path, manifest)
            table_signature = manifest.signatures.get(DEFAULT_SIGNATURE)
        table = read_table(self._file())
        servable = HashmapServable(servable_id, table)
        own = servable.signatures[DEFAULT_SIGNATURE]
        if table_signature is not None and (
            table_signature.inputs != own.inputs
            or table_signature.outputs != own.outputs
        ):
            raise InvalidArgument(
                f"the manifest's signature does not fit the table, which takes "
                f"{_shown(own.inputs)} and gives {_shown(own.outputs)}"
            )
        self._servable = servable

    def unload(self) -> None:
        self._servable = None

    @property
    def servable(self) -> Servable:
        """The loaded table."""
        if self._servable is None:
            raise FailedPrecondition(f"{self._path} is not loaded")
        return self._servable

    def _file(self) -> str:
        return _table_file(self._path)


class HashmapServable(OneByOne):
    """Looks keys up. Thread-safe; answers before ``submit`` returns.

    Takes the key column (string [batch]); gives every other column [batch], and
    ``found`` (bool [batch]). For a key that is not in the table these are an empty
    string, 0 or NaN, and false.
    """

    def __init__(self, servable_id: ServableId, table: LookupTable) -> None:
        self.id = servable_id
        self._table = table
        self._signatures = table_signatures(table)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """By key; there is one."""
        return self._signatures

    def submit(self, task: InferenceTask) -> None:
        """Answers at once."""
        outcome: Outcome | None = task.cancel.error
        if outcome is None:
            try:
                outcome = self._look_up(task.inputs[self._table.key])
            except ServingError as error:
                outcome = error
            except Exception as error:
                outcome = InvalidArgument(f"{self.id.slashed}: {error!r}")
        task.on_done(outcome)

    def _look_up(self, keys: TensorView) -> Mapping[str, TensorView]:
        if not isinstance(keys.data, tuple):
            raise InvalidArgument(f"input {self._table.key!r} expected to be string")
        indexes = [self._table.rows.get(key, -1) for key in keys.data]
        shape = (len(indexes),)
        outputs = {}
        for column in self._table.columns:
            cells = [column.cells[i] if i >= 0 else column.missing for i in indexes]
            data = tuple(cells) if column.dtype is STRING else b"".join(cells)
            outputs[column.name] = TensorView(column.dtype, shape, data)
        found = bytes(index >= 0 for index in indexes)
        outputs[FOUND] = TensorView(BOOL, shape, found)
        return outputs


def table_signatures(table: LookupTable) -> dict[str, Signature]:
    """Returns the one signature of a table, by its key."""
    outputs = {c.name: TensorSpec(c.dtype, (-1,)) for c in table.columns}
    return {
        DEFAULT_SIGNATURE: Signature(
            Method.PREDICT,
            {table.key: TensorSpec(STRING, (-1,))},
            {**outputs, FOUND: TensorSpec(BOOL, (-1,))},
        )
    }


def _table_file(path: str) -> str:
    for name in FILES:
        file = os.path.join(path, name)
        if os.path.isfile(file):
            return file
    raise InvalidArgument(f"no {' or '.join(FILES)} in the version")


def _shown(specs: Mapping[str, TensorSpec]) -> str:
    return ", ".join(f"{name}: {spec}" for name, spec in specs.items())
