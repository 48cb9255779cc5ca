"""Removes wrappers around modules that only the training process needs.

Their parameters have no names, and what they add does not survive pickling. What
torch.compile made would be made anew on every server, which takes minutes. A wrapper is
known by its exact type: a class of the author's may have the same name or attributes,
forward what it does not have to the module in it, and compute something else.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Final, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from tfs.core.errors import InvalidArgument

log = logging.getLogger(__name__)

_PARALLEL: Final = (nn.DataParallel, DistributedDataParallel)


def without_parallelism(module: nn.Module) -> nn.Module:
    """Returns the module inside data-parallel wrappers, which other devices wait for.

    Raises:
        InvalidArgument: A wrapper has hooks, so that it does more than to call the module.

    """
    while type(module) in _PARALLEL:
        module = _inside(module, "module")
    return module


def has_wrappers(module: nn.Module) -> bool:
    """Whether torch's own wrappers are around a module, or around parts of it."""
    return any(_inner(part) is not None for part in module.modules())


def unwrapped(module: nn.Module) -> nn.Module:
    """Returns the module inside torch.compile's or averaging wrappers.

    Raises:
        InvalidArgument: A wrapper has hooks, so that it does more than to call the module.

    """
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

    Raises:
        InvalidArgument: A wrapper has hooks, so that it does more than to call the module.

    """
    taken: list[tuple[dict[str, nn.Module | None], str, nn.Module]] = []
    compiled: list[tuple[nn.Module, object]] = []
    try:
        for part in list(module.modules()):
            for name, child in list(part._modules.items()):
                while child is not None and _is_compiled(child):
                    inner = _inside(child, _ORIGINAL)
                    taken.append((part._modules, name, child))
                    part._modules[name] = child = inner
        for part in module.modules():
            call = vars(part).get(_COMPILED)
            if call is not None:
                compiled.append((part, call))
                setattr(part, _COMPILED, None)
        with run_as_written():
            yield
    finally:
        for parts, name, child in reversed(taken):
            parts[name] = child
        for part, call in compiled:
            setattr(part, _COMPILED, call)


def run_as_written() -> contextlib.AbstractContextManager[object]:
    """Runs what torch.compile has wrapped or decorated without compiling it."""
    # Without the compiler's module nothing was compiled, and importing it takes seconds.
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return cast(
        "contextlib.AbstractContextManager[object]",
        torch.compiler.set_stance("force_eager"),
    )


_ORIGINAL: Final = "_orig_mod"
"""Where torch.compile's wrapper keeps the module. torch has no public name for it, nor
for the wrapper's class: without them, what is compiled cannot be saved."""

_COMPILED: Final = "_compiled_call_impl"
"""The attribute in which ``nn.Module.compile`` keeps what is called for ``forward``; if
torch renames it, such parts cannot be pickled."""


def _inner(module: nn.Module) -> nn.Module | None:
    if _is_compiled(module):
        return _inside(module, _ORIGINAL)
    return _inside(module, "module") if type(module) is AveragedModel else None


def _is_compiled(module: nn.Module) -> bool:
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and type(module) is compiler.OptimizedModule


def _inside(wrapper: nn.Module, name: str) -> nn.Module:
    # Hooks and parts have no public names; without them, no wrapper can be removed.
    if wrapper._forward_hooks or wrapper._forward_pre_hooks:
        raise InvalidArgument(
            f"the wrapper {type(wrapper).__name__} has hooks, and is not saved with the "
            "module in it: register them on that one, or save a module of your own "
            "around it"
        )
    return cast(nn.Module, vars(wrapper)["_modules"][name])
