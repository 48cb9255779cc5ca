"""What an author can do about a version that failed its check, by the types of errors."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from tfs.export.packaging.dependency_report import Action
from tfs.export.packaging.module_origin import default_action
from tfs.runtime.guest.check_process import CheckFailure, RaisedError


class PackagedModules:
    """What a version's archive says of modules. Empty if there is no archive.

    Attributes:
        is_there: Whether the version has an archive of torch.package.
        names: Modules whose source it holds.
        has_own_extern: Whether it declares modules of the author's extern.

    """

    def __init__(self, path: str) -> None:
        self.is_there = False
        self.names: set[str] = set()
        extern: set[str] = set()
        if os.path.isfile(path) and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for entry in archive.namelist():
                    parts = entry.removesuffix(".py").split("/")[1:]
                    if entry.endswith(".py") and all(map(str.isidentifier, parts)):
                        self.names.add(".".join(parts).removesuffix(".__init__"))
                    elif entry.endswith("/.data/extern_modules"):
                        self.is_there = True
                        extern.update(archive.read(entry).decode().split())
        self.has_own_extern = any(map(_is_own, extern))


def told(failure: CheckFailure, modules: PackagedModules) -> str:
    """Returns the message about a failed check: what happened, and what to do."""
    left_out = ", ".join(map(repr, failure.left_out))
    text = f"{_STEPS[failure.step].format(left_out)}: {failure.error.message}"
    if failure.wants_gradients:
        return f"{text}. {GRADIENTS}"
    for cause in failure.causes:
        for kind in cause.kinds:
            advise = _ADVICE.get(kind)
            advice = advise and advise(cause, failure.step, modules)
            if advice is not None:
                return f"{text}. {advice}" if advice else text
    return f"{text}. {_NOT_THERE}" if failure.step in ("load", "call") else text


GRADIENTS: Final = (
    "Servers call models in torch.inference_mode(): what needs gradients to predict "
    "belongs into 'with torch.inference_mode(False), torch.enable_grad():', with clones "
    "of the inputs; a model that starts threads to compute in puts what they do into "
    "'with torch.inference_mode():', which no thread inherits"
)

_STEPS: Final = {
    "load": "it was written but cannot be loaded in a process of its own, as on a server",
    "call": "it works here but not in a process of its own, as on a server",
    "again": "it can be loaded once in a process, and servers load versions again",
    "defaults": "it fails when callers leave out {}: the default is handed over as it "
    "is, and has to fit any number of rows",
}

_NOT_THERE: Final = "What this program imported, defined or set is not there"


_Advise: TypeAlias = Callable[[RaisedError, str, PackagedModules], str | None]


def _on_missing_module(
    cause: RaisedError, step: str, modules: PackagedModules
) -> str | None:
    name = cause.name
    if any(f"{each}.".startswith(f"{name}.") for each in modules.names if name):
        return (
            f"{name} is in the archive, where only import statements and "
            "importlib.import_module look; read resources with torch_package_importer, "
            "or from assets"
        )
    if not name or not _is_own(name):
        return (
            "If a module is missing, include or extern it" if modules.is_there else None
        )
    if modules.is_there:
        return f"{name} is your own code, which no server has: include it"
    return (
        f"{name} is your own code, which no server has: import it by a statement, or name "
        "it in include of a Packaging"
    )


def _on_missing_file(
    cause: RaisedError, step: str, modules: PackagedModules
) -> str | None:
    path = cause.filename
    if path.startswith("<torch_package_"):
        path = path.partition(">")[2].lstrip(".")
        folder, _, name = path.rpartition("/")
        return (
            "A packaged module has no folder of its own: pass "
            f'Packaging(resources={{"{path}": text}}) and read it with `import '
            f'torch_package_importer` and its load_text("{folder}", "{name}"), or read '
            "it from the version's assets"
        )
    if not path:
        return ""  # the archive's own reader says what to do
    if not os.path.isabs(path) and os.path.exists(path):
        return (
            f"The path {path!r} is relative to the working directory, which is another "
            "on a server: read it with torch_package_importer, or from the version's "
            "assets"
        )
    return None


_ON_ATTRIBUTE: Final = (
    "If a part of it restores itself by a __setstate__ that takes the module for made "
    "already, as torch's quantized convolutions do, save it with platform='torchscript', "
    "or begin a __setstate__ of your own with torch.nn.Module.__init__(self)"
)
_ADVICE: Final[Mapping[str, _Advise]] = {
    "builtins.ImportError": _on_missing_module,
    "builtins.FileNotFoundError": _on_missing_file,
    "builtins.NotADirectoryError": _on_missing_file,
    "builtins.AttributeError": lambda cause, step, modules: (
        _ON_ATTRIBUTE if step == "load" and modules.is_there else None
    ),
    "builtins.NotImplementedError": lambda cause, step, modules: (
        "If a mocked module is needed after all, intern or extern it"
    ),
    "builtins.RuntimeError": lambda cause, step, modules: (
        "Operators belong to the process: define them by @torch.library.custom_op, which "
        "may be done again"
        if step == "again"
        else None
    ),
    "builtins.SystemExit": lambda cause, step, modules: (
        "If it reads the command line: a server has another, so keep the values in the "
        "model"
    ),
}
"""By the class of an error: returns what to do; empty if the error says it itself, None if
another error or class may know more."""


def _is_own(module: str) -> bool:
    return default_action(module)[0] is Action.INTERNED
