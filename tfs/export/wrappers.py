"""Removes wrappers around modules that only the training process needs.

Their parameters have no names, and what they add does not survive pickling. What
torch.compile made would be made anew on every server, which takes minutes.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Final, cast

import torch
from torch import nn

log = logging.getLogger(__name__)

_WRAPPERS: Final = ("DataParallel", "DistributedDataParallel", "AveragedModel")
"""Classes that call their ``module``; in an averaged model, that is the average."""


def unwrapped(module: nn.Module) -> nn.Module:
    """Returns the module inside torch.compile's, data-parallel or averaging wrappers."""
    while (inner := _inner(module)) is not None:
        log.info("event=wrapper_left_out wrapper=%s", type(module).__name__)
        module = inner
    return module


@contextlib.contextmanager
def without_compiled_parts(module: nn.Module) -> Iterator[None]:
    """Runs the parts of a module as they were written, for the block.

    This covers parts that torch.compile has wrapped, parts that it compiled in place
    (``part.compile()``), and functions that it decorates. Other wrappers stay, because
    the module may reach through them.
    """
    taken: list[tuple[dict[str, nn.Module | None], str, nn.Module]] = []
    compiled: list[tuple[nn.Module, object]] = []
    try:
        for part in list(module.modules()):
            for name, child in list(part._modules.items()):
                inner = getattr(child, _ORIGINAL, None)
                if child is not None and isinstance(inner, nn.Module):
                    taken.append((part._modules, name, child))
                    part._modules[name] = inner
        for part in module.modules():
            call = getattr(part, _COMPILED, None)
            if call is not None:
                compiled.append((part, call))
                setattr(part, _COMPILED, None)
        # Without the compiler's module nothing was compiled, and importing it takes
        # seconds.
        is_there = "torch._dynamo" in sys.modules
        with _uncompiled() if is_there else contextlib.nullcontext():
            yield
    finally:
        for parts, name, child in taken:
            parts[name] = child
        for part, call in compiled:
            setattr(part, _COMPILED, call)


def _uncompiled() -> contextlib.AbstractContextManager[object]:
    return cast(
        "contextlib.AbstractContextManager[object]",
        torch.compiler.set_stance("force_eager"),
    )


_ORIGINAL: Final = "_orig_mod"
"""The attribute in which torch.compile's wrapper keeps the module."""

_COMPILED: Final = "_compiled_call_impl"
"""The attribute in which ``nn.Module.compile`` keeps what is called for ``forward``."""


def _inner(module: nn.Module) -> nn.Module | None:
    inner = getattr(module, _ORIGINAL, None)
    if inner is None and type(module).__name__ in _WRAPPERS:
        inner = getattr(module, "module", None)
    return inner if isinstance(inner, nn.Module) else None
