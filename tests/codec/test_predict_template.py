"""Templates: a known request is read without parsing, and only that one."""

from __future__ import annotations

import struct

import pytest

from tests.codec.samples import (
    FLOATS,
    SMALL_VIEWS,
    content_proto,
    request,
    typed_proto,
)
from tests.present import present
from tfs.codec import request_reader
from tfs.codec.decode_options import FillBudget
from tfs.codec.predict_request import KNOWN, parse, read_predict_request
from tfs.core.dtype import FLOAT32
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow_serving.apis import predict_pb2


@pytest.fixture(autouse=True)
def _forget() -> None:
    """No test depends on what another left remembered."""
    KNOWN.forget()


def test_a_template_takes_the_new_elements() -> None:
    """A known message with other elements yields those elements."""
    first = request(typed_proto(FLOATS)).SerializeToString()
    other = TensorView(FLOAT32, (1, 4), struct.pack("<4f", 9, 8, 7, 6))
    read_predict_request(first)
    second = request(typed_proto(other)).SerializeToString()
    assert KNOWN.read_as_before(second) is not None
    assert read_predict_request(second).inputs == {"x0": other}
    assert read_predict_request(memoryview(second)).inputs == {"x0": other}


def test_templates_of_several_inputs_keep_them_apart() -> None:
    """Every byte between two tensors is compared, and each gets its own elements."""
    wide = TensorView(FLOAT32, (1, 200), struct.pack("<200f", *range(200)))
    message = bytearray(
        request(content_proto(FLOATS), content_proto(wide)).SerializeToString()
    )
    expected = parse(bytes(message), FillBudget(1 << 20))
    assert read_predict_request(bytes(message)) == expected
    known = KNOWN.read_as_before(bytes(message))
    assert known == expected
    position = message.index(b"x1")
    message[position + 1] = ord("y")
    assert KNOWN.read_as_before(bytes(message)) is None
    assert set(read_predict_request(bytes(message)).inputs) == {"x0", "xy"}


def test_messages_of_equal_length_do_not_get_each_others_template() -> None:
    """Same length, other model, name, dtype or shape: read as what they are."""
    messages = []
    for model in ("m", "n"):
        for shape in ((1, 4), (4, 1), (2, 2)):
            for proto in (typed_proto, content_proto):
                view = TensorView(FLOAT32, shape, FLOATS.data)
                messages.append(request(proto(view), name=model).SerializeToString())
    assert len({len(message) for message in messages}) == 1
    for _ in range(3):
        for message in messages:
            assert read_predict_request(message) == parse(message, FillBudget(1 << 20))


def test_templates_are_bounded() -> None:
    """Ever new messages leave a bounded memory behind."""
    for size in range(3_000):
        view = TensorView(FLOAT32, (size,), bytes(4 * size))
        read_predict_request(request(content_proto(view)).SerializeToString())
    for name in range(5_000):
        message = request(typed_proto(FLOATS), name=f"{name:04}").SerializeToString()
        read_predict_request(message)
    num_keys, num_of_key = KNOWN.num_remembered()
    assert 0 < num_keys <= request_reader.MAX_KEYS
    assert num_of_key == 1


def test_many_models_called_alike_are_all_remembered() -> None:
    """A thousand models asked in turn, in messages of one length: each has its own."""
    numbers = [TensorView(FLOAT32, (1,), struct.pack("<f", n)) for n in range(1000)]
    for turn in range(2):
        for n, view in enumerate(numbers):
            proto = typed_proto(view)
            message = request(proto, name=f"{n:03}").SerializeToString()
            for buffer in (message, memoryview(message)):
                read = KNOWN.read_as_before(buffer)
                assert (read is not None) == bool(turn), n
                assert read in (None, parse(message, FillBudget(1 << 20)))
            alike = KNOWN.read_alike([message], 0)
            assert (alike is not None) == bool(turn)
            assert alike is None or alike[0].model_spec.name == f"{n:03}"
            read_predict_request(message)


def test_requests_to_one_model_do_not_pile_up() -> None:
    """The latest few of one length are kept, however they differ around their elements."""
    for name in ("a", "b"):
        for wanted in range(50):
            message = request(
                typed_proto(FLOATS), name=name, output_filter=[f"{wanted:02}"]
            )
            for _ in range(2):
                data = message.SerializeToString()
                assert read_predict_request(data) == parse(data, FillBudget(1 << 20))
    assert KNOWN.num_remembered() == (2, request_reader.MAX_OF_KEY)


