"""Platform ``torchscript``: a scripted or traced module, ``model.pt``. No Python runs.

Its weights are views of the archive's bytes, shared by all interpreters.
"""

from __future__ import annotations

import warnings

import torch

from tfs.core.errors import DataLoss
from tfs.core.version.version_layout import ARCHIVE
from tfs.runtime.guest.faults import one_line, what_is_missing
from tfs.runtime.guest.guest_model import GuestModel
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.torch_callable import TorchCallable, methods_of
from tfs.runtime.guest.weights import share_weights


def load(source: ModelSource, files: VersionFiles) -> GuestModel:
    """Loads the module of a version; see :class:`GuestModel`.

    Raises:
        DataLoss: The archive is damaged, or of a newer torch.
        InvalidArgument: The manifest's entry names a method the module lacks.

    """
    try:
        with warnings.catch_warnings():
            # torch marks TorchScript itself as deprecated; serving it is no news.
            warnings.simplefilter("ignore", DeprecationWarning)
            module = torch.jit.load(  # type: ignore[no-untyped-call]
                files[ARCHIVE].path, map_location=source.device
            )
    except Exception as error:  # also those of C++, of a table that lacks a name
        raise DataLoss(
            f"{source.id.slashed}: {ARCHIVE} cannot be read as TorchScript: "
            f"{what_is_missing(error)}{one_line(error)}"
        ) from error
    if getattr(module, "training", False):  # what was frozen has no mode
        module.eval()
    share_weights([*module.parameters(), *module.buffers()], files[ARCHIVE])
    return TorchCallable(source, methods_of(source, module))
