"""The private descriptor pool that every generated module registers into.

The default pool takes one definition of a name. Ours differ from those that the
packages ``tensorflow`` and ``tensorflow_serving`` register there (fields of our own,
graph messages left out), and a process that imports both would fail at whichever
comes second. In a pool of our own each side keeps its definitions. Rejected: copies
equal to the byte in the default pool; every new TensorFlow release would break them.

What follows from it:
    - The classes of the two pools differ although their bytes do not. Exchange
      bytes; an object of the other side is a ``TypeError``.
    - That holds for the well-known types too. Not ``spec.version.CopyFrom(
      wrappers_pb2.Int64Value(value=3))`` but ``spec.version.value = 3``.
    - ``json_format`` and ``text_format`` look up the type inside an ``Any`` in the
      default pool unless told ``descriptor_pool=POOL``.
"""

from __future__ import annotations

from google.protobuf import any_pb2, descriptor_pool, duration_pb2, wrappers_pb2
from google.protobuf.internal import api_implementation

if api_implementation.Type() != "upb":
    # The pure-Python implementation accepts conflicting definitions silently and then
    # loses fields (KeyError: 'half_val').
    raise ImportError(
        "tfs needs protobuf's upb implementation, and this process runs "
        f"{api_implementation.Type()!r}: unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION, "
        "or install a protobuf wheel built for this machine"
    )

POOL = descriptor_pool.DescriptorPool()

for _well_known in (any_pb2, duration_pb2, wrappers_pb2):
    POOL.AddSerializedFile(_well_known.DESCRIPTOR.serialized_pb)
