"""A model inside an interpreter, whatever its platform."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import torch

from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    ResourceExhausted,
    ServingError,
)
from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.faults import one_line
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.side_effects import ThreadEffects
from tfs.runtime.guest.torch_tensor import Strings

_FIRST = ("cpu", "cuda", "cuda:0")
_NONE: contextlib.AbstractContextManager[object] = contextlib.nullcontext()


def current_device(device: str) -> contextlib.AbstractContextManager[object]:
    """Makes ``device`` the calling thread's current device within the block.

    Each thread begins with the first device. So a model on another device that makes a
    tensor on "cuda", or has kernels of its own, would use the wrong one. Does nothing
    for the first device.
    """
    return _NONE if device in _FIRST else torch.cuda.device(device)


def check_device(device: str, who: str) -> None:
    """Checks that torch can compute on ``device``.

    Raises:
        FailedPrecondition: It cannot; names the version.

    """
    if device == "cpu":
        return
    # A torch that was built without CUDA counts no devices.
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if num_devices and device in ("cuda", *(f"cuda:{n}" for n in range(num_devices))):
        return
    found = f"{num_devices} of them" if num_devices else "none"
    raise FailedPrecondition(
        f"{who} asks for device {device!r}, and torch {torch.__version__} sees {found}; "
        "name another in its runtime config, or serve it where there is one"
    )


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


def two_thread_scaling(
    model: GuestModel,
    signature_name: str,
    inputs: Tensors,
    duration_s: float,
    changed: set[str] | None = None,
) -> float | None:
    """Returns calls per second of two threads over one. Blocks for about ``duration_s``.

    If kernels release the interpreter's lock, it is near 2, and the model needs no
    process of its own. If Python does the work, it is below 1.

    Nobody else may call the model meanwhile. Returns None if a call failed, or if calls
    took so long that neither phase saw three.

    Args:
        model: The model.
        signature_name: Key of the signature.
        inputs: The inputs by name.
        duration_s: About how long to measure.
        changed: Gets the settings of its thread that the model leaves changed; None:
            nobody looks.

    """
    alone = _calls_per_s(model, signature_name, inputs, duration_s / 2, 1, changed)
    both = _calls_per_s(model, signature_name, inputs, duration_s / 2, 2, None)
    return both / alone if alone and both else None


def _calls_per_s(
    model: GuestModel,
    signature_name: str,
    inputs: Tensors,
    duration_s: float,
    num_threads: int,
    changed: set[str] | None,
) -> float | None:
    barrier = threading.Barrier(num_threads)
    rates: list[float | None] = []

    def work() -> None:
        num_calls = 0
        try:
            with torch.inference_mode():
                torch.set_num_threads(1)
                before = ThreadEffects() if changed is not None else None
                barrier.wait()
                begun_s = now_s = time.perf_counter()
                while now_s - begun_s < duration_s or num_calls < 3:
                    model.call(signature_name, inputs)
                    num_calls += 1
                    now_s = time.perf_counter()
                    if now_s - begun_s > 4 * duration_s:
                        break
                if changed is not None and before is not None:
                    changed.update(before.changes())
            rates.append(num_calls / (now_s - begun_s) if num_calls >= 3 else None)
        except BaseException:  # a model's own may be any
            barrier.abort()
            rates.append(None)

    threads = [
        threading.Thread(target=work, name=f"probe-{index}", daemon=True)
        for index in range(num_threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = 0.0
    for rate in rates:
        if rate is None:
            return None
        total += rate
    return total


IMPORTED_AHEAD: Final[Mapping[str, Sequence[str]]] = {
    "torch_export": (
        "tfs.runtime.guest.platforms.torch_export",
        # Modules that torch imports only while it reads a program. They are private to
        # torch; if one does not exist any more, the first load imports what it needs.
        "torch.export._trace",
        "torch.export._unlift",
        "torch.fx.experimental.validator",
        "torch.utils.serialization",
        "torch._inductor.package",
        "torch._inductor.sizevars",
        "sympy.combinatorics",
        "sympy.tensor.tensor",
    )
}
"""Modules to import in advance, by platform; the other platforms import little.

Reading a graph of torch.export takes 1.3 s of imports and 90 MB of memory. A zygote
that has done that forks workers that have done it too, in milliseconds, and they share
the memory.
"""

# Per process, like the modules themselves; forks inherit both.
_spent_s: dict[str, float] = {}


def import_for(platform: str) -> None:
    """Imports the modules that the platform needs and that exist.

    A missing one is reported when a version that needs it is loaded.
    """
    begun_s = time.thread_time()
    for name in IMPORTED_AHEAD[platform]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _spent_s[platform] = time.thread_time() - begun_s


def imported_s(platform: str) -> float:
    """Returns the processor time that these imports took, which a load here is spared.

    A load in a process that has imported nothing needs that time in addition.
    """
    return _spent_s.get(platform, 0.0)
