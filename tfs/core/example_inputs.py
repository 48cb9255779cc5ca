"""A version's example inputs, for probes and warm-up."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from tfs.core.errors import DataLoss
from tfs.core.signature import Signature
from tfs.core.tensor_view import TensorView
from tfs.core.version.manifest import MANIFEST
from tfs.core.version_directory import EXAMPLES


def check_examples(folder: str, signatures: Mapping[str, Signature]) -> None:
    """Checks that the example inputs of signatures lie within the file. Reads nothing.

    Raises:
        DataLoss: One does not; names the signature, the input and both sizes.

    """
    try:
        size_bytes = os.path.getsize(os.path.join(folder, EXAMPLES))
    except OSError:
        size_bytes = 0
    for key, signature in signatures.items():
        for name, slot in signature.examples.items():
            item_bytes = signature.inputs[name].dtype.item_bytes
            end = slot.offset + math.prod(slot.shape) * item_bytes
            if slot.value is None and end > size_bytes:
                raise DataLoss(
                    f"signature {key!r}: the example of input {name!r} ends at byte "
                    f"{end} of {EXAMPLES}, which has {size_bytes}; correct its shape and "
                    "offset, or leave the example out"
                )


def read_example(folder: str, signature: Signature) -> dict[str, TensorView]:
    """Returns a signature's example inputs, defaults included.

    Raises:
        DataLoss: ``examples.bin`` is shorter than the signature says.

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
            raise DataLoss(
                f"the example of input {name!r} does not fit {EXAMPLES} beside "
                f"{MANIFEST}: {error}"
            ) from error
    return views
