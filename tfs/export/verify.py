"""Loads a version like a server's interpreter before it is committed, and checks it."""

from __future__ import annotations

import logging
import os
import re
import zipfile
from collections.abc import Mapping
from typing import Final

import torch

from tfs.core.errors import InvalidArgument, ServingError
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.export.derived import Derived
from tfs.export.gradient_advice import gradient_advice
from tfs.export.opened_files import OpenedFiles, watched_files
from tfs.export.packaging.own_code import own_code_out_of_reach
from tfs.export.read_variables import warned_of_variables
from tfs.export.server_defaults import server_defaults
from tfs.export.values import Value, close, view_of
from tfs.runtime.guest.guest_model import GuestModel, VersionFiles, load_guest_model
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.torch_tensor import to_torch

log = logging.getLogger(__name__)

_HINT: Final = (
    "If a mocked module is needed after all, intern or extern it; if one is missing, "
    "include it"
)
_OWN_FILE: Final = re.compile(r"'<torch_package_\d+>\.?([^']*)'")
"""Matches a path made from the ``__file__`` of a packaged module, in an error's text."""

_SAYS_WHAT_TO_DO: Final = re.compile(
    r"No module named '.*' (\(it is|in the archive, nor) |"
    "is not in the archive: pass resources="
)
_REGISTERS: Final = re.compile("TORCH_LIBRARY|register an operator", re.I)
_REGISTRATION_HINT: Final = (
    "Operators belong to the process, in which the author's are registered already: "
    "define them by @torch.library.custom_op, which may be done again"
)
_HALF_MADE: Final = re.compile(
    r"has no attribute '_(modules|parameters|buffers)'|before Module.__init__\(\) call"
)
"""Matches the error of a module that was restored without running its constructor."""

_HALF_MADE_HINT: Final = (
    "A part of it restores itself by a __setstate__ that takes the module for made "
    "already; torch's quantized convolutions do. Save it with platform='torchscript', or "
    "begin a __setstate__ of your own with torch.nn.Module.__init__(self)"
)


def differing_outputs(
    folder: str,
    platform: str,
    entry: Mapping[str, object],
    signatures: Mapping[str, Signature],
    derived: Mapping[str, Derived],
    *,
    is_exact: bool,
) -> dict[str, list[str]]:
    """Calls every signature on its example; returns outputs that differ, by signature.

    Raises:
        InvalidArgument: The payload does not load, or does not run outside of the
            author's program.

    """
    device = _device(derived)
    source = ModelSource(
        ServableId("export", 0), folder, platform, entry, signatures, device
    )
    differing = {}
    with (
        own_code_out_of_reach(*_modules_of(os.path.join(folder, "model.pt"))),
        watched_files(folder) as opened,
        warned_of_variables(),
        server_defaults(),
    ):
        model = _load(source)
        is_fresh = True
        try:
            for key, each in derived.items():
                names = _differing(model, key, each, is_exact, platform)
                if names and not is_fresh:
                    # Earlier calls may have changed the buffers of the loaded model.
                    # The author's module had its buffers put back after each call.
                    model.close()
                    model = _load(source)
                    names = _differing(model, key, each, is_exact, platform)
                is_fresh = False
                if names:
                    differing[key] = names
                _try_defaults(model, key, each, platform)
        finally:
            model.close()
    warn_of_files(opened)
    return differing


def warn_of_files(opened: OpenedFiles) -> None:
    """Logs the files that a version read and that servers may not have."""
    if opened.outside:
        log.warning(
            "event=files_outside_of_version paths=%s are read by the model; a server "
            "needs them at the same place, or as resources or assets of the version",
            ",".join(sorted(opened.outside)),
        )


def loaded_as_served(source: ModelSource) -> GuestModel:
    """Loads a version like a server's interpreter; the caller closes it.

    Raises:
        ServingError: It does not load; nothing is left of it.

    """
    files = VersionFiles.stage(source)
    try:
        return load_guest_model(source, files)
    finally:
        files.close()


