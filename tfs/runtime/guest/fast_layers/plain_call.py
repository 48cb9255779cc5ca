"""Tells whether a module is as torch made it, and whether a call is plain serving."""

from __future__ import annotations

import torch

_TENSOR = torch.Tensor
_is_compiling = torch.compiler.is_compiling
_is_inference = torch.is_inference_mode_enabled
_is_tracing = torch._C._is_tracing
_innermost_transform = torch._C._functorch.peek_interpreter_stack
_is_autocast = torch._C._is_any_autocast_enabled
_num_function_modes = torch._C._len_torch_function_stack
_num_dispatch_modes = torch._C._len_torch_dispatch_stack


def is_plain_call(tensor: torch.Tensor) -> bool:
    """Tells whether a call only serves a tensor of torch's own class.

    Gradients, transforms, traces, compilers, automatic casts and modes that see every
    operator must get what the model's author wrote.
    """
    return (
        type(tensor) is _TENSOR
        and _is_inference()
        and not _is_compiling()
        and not _is_tracing()
        and _innermost_transform() is None
        and not _is_autocast()
        and not _num_function_modes()
        and not _num_dispatch_modes()
        and tensor.is_cpu
    )


def has_own_forward(module: torch.nn.Module) -> bool:
    """Tells whether somebody gave a module a ``forward`` that is not its class's.

    A quickened module that was pickled has that of its class as its own.
    """
    own = vars(module).get("forward")
    return (
        own is not None and getattr(own, "__func__", None) is not type(module).forward
    )
