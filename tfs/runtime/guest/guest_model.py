"""A model inside an interpreter, whatever its platform."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import os
from collections.abc import Mapping
from typing import Protocol, TypeAlias

import torch

from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    ResourceExhausted,
    ServingError,
)
from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.devices import check_device, current_device
from tfs.runtime.guest.faults import one_line as one_line
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.torch_tensor import Strings
from tfs.runtime.guest.version_files import VersionFiles as VersionFiles

Value: TypeAlias = "torch.Tensor | Strings"
Output: TypeAlias = "torch.Tensor | TensorView"
"""A checked output: a tensor, or a view of strings."""


class GuestModel(Protocol):
    """A loaded model. Confined to the thread that calls it, one call at a time.

    If its source's ``concurrency`` is larger than 1, the version's own code declares
    that it takes so many calls at once. Everything in between must then be thread-safe.

    Implementors promise:

    1. ``run`` hands inputs to the model by name, in eval mode; the caller has entered
       ``torch.inference_mode``;
    2. its outputs have the signature's names, dtypes and ranks, fixed dimensions and,
       where it is batched, as many rows as the inputs;
    3. every failure is a ``ServingError`` that names the version and the signature; the
       model stays usable;
    4. ``call`` keeps no reference to the inputs' buffers and never writes to them. Buffers
       that were given away (:class:`~tfs.core.tensor_view.TensorView`) are an exception:
       they may be the model's input, and its outputs may lie in them;
    5. ``close`` drops everything the model holds; the memory is gone after a garbage
       collection.
    """

    def call(self, signature_name: str, inputs: Tensors) -> dict[str, TensorView]:
        """Runs one signature on views; copies each input and output once at most."""
        ...

    def run(
        self, signature_name: str, inputs: Mapping[str, Value], num_rows: int
    ) -> dict[str, Output]:
        """Runs one signature on tensors the model may keep and write to."""
        ...

    def seed(self, seed: int | None) -> None:
        """Sets the random numbers of the Python that runs it, as ``seed_random``."""
        ...

    def close(self) -> None:
        """Drops the model; idempotent."""
        ...


def load_guest_model(source: ModelSource, files: VersionFiles) -> GuestModel:
    """Loads a version by its platform's guest module. Blocks.

    Args:
        source: What to load.
        files: The version's payload.

    Raises:
        ServingError: It does not load; names the version. Nothing is left.

    """
    who = source.id.slashed
    check_device(source.device, who)
    try:
        platform = importlib.import_module(
            f"tfs.runtime.guest.platforms.{source.platform}"
        )
        with current_device(source.device):
            model: GuestModel = platform.load(source, files)
            if source.staged_rows:
                # Imported only here: it knows what platforms make.
                staged = importlib.import_module("tfs.runtime.guest.staged_model")
                model = staged.staged(source, model)
    except ServingError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise _does_not_fit(source) from error
        raise
    except torch.OutOfMemoryError as error:
        raise _does_not_fit(source) from error
    except ImportError as error:
        raise FailedPrecondition(
            f"{who} does not load: {one_line(error)}; package the module with the "
            "model, or install it beside the server"
        ) from error
    except Exception as error:
        if _is_taken(error):
            raise FailedPrecondition(
                f"{who} does not load: {one_line(error)}: its code opens a port, which "
                "only one process can: give the model runtime { num_interpreters: 1 }, "
                "and transition: RESOURCE_PRESERVING if its next version opens it, too"
            ) from error
        raise Internal(f"{who} does not load: {one_line(error)}") from error
    except BaseException as error:  # sys.exit() must not end the thread that loads
        raise Internal(
            f"{who} does not load: its code ended its interpreter ({one_line(error)})"
        ) from error
    return model


def _is_taken(error: Exception) -> bool:
    """Whether an address was in use; torch's own servers say so in words alone."""
    if isinstance(error, OSError):
        return error.errno == errno.EADDRINUSE
    return os.strerror(errno.EADDRINUSE).lower() in str(error).lower()


def _does_not_fit(source: ModelSource) -> ServingError:
    return ResourceExhausted(
        f"{source.id.slashed} does not load: device {source.device} has no memory left "
        "for it; unload something there, or load it on another"
    )


def give_device_memory_back() -> None:
    """Returns the memory that the allocator keeps of freed tensors to the device. Blocks.

    Does nothing if no device was used: it makes no context.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


_libc = ctypes.CDLL(None)


def give_memory_back() -> None:
    """Gives memory that nobody holds any more back to system and device. Blocks."""
    gc.collect()
    give_device_memory_back()
    with contextlib.suppress(AttributeError, OSError):  # glibc only
        _libc.malloc_trim(0)
