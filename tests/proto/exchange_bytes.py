"""Run in a process of its own: our definitions and upstream's, both in use.

    python tests/proto/exchange_bytes.py before    upstream's are registered first
    python tests/proto/exchange_bytes.py after     ours are imported first

Registers the recorded upstream files in the default pool, as importing the real
packages does, and passes messages of all kinds from either side to the other. Exits 0
and prints how many if all went well.
"""

from __future__ import annotations

import sys

from google.protobuf import any_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import Message

from tests.proto.descriptors import upstream_files

# Nothing of ours is imported up here: the order is what this is about.


def register_upstream() -> None:
    """Adds upstream's files to the default pool, as its generated modules do."""
    # Imported for their effect: the well-known types register themselves.
    from google.protobuf import duration_pb2, wrappers_pb2  # noqa: F401

    for file in upstream_files():
        descriptor_pool.Default().AddSerializedFile(file.SerializeToString())


def their_class(name: str) -> type[Message]:
    """Returns upstream's class for a full name."""
    found = descriptor_pool.Default().FindMessageTypeByName(name)
    return message_factory.GetMessageClass(found)


def exchange_all() -> int:
    """Passes every sample to upstream's class and back; returns how many."""
    from tests.proto.samples import samples, without_additions

    messages = samples()
    for sample in messages:
        name = sample.DESCRIPTOR.full_name
        theirs = their_class(name)
        assert theirs is not type(sample), f"{name}: one class for both sides"
        received = theirs.FromString(sample.SerializeToString(deterministic=True))
        # Both sides read the same in it, except for the fields that only we declare.
        assert text_format.MessageToString(received) == text_format.MessageToString(
            without_additions(sample)
        ), name
        # What they send on has everything, those fields included.
        back = type(sample).FromString(received.SerializeToString(deterministic=True))
        assert back == sample, f"{name}: came back as {back}"
    return len(messages)


def exchange_any() -> None:
    """What one side packs, the other unpacks."""
    from tfs.proto.tensorflow_serving.apis import model_pb2

    ours = model_pb2.ModelSpec(name="digits")
    theirs = their_class("tensorflow.serving.ModelSpec")()
    packed = any_pb2.Any()
    packed.Pack(ours)
    assert packed.Unpack(theirs)
    assert theirs.SerializeToString() == ours.SerializeToString()


def main(order: str) -> int:
    if order == "before":
        assert not any(name.endswith("_pb2") for name in sys.modules if "tfs." in name)
        register_upstream()
    else:
        import tests.proto.samples  # noqa: F401

        register_upstream()
    num = exchange_all()
    exchange_any()
    print(f"exchanged {num}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
