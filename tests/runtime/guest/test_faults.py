from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

import pytest
import torch

from tfs.core.errors import Internal
from tfs.runtime.guest.faults import is_out_of_memory, leave_if_device_is_lost
from tfs.runtime.guest.worker_options import LOST_DEVICE

ASSERTION = "CUDA error: device-side assert triggered"


def failed(text: str) -> Internal:
    """A call's error, led to by what torch says."""
    try:
        try:
            raise RuntimeError(text)
        except RuntimeError as cause:
            raise Internal("m/1 failed") from cause
    except Internal as error:
        return error


def lost(_: str) -> None:
    raise RuntimeError(ASSERTION)


@pytest.mark.parametrize(
    ("text", "device", "synchronize", "status"),
    [
        (ASSERTION, "cuda:1", lost, LOST_DEVICE),
        (ASSERTION, "cuda:1", lambda _: None, 0),
        ("shapes do not match", "cuda", lost, 0),
        (ASSERTION, "cpu", lost, 0),
    ],
)
def test_a_process_ends_over_a_device_it_cannot_use_any_more(
    text: str, device: str, synchronize: Callable[[str], None], status: int
) -> None:
    """Each later call would fail; a launch that was refused leaves the device as it was."""
    error = failed(text)
    pid = os.fork()
    if pid == 0:
        try:
            torch.cuda.synchronize = synchronize  # type: ignore[assignment]
            leave_if_device_is_lost(error, device)
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status


def test_a_full_device_is_out_of_memory() -> None:
    """What the process keeps of it for later is given to others."""
    text = "CUDA out of memory. Tried to allocate 2.00 GiB."
    assert is_out_of_memory(torch.OutOfMemoryError(text))
    assert is_out_of_memory(failed("CUDA error: out of memory"))
    assert not is_out_of_memory(failed("index out of range"))
