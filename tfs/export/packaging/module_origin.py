"""Finds where a module of Python comes from, and what that means for an archive."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Final, cast

from torch.package.package_exporter import PackagingErrorReason

from tfs.export.packaging.dependency_report import ALWAYS_THERE, Action

WITH_PYTHON_AND_TORCH: Final = frozenset({*sys.stdlib_module_names, "torch"})
"""Top-level names that torch.package always leaves to the program that opens an archive."""
_WITH_THE_SERVER: Final = ("torch", "numpy", "tfs", "typing_extensions")
"""Top-level packages that every TFS server has; torch brings typing_extensions."""

_TRAINING_ONLY: Final = frozenset(
    {
        "IPython", "accelerate", "comet_ml", "datasets", "fire", "hydra", "ignite",
        "ipdb", "lightning", "matplotlib", "mlflow", "neptune", "optuna", "pandas",
        "plotly", "pytest", "pytorch_lightning", "ray", "seaborn", "tensorboard",
        "tensorboardX", "torchinfo", "torchsummary", "tqdm", "wandb",
    }
)  # fmt: skip
"""Packages whose use in a model's files is nearly always about training."""


_OF_A_PACKAGE: Final = "<torch_package_"
"""How torch.package begins the names of the modules of an archive that was opened."""


def is_of_a_package(name: str) -> bool:
    """Whether a module comes from an archive that was opened."""
    return name.startswith(_OF_A_PACKAGE)


def plain_name(name: str) -> str:
    """Returns a module's name without the prefix of the package that it came from."""
    return name.partition(".")[2] or name if is_of_a_package(name) else name


def default_action(name: str) -> tuple[Action, str]:
    """Decides about a module by where it comes from; returns the action and the reason."""
    top = name.partition(".")[0]
    if top in WITH_PYTHON_AND_TORCH and not takes_pythons_name(name):
        return Action.EXTERN, ALWAYS_THERE
    if top in _WITH_THE_SERVER:
        return Action.EXTERN, "every server has it"
    spec = _spec(name)
    if spec is None:
        return Action.UNRESOLVED, "cannot be found"
    if not is_own_code(name, spec):
        return Action.UNRESOLVED, "an installed library"
    return Action.INTERNED, f"your own code, {_short(spec)}"


def takes_pythons_name(name: str) -> bool:
    """Whether the author has a module with the name of one of Python's modules.

    ``statistics.py`` beside the training script hides Python's own from it.
    """
    top = name.partition(".")[0]
    if top not in sys.stdlib_module_names:
        return False
    spec = _spec(top)
    return spec is not None and bool(_place(spec)) and not _is_installed(spec)


def is_own_code(name: str, spec: importlib.machinery.ModuleSpec) -> bool:
    """Whether a module is the author's: no server has it, and no library installed it."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return bool(_place(spec)) and not _is_installed(spec)
    return not (top == "torch" or top in _WITH_THE_SERVER or _is_installed(spec))


def trouble(name: str, error: PackagingErrorReason, context: str) -> tuple[str, str]:
    """Returns what is wrong with a module and what its author can do about it."""
    top = name.partition(".")[0]
    extern = f'extern=["{top}.**"] if every server has {top} installed'
    if error is PackagingErrorReason.MOCKED_BUT_STILL_USED:
        return (
            f"you mock it, but the model contains objects of it. {context.strip()}",
            "intern or extern it, or take these objects out of the model",
        )
    if error is PackagingErrorReason.DEPENDENCY_RESOLUTION_FAILED:
        return (
            f"its imports cannot be read: {context}",
            f"correct its source, or {extern}",
        )
    if error is PackagingErrorReason.IS_EXTENSION_MODULE:
        found = _spec(name)
        is_own = found is not None and is_own_code(name, found)
        which = name if is_own else f"{top}.**"
        return (
            "compiled code, which an archive cannot carry",
            f'extern=["{which}"] if every server has {top} installed',
        )
    if name == "__main__":
        return (
            "defined in an interactive session, so there is no source file",
            "move the class into a .py file and import it",
        )
    if error in (
        PackagingErrorReason.NO_DUNDER_FILE,
        PackagingErrorReason.SOURCE_FILE_NOT_FOUND,
    ):
        return (
            f"its source cannot be found {context}".strip(),
            f'{extern}, or name its code: sources={{"{name}": "path/to/file.py"}}',
        )
    spec = _spec(name)
    if spec is None:
        return (
            "cannot be found here",
            f'mock=["{name}"] if the model works without it, or install it and {extern}',
        )
    if top in _TRAINING_ONLY:
        return (
            "an installed library, usually needed for training only",
            f'mock=["{top}.**"] if the model does not need it to predict, else {extern}',
        )
    if _has_compiled_code(spec):
        return (
            "an installed library with compiled code",
            f'{extern}, or mock=["{top}.**"] if predicting does not use it',
        )
    return (
        "an installed library in pure Python",
        f'intern=["{top}.**"] to carry its source along, {extern}, or '
        f'mock=["{top}.**"] if predicting does not use it',
    )


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        return cast("importlib.machinery.ModuleSpec", spec)
    if module is not None:  # __main__ of a script has no spec
        return importlib.machinery.ModuleSpec(
            name, None, origin=getattr(module, "__file__", None)
        )
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _place(spec: importlib.machinery.ModuleSpec) -> str:
    if spec.origin and spec.origin not in ("built-in", "frozen", "namespace"):
        return spec.origin
    return next(iter(spec.submodule_search_locations or ()), "")


def _is_installed(spec: importlib.machinery.ModuleSpec) -> bool:
    return is_library(_place(spec))


def is_library(place: str) -> bool:
    """Whether a file or folder belongs to Python or to an installed library."""
    return (
        "site-packages" in place
        or "dist-packages" in place
        or f"{place}/".startswith(_library_folders())
    )


@functools.cache
def _library_folders() -> tuple[str, ...]:
    """Returns where libraries are installed, each with a slash at its end.

    They are computed once. Python makes each path anew from all of its configuration,
    which, done for every module of a program, took longer than the rest of an export.
    """
    found = {sysconfig.get_path(key) for key in ("purelib", "platlib", "stdlib")}
    return tuple(f"{folder}/" for folder in found if folder)


def _short(spec: importlib.machinery.ModuleSpec) -> str:
    """Returns the path of the file for messages: relative if that is shorter."""
    place = Path(_place(spec))
    try:
        return str(place.relative_to(Path.cwd()))
    except ValueError:
        return place.name


def _has_compiled_code(spec: importlib.machinery.ModuleSpec) -> bool:
    top = spec.name.partition(".")[0]
    whole = _spec(top) or spec
    if _place(whole).endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
        return True
    for folder in whole.submodule_search_locations or ():
        if next(Path(folder).rglob("*.so"), None):
            return True
    return False
