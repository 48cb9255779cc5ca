"""A version's example inputs, for probes and warm-up."""

from __future__ import annotations

import math
import os

from tfs.core.errors import InvalidArgument
from tfs.core.manifest import MANIFEST
from tfs.core.signature import Signature
from tfs.core.tensor_view import TensorView
from tfs.core.version_directory import EXAMPLES


def read_example(folder: str, signature: Signature) -> dict[str, TensorView]:
    """Returns a signature's example inputs, defaults included.

    Raises:
        InvalidArgument: ``examples.bin`` is shorter than the signature says.

    """
    data = b""
    path = os.path.join(folder, EXAMPLES)
    if os.path.isfile(path):
        with open(path, "rb") as file:
            data = file.read()
    views = dict(signature.defaults)
    for name, slot in signature.examples.items():
        dtype = signature.inputs[name].dtype
        try:
            if slot.value is not None:
                views[name] = TensorView.checked(dtype, slot.shape, slot.value)
                continue
            end = slot.offset + math.prod(slot.shape) * dtype.item_bytes
            views[name] = TensorView.checked(dtype, slot.shape, data[slot.offset : end])
        except (KeyError, ValueError) as error:
            raise InvalidArgument(
                f"the example of input {name!r} does not fit {EXAMPLES} beside "
                f"{MANIFEST}: {error}"
            ) from error
    return views
