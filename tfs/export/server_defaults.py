"""Gives a model torch's default settings, as on a server, whatever its author has set."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch

from tfs.core.errors import InvalidArgument

log = logging.getLogger(__name__)


@contextlib.contextmanager
def server_defaults() -> Iterator[None]:
    """Gives tensors made in the block the dtype and device they get on servers.

    The settings of the author's program are put back. Not thread-safe.

    Raises:
        InvalidArgument: Raised by the block; names the settings if they may be the
            cause.

    """
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    changed = []
    if dtype is not torch.float32:
        changed.append(f"set_default_dtype({dtype})")
    if device.type != "cpu":
        changed.append(f"set_default_device({str(device)!r})")
    if not changed:
        yield
        return
    text = (
        f"this program called torch.{' and torch.'.join(changed)}, and no server does: "
        "say dtype= and device= where the model makes tensors"
    )
    log.warning("event=defaults_unlike_servers %s", text)
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu") if device.type != "cpu" else contextlib.nullcontext():
            yield
    except InvalidArgument as error:
        raise InvalidArgument(f"{error.message}; {text}") from error
    finally:
        torch.set_default_dtype(dtype)
