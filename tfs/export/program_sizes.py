"""The sizes a graph takes, beside those its signature leaves free.

torch.export writes a size down as a number where the model's code turned it into one
(``range(n)``, the shape of a sparse tensor), and says nothing. The graph then refuses
every other size, whatever the signature says.
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
        program: What torch.export made.
        names: Names of its inputs, in the order in which it was given them.
        signature: What callers will read.
        name: The model's, for messages.
        rows: Optional inputs that are looked at as well; others are left alone.

    Raises:
        InvalidArgument: Names the inputs, their dimensions and sizes.

    """
    # It imports a whole algebra system, which whoever exports a program has already.
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
