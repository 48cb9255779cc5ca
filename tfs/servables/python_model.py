"""Platform ``python``: a class in ``servable.py``, with weights beside it if it wants."""

from __future__ import annotations

import ast
import os
from typing import Final

from tfs.core.errors import InvalidArgument, NotFound
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import Servable
from tfs.core.version_directory import SIGNATURES, read_signatures
from tfs.servables.model_loader import ModelLoader
from tfs.servables.platform import LoadContext, VersionDescription, describe

FILE: Final = "servable.py"
WEIGHTS: Final = ("weights.safetensors", "weights.pt")
_ASSUMED_BYTES: Final = 16 << 20
"""What the code and its objects may take: nothing in the version tells."""


class PythonModel:
    """See :class:`tfs.servables.platform.Platform`. Immutable."""

    name: Final = "python"

    def recognizes(self, path: str) -> bool:
        return os.path.isfile(os.path.join(path, FILE))

    def runs_code(self, path: str) -> bool:
        return True

    def loader(self, path: str, context: LoadContext) -> Loader[Servable]:
        return ModelLoader(path, self, context)

    def describe(self, path: str) -> VersionDescription:
        """Returns the manifest's description, else what the class's source says."""
        return describe(path, self.name, self._own)

    def estimate(self, path: str) -> ResourceAllocation:
        """Returns weights and assets twice, which most code reads into objects."""
        if not os.path.isfile(os.path.join(path, FILE)):
            raise NotFound(f"no {FILE} in the version")
        size_bytes = 0
        for folder, _, names in os.walk(path):
            size_bytes += sum(os.path.getsize(os.path.join(folder, n)) for n in names)
        return ResourceAllocation.ram(_ASSUMED_BYTES + 2 * size_bytes)

    def _own(self, path: str) -> VersionDescription:
        if os.path.isfile(os.path.join(path, SIGNATURES)):
            return VersionDescription({})
        form = literal_signatures(os.path.join(path, FILE))
        return VersionDescription(read_signatures(form, FILE))


def literal_signatures(path: str) -> object:
    """Returns ``signatures`` of the class in a ``servable.py``, without running it.

    Raises:
        InvalidArgument: The source does not parse, or no class says its signatures as
            a plain dict.

    """
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError) as error:
        raise InvalidArgument(f"bad {FILE}: {error}") from error
    for kind in tree.body:
        if not isinstance(kind, ast.ClassDef):
            continue
        for statement in kind.body:
            if isinstance(statement, ast.Assign):
                targets, value = statement.targets, statement.value
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                targets, value = [statement.target], statement.value
            else:
                continue
            if any(isinstance(t, ast.Name) and t.id == "signatures" for t in targets):
                try:
                    return ast.literal_eval(value)
                except ValueError as error:
                    raise InvalidArgument(
                        f"{kind.name}.signatures is not a plain dict ({error}); "
                        "write the version with tfs.export.save_python"
                    ) from error
    raise InvalidArgument(
        f"no class in {FILE} says its signatures; write the version with "
        f"tfs.export.save_python, or put a {SIGNATURES} beside it"
    )
