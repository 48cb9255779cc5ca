"""ModelSpec values and messages."""

from __future__ import annotations

import pytest

from tfs.codec import model_spec, wire
from tfs.codec.decode_options import FillBudget
from tfs.codec.example_input import read_example_request
from tfs.codec.model_spec import (
    ModelSpec,
    fill_model_spec,
    model_spec_of,
    read_model_spec,
    write_model_spec,
)
from tfs.codec.predict_request import parse, read_predict_request
from tfs.core.errors import InvalidArgument
from tfs.proto.tensorflow_serving.apis import model_pb2

SPECS = [
    ModelSpec(""),
    ModelSpec("m"),
    ModelSpec("m", 0),
    ModelSpec("m", 123, None, "sig"),
    ModelSpec("m", -1),
    ModelSpec("m", None, "", ""),
    ModelSpec("m", None, "stable", "sig"),
    ModelSpec("ä/ü"),
]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_spec_comes_back_as_written(spec: ModelSpec) -> None:
    """Version 0 and an empty label are given, not absent."""
    assert read_model_spec(write_model_spec(spec)) == spec
    proto = model_pb2.ModelSpec()
    fill_model_spec(proto, spec)
    assert model_spec_of(proto) == spec


def test_an_empty_signature_name_means_the_default() -> None:
    """The name is kept as sent; the key is what it means."""
    assert ModelSpec("m").signature_key == "serving_default"
    assert ModelSpec("m", signature_name="s").signature_key == "s"


@pytest.mark.parametrize("message", [b"\x0a\x01\xff", b"\x0a", b"\x00"])
def test_garbage_is_refused(message: bytes) -> None:
    """Bytes that are no message are refused, as are names that are not UTF-8."""
    with pytest.raises(InvalidArgument, match="model_spec"):
        read_model_spec(message)


def test_remembered_specs_are_bounded() -> None:
    """Ever new names leave a bounded memory behind; long ones leave none."""
    for index in range(3_000):
        read_model_spec(write_model_spec(ModelSpec(f"m{index}")))
    assert len(model_spec._recent) <= model_spec._MAX_REMEMBERED
    long = write_model_spec(ModelSpec("m" * 10_000))
    read_model_spec(long)
    assert long not in model_spec._recent


NESTED_97: bytes = b"\x4b" * 97 + b"\x4c" * 97
"""Unknown groups within each other, as deep as a field of ModelSpec may be at least."""


@pytest.mark.parametrize("deeper", range(6))
def test_what_is_nested_deep_is_read_as_within_the_request(deeper: int) -> None:
    """A spec read by itself has no more room for depth than upb gives it in a request."""
    spec = b"\x0a\x01m" + b"\x4b" * deeper + NESTED_97 + b"\x4c" * deeper
    try:
        parse(wire.delimited(1, spec), FillBudget(1 << 20))
        expected = True
    except InvalidArgument:
        expected = False
    for read in (
        lambda: read_model_spec(spec),
        lambda: read_predict_request(wire.delimited(1, spec)),
        lambda: read_example_request(wire.delimited(1, spec)),
    ):
        try:
            read()
            accepted = True
        except InvalidArgument:
            accepted = False
        assert accepted == expected
