"""Classify and Regress requests, taken apart as protobuf would."""

from __future__ import annotations

import contextlib

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec.examples import an_example, rows
from tests.codec.mutation import mutated
from tfs.codec import wire
from tfs.codec.example_input import (
    ExampleInput,
    read_example_request,
    read_fields,
    read_input,
)
from tfs.codec.model_spec import ModelSpec
from tfs.core.errors import InvalidArgument, ResourceExhausted
from tfs.proto.tensorflow.core.example import example_pb2
from tfs.proto.tensorflow_serving.apis import classification_pb2, input_pb2


def test_a_request_is_taken_apart() -> None:
    """Model, examples and context, each as sent."""
    message = classification_pb2.ClassificationRequest()
    message.model_spec.name = "m"
    part = message.input.example_list_with_context
    part.examples.add().CopyFrom(an_example({"f": [1.0]}))
    part.examples.add()
    part.context.CopyFrom(an_example({"g": [2]}))
    request = read_example_request(message.SerializeToString())
    assert request.model_spec == ModelSpec("m")
    assert request.input == rows({"f": [1.0]}, {}, context={"g": [2]})
    request = read_example_request(memoryview(message.SerializeToString()))
    assert len(request.input.examples) == 2


def test_an_empty_request_has_neither_model_nor_rows() -> None:
    """Absence is for the handler to refuse."""
    request = read_example_request(b"")
    assert request.model_spec is None
    assert request.input == ExampleInput(())


@pytest.mark.parametrize("message", [b"\x12", b"\x12\x01\x0a", b"\x0a\x03\x0a\x01\xff"])
def test_garbage_around_the_examples_is_refused(message: bytes) -> None:
    """INVALID_ARGUMENT, never an exception of another kind."""
    with pytest.raises(InvalidArgument, match="cannot parse"):
        read_example_request(message)


def test_a_part_that_is_cut_off_is_not_completed_by_the_next() -> None:
    """Specs and contexts that come twice are merged, each well-formed by itself."""
    cut, rest = b"\x0a\x05m", b"\x0a\x02xy"
    assert len(b"m" + rest) == 5  # together they would be a field
    twice = wire.delimited(1, cut) + wire.delimited(1, rest)
    with pytest.raises(InvalidArgument, match="cannot parse"):
        read_example_request(twice)
    contexts = wire.delimited(2, cut) + wire.delimited(2, rest)
    with pytest.raises(InvalidArgument, match="cannot parse"):
        read_input([wire.delimited(2, contexts)])
    assert read_input([wire.delimited(2, wire.delimited(2, rest) * 2)]).context == (
        rest * 2
    )


EXAMPLES = st.sampled_from(
    [b"", an_example({"f": [1.0]}).SerializeToString(), b"\x0a\x00"]
)
LISTS = st.lists(
    st.builds(wire.delimited, st.sampled_from([1, 2, 3]), EXAMPLES), max_size=3
).map(b"".join)
INPUTS = st.lists(
    st.one_of(
        st.builds(wire.delimited, st.sampled_from([1, 2, 3]), LISTS),
        st.just(b"\x08\x05"),  # example_list's number with another wire type
    ),
    max_size=3,
).map(b"".join)
REQUESTS = st.lists(
    st.builds(wire.delimited, st.sampled_from([2, 3]), INPUTS), max_size=3
).map(b"".join)


def some_requests() -> list[bytes]:
    messages = []
    for form in ("example_list", "example_list_with_context"):
        message = classification_pb2.ClassificationRequest()
        message.model_spec.name = "m"
        part = getattr(message.input, form)
        part.examples.add().CopyFrom(an_example({"f": [1.0, 2.0], "g": [b"x"]}))
        part.examples.add().CopyFrom(an_example({"f": [3], "h": []}))
        if form != "example_list":
            part.context.CopyFrom(an_example({"c": [5, 6]}))
        messages.append(message.SerializeToString())
    return messages


def test_what_protobuf_accepts_is_read_as_protobuf_reads_it() -> None:
    """Mutated messages are read as by protobuf, or refused with INVALID_ARGUMENT."""
    messages = some_requests()
    num_accepted = 0
    for number in range(4_000):
        message = mutated(messages[number % 2], number)
        try:
            proto = classification_pb2.ClassificationRequest.FromString(message)
        except DecodeError:
            with contextlib.suppress(InvalidArgument):
                read_example_request(message)
            continue
        num_accepted += 1
        request = read_example_request(message)
        form = proto.input.WhichOneof("kind")
        parsed = getattr(proto.input, form) if form else input_pb2.ExampleList()
        assert [
            example_pb2.Example.FromString(each) for each in request.input.examples
        ] == list(parsed.examples), message.hex()
        assert (request.model_spec is not None) == proto.HasField("model_spec")
    assert num_accepted > 1_000


@given(REQUESTS)
@settings(deadline=None)
def test_repeated_parts_are_merged_as_protobuf_merges_them(message: bytes) -> None:
    """Inputs in parts, lists in parts, a oneof that changes its mind."""
    proto = classification_pb2.ClassificationRequest.FromString(message)
    parsed: input_pb2.ExampleList | input_pb2.ExampleListWithContext
    if proto.input.WhichOneof("kind") == "example_list":
        parsed = proto.input.example_list
        context = example_pb2.Example()
    else:
        parsed = proto.input.example_list_with_context
        context = proto.input.example_list_with_context.context
    read = read_input(read_fields(message)[1])
    assert [example_pb2.Example.FromString(each) for each in read.examples] == list(
        parsed.examples
    )
    assert example_pb2.Example.FromString(read.context) == context


def test_examples_of_next_to_nothing_are_bounded() -> None:
    """Each takes thirty times what it takes on the wire; larger ones cost nothing."""
    many = wire.delimited(2, wire.delimited(1, b"\x0a\x00" * 1_200_000))
    with pytest.raises(ResourceExhausted, match=r"more than \d+ Examples of next to"):
        read_example_request(many)
    few = wire.delimited(2, wire.delimited(1, wire.delimited(1, bytes(64)) * 50_000))
    assert len(read_example_request(few).input.examples) == 50_000
