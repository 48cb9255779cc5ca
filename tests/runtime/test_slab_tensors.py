"""A worker's side of the slab: tensors in place, and out of it bit by bit."""

from __future__ import annotations

import pytest
import torch

from tfs.runtime.guest.slab import DTYPE_CODES, Slab
from tfs.runtime.guest.torch_tensor import DTYPE_OF, plain
from tfs.runtime.guest.worker.slab_tensors import InputReader, OutputWriter


@pytest.fixture
def slab() -> Slab:
    return Slab.create(1 << 20, 1)  # unmapped with the last tensor over it


def written(slab: Slab, output: torch.Tensor) -> bytes:
    """What a writer leaves in the slab for an output, after saying where."""
    slot = slab.slots[0]
    words, overflow_fd = OutputWriter(slab).write(slot, {"y": output})
    assert overflow_fd is None
    code, offset, size_bytes, rank, *shape = words
    assert code == DTYPE_CODES[DTYPE_OF[output.dtype]]
    assert (rank, *shape) == (output.dim(), *output.shape)
    return slab.map[offset : offset + size_bytes]


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(plain(tensor).flatten().view(torch.uint8).tolist())


@pytest.mark.parametrize("dtype", list(DTYPE_OF), ids=str)
def test_every_bit_of_an_output_is_kept(slab: Slab, dtype: torch.dtype) -> None:
    """NaNs with a payload, denormals and negative zeros are copied as they are."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (240,), dtype=torch.uint8, generator=generator)
    if dtype is torch.bool:
        raw %= 2
    values = raw.view(dtype).reshape(3, -1)
    for output in (values, values[:, ::2], values.t(), values[1]):
        assert written(slab, output) == bits(output.contiguous())


def test_pending_operations_are_carried_out(slab: Slab) -> None:
    """Conjugated, negated and sparse outputs go out as what they mean."""
    complex_values = torch.tensor([[1 + 2j, 3 - 4j]])
    assert written(slab, complex_values.conj()) == bits(
        complex_values.conj().resolve_conj()
    )
    negated = torch.imag(complex_values.conj())
    assert negated.is_neg()
    assert written(slab, negated) == bits(negated.resolve_neg())
    sparse = torch.eye(3).to_sparse()
    assert written(slab, sparse) == bits(torch.eye(3))


def test_outputs_without_elements_take_no_room(slab: Slab) -> None:
    """A tensor of no rows is described like any other."""
    assert written(slab, torch.zeros(0, 4)) == b""


def test_an_output_of_one_shape_is_written_anew_each_time(slab: Slab) -> None:
    """What a writer remembers of a shape is its place, not its contents."""
    writer, slot = OutputWriter(slab), slab.slots[1]
    for value in (1.0, 2.0):
        words, _ = writer.write(slot, {"y": torch.full((2, 2), value)})
        data = slab.map[words[1] : words[1] + words[2]]
        assert data == bits(torch.full((2, 2), value))


def test_inputs_are_tensors_of_their_own_over_one_memory(slab: Slab) -> None:
    """A model that reshapes its input in place does not reshape the next call's."""
    reader, slot = InputReader(slab.map), slab.slots[0]
    code = DTYPE_CODES[DTYPE_OF[torch.float32]]
    words = (0, code, slot.input_offset, 24, 2, 2, 3)
    slab.write_words(slot.request_word, words)
    descriptor = slab.map[slot.request_byte : slot.request_byte + 8 * len(words)]
    with torch.inference_mode():
        first = reader.read(("x",), descriptor, None)["x"]
        assert isinstance(first, torch.Tensor)
        first.fill_(7.0)
        first.t_().unsqueeze_(0)
        second = reader.read(("x",), descriptor, None)["x"]
    assert isinstance(second, torch.Tensor)
    assert second.tolist() == [[7.0, 7.0, 7.0], [7.0, 7.0, 7.0]]
    assert second.untyped_storage().nbytes() == 24


def test_signatures_of_one_shape_keep_their_names(slab: Slab) -> None:
    """What is remembered of a request goes by the names of its inputs too."""
    reader, slot = InputReader(slab.map), slab.slots[0]
    code = DTYPE_CODES[DTYPE_OF[torch.float32]]
    slab.write_words(slot.request_word, (0, code, slot.input_offset, 4, 1, 1))
    descriptor = slab.map[slot.request_byte : slot.request_byte + 48]
    assert list(reader.read(("a",), descriptor, None)) == ["a"]
    assert list(reader.read(("b",), descriptor, None)) == ["b"]