def test_large_surroundings_are_not_kept() -> None:
    """Only what is small beside its elements is worth remembering."""
    message = request(typed_proto(FLOATS), output_filter=["o" * 2_000])
    read_predict_request(message.SerializeToString())
    assert KNOWN.num_remembered() == (0, 0)


def test_a_client_id_may_differ() -> None:
    """The same client software, another client: known all the same."""
    proto = typed_proto(FLOATS)
    first = request(proto, client_id=b"client-1").SerializeToString()
    second = request(proto, client_id=b"client-\xff").SerializeToString()
    read_predict_request(first)
    for message in (second, memoryview(second)):
        view = present(KNOWN.read_as_before(message))
        assert view.client_id == b"client-\xff"
        assert view.inputs == {"x0": FLOATS}


def test_a_client_id_in_front_is_read() -> None:
    """Fields come in any order."""
    only_id = predict_pb2.PredictRequest(client_id=b"me").SerializeToString()
    message = only_id + request(typed_proto(FLOATS)).SerializeToString()
    for _ in range(2):
        assert read_predict_request(message) == parse(message, FillBudget(1 << 20))
    assert KNOWN.read_as_before(message) == parse(message, FillBudget(1 << 20))


def test_what_is_not_opaque_is_not_left_out() -> None:
    """Varints and booleans are looked at, so they can be no gap."""
    for view in SMALL_VIEWS:
        message = request(typed_proto(view)).SerializeToString()
        read_predict_request(message)
        assert KNOWN.read_as_before(message) is None


def test_requests_alike_are_read_together() -> None:
    """Requests are read together up to the first that differs or says more."""

    def floats(*values: float) -> TensorView:
        return TensorView(FLOAT32, (1, 4), struct.pack("<4f", *values))

    first = request(content_proto(FLOATS)).SerializeToString()
    assert KNOWN.read_alike([first], 0) is None
    read_predict_request(first)
    alike = [
        request(content_proto(floats(n, 2, 3, 4))).SerializeToString() for n in range(4)
    ]
    other = request(content_proto(FLOATS), name="n").SerializeToString()
    found = present(KNOWN.read_alike([other, *alike, other, alike[0]], 1))
    template, elements = found
    assert template.model_spec == parse(first, FillBudget(1 << 20)).model_spec
    ((name, dtype, shape),) = template.inputs
    for message, (data,) in zip(alike, elements, strict=True):
        assert parse(message, FillBudget(1 << 20)).inputs == {
            name: TensorView(dtype, shape, data)
        }
    filtered = predict_pb2.PredictRequest.FromString(first)
    filtered.output_filter.append("y")
    read_predict_request(filtered.SerializeToString())
    assert KNOWN.read_alike([filtered.SerializeToString()], 0) is None


def test_requests_of_several_tensors_alike_are_read_together() -> None:
    """Every tensor has its own elements, and every byte between them counts."""
    wide = TensorView(FLOAT32, (1, 200), struct.pack("<200f", *range(200)))
    message = request(content_proto(FLOATS), content_proto(wide)).SerializeToString()
    read_predict_request(message)
    found = present(KNOWN.read_alike([message], 0))
    template, (elements,) = found
    assert {
        name: TensorView(dtype, shape, data)
        for (name, dtype, shape), data in zip(template.inputs, elements, strict=True)
    } == parse(message, FillBudget(1 << 20)).inputs
    changed = bytearray(message)
    changed[message.index(b"x1") + 1] = ord("y")
    assert KNOWN.read_alike([bytes(changed)], 0) is None
    assert KNOWN.read_alike([changed], 0) is None


def test_requests_that_came_in_parts_are_read_with_the_others() -> None:
    """Their elements stay where they arrived, unless a copy costs less."""
    wide = TensorView(FLOAT32, (1, 200), struct.pack("<200f", *range(200)))
    for proto, is_copied in (
        (content_proto(FLOATS), True),
        (content_proto(wide), False),
    ):
        whole = request(proto).SerializeToString()
        read_predict_request(whole)
        memory = bytearray(whole)
        found = present(KNOWN.read_alike([memoryview(memory), whole], 0))
        _, ((own,), (others,)) = found
        assert own == others
        memory[whole.index(others) : whole.index(others) + 4] = b"abcd"
        assert (own == others) == is_copied
