"""Checks that the sizes that a signature leaves free are free in the graph as well.

If the model's code turned a size into a number (``range(n)``, the shape of a sparse
tensor), torch.export fixes that size without saying so. The graph then refuses every
other size, whatever the signature says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch.export import ExportedProgram

from tfs.core.errors import InvalidArgument
from tfs.core.signature import FREE, Signature


def refuse_fixed(
    program: ExportedProgram,
    names: Sequence[str],
    signature: Signature,
    name: str,
    rows: Collection[str] = (),
) -> None:
    """Raises if a free dimension became one size.

    Args:
        program: The program that torch.export made.
        names: Names of its inputs, in the order in which it was given them.
        signature: The signature that callers will read.
        name: The name of the model, for messages.
        rows: Optional inputs that are checked as well; others are not.

    Raises:
        InvalidArgument: Names the inputs, their dimensions and sizes.

    """
    # Imported here because it brings a whole algebra system, which torch.export needs
    # anyway.
    from torch.fx.experimental.symbolic_shapes import is_concrete_int

    taken = {
        node.name: node.meta.get("val")
        for node in program.graph.nodes
        if node.op == "placeholder"
    }
    fixed = []
    for input_name, placeholder in zip(
        names, program.graph_signature.user_inputs, strict=True
    ):
        value = taken.get(str(placeholder))
        is_left_alone = input_name in signature.defaults and input_name not in rows
        if not isinstance(value, torch.Tensor) or is_left_alone:
            continue
        for index, size in enumerate(signature.inputs[input_name].shape):
            if size == FREE and is_concrete_int(value.shape[index]):
                fixed.append(
                    f"dimension {index} of {input_name!r} is {value.shape[index]}"
                )
    if fixed:
        raise InvalidArgument(
            f"the graph of {name} takes one size only where callers may choose: "
            f"{', '.join(fixed)}. Its code makes a number of it, or the example has 1 "
            "there: compute with the size as a tensor's shape, give an example of 2 or "
            "more, leave it out of dynamic, or save the model as torch_package"
        )