def _load(source: ModelSource) -> GuestModel:
    try:
        return loaded_as_served(source)
    except ServingError as error:
        raise InvalidArgument(
            f"it was packaged but cannot be loaded back: {error.message}"
            f"{_advice(source.platform, error.message)}"
        ) from error


def _differing(
    model: GuestModel, key: str, each: Derived, is_exact: bool, platform: str
) -> list[str]:
    """Calls a signature on its example; returns the names of outputs that differ."""
    outputs = _outputs(model, key, each, platform)
    return [
        name
        for name, value in each.outputs.items()
        if view_of(value) != outputs[name]
        and (is_exact or not close(_on_cpu(value), to_torch(outputs[name])))
    ]


def _try_defaults(model: GuestModel, key: str, each: Derived, platform: str) -> None:
    """Calls a signature as callers do who leave out what has a default.

    Raises:
        InvalidArgument: That fails; names the inputs.

    """
    defaults = each.signature.defaults
    if all(view_of(each.example[name]) == value for name, value in defaults.items()):
        return  # the example has the default values already
    inputs = {name: view_of(value) for name, value in each.example.items()}
    try:
        _call(model, key, {**inputs, **defaults}, platform)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"it fails when callers leave out {', '.join(map(repr, defaults))}: the "
            "default is handed over as it is, and has to fit any number of rows. "
            f"{error.message}"
        ) from error


def _modules_of(path: str) -> tuple[set[str], set[str]]:
    """Returns the modules whose source an archive holds, and those it names extern."""
    packaged: set[str] = set()
    extern: set[str] = set()
    if not os.path.isfile(path) or not zipfile.is_zipfile(path):
        return packaged, extern
    with zipfile.ZipFile(path) as archive:
        for entry in archive.namelist():
            parts = entry.removesuffix(".py").split("/")[1:]
            if entry.endswith(".py") and all(map(str.isidentifier, parts)):
                packaged.add(".".join(parts).removesuffix(".__init__"))
            elif entry.endswith("/.data/extern_modules"):
                extern.update(archive.read(entry).decode().split())
    return packaged, extern


def _advice(platform: str, message: str) -> str:
    """Returns advice about an error that occurs only in the loaded archive."""
    if advice := gradient_advice(message):
        return f". {advice}"
    if _REGISTERS.search(message):
        return f". {_REGISTRATION_HINT}"
    if _HALF_MADE.search(message):
        return f". {_HALF_MADE_HINT}"
    if _SAYS_WHAT_TO_DO.search(message):
        return ""
    if platform != "torch_package":
        return ""
    own_file = _OWN_FILE.search(message)
    # A class of the package is quoted in the same way, but it is not a file.
    if own_file is None or not ("/" in own_file[1] or "[Errno" in message):
        return f". {_HINT}"
    path = own_file[1]
    folder, _, name = path.rpartition("/")
    return (
        ". A packaged module has no folder of its own: pass "
        f'resources={{"{path}": text}} and read it with `import '
        f'torch_package_importer` and its load_text("{folder}", "{name}"), or read it '
        "from the version's assets"
    )


def _outputs(model: GuestModel, key: str, each: Derived, platform: str) -> Tensors:
    """Runs the example under the conditions of ``calling.run``."""
    inputs = {name: view_of(value) for name, value in each.example.items()}
    return _call(model, key, inputs, platform)


def _call(model: GuestModel, key: str, inputs: Tensors, platform: str) -> Tensors:
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        try:
            return model.call(key, inputs)
        except ServingError as error:
            raise InvalidArgument(
                f"it works here but not from its package: {error.message}"
                f"{_advice(platform, error.message)}"
            ) from error


def _on_cpu(value: Value) -> Value:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _device(derived: Mapping[str, Derived]) -> str:
    """Returns the device of the author's example, so that the same kernels run."""
    for each in derived.values():
        for value in each.example.values():
            if isinstance(value, torch.Tensor):
                return str(value.device)
    return "cpu"
