"""tfs.client.arrays: floats that numpy has no dtype for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tfs.client.arrays import NARROW_FLOATS, decode, encode


def _interesting(dtype: str) -> torch.Tensor:
    """Every number of the type, what lies between two of them, and what is beyond."""
    kind = getattr(torch, dtype)
    if dtype == "bfloat16":
        bits = torch.arange(0, 1 << 16, 7, dtype=torch.int32).to(torch.int16)
        exact = bits.view(torch.bfloat16).float()
    else:
        exact = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(kind).float()
    finite = exact[exact.isfinite()].sort().values
    middles = (finite[1:] + finite[:-1]) / 2
    beside = torch.cat(
        [torch.nextafter(middles, each) for each in (finite[1:], finite[:-1])]
    )
    seeded = torch.randn(2000, generator=torch.manual_seed(0)) * 100
    far = torch.tensor([448, 464, 465, 480, 61440, 61441, 1e9, 248, 249, 1e-9, 0.0])
    special = torch.tensor([float("inf"), float("nan")])
    values = torch.cat([exact, middles, beside, seeded, far, special])
    return torch.cat([values, -values])


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_numbers_are_rounded_as_torch_does(dtype: str) -> None:
    """The code of every number is torch's: exact, between two, too large, or none."""
    values = _interesting(dtype)
    wanted = values.to(getattr(torch, dtype))
    codes = encode(values.numpy(), dtype)
    assert codes.itemsize == wanted.element_size()
    np.testing.assert_array_equal(decode(codes, dtype), wanted.float().numpy())
    is_number = ~values.isnan().numpy()
    own = wanted.view(torch.uint8 if codes.itemsize == 1 else torch.uint16).numpy()
    np.testing.assert_array_equal(codes[is_number], own[is_number])


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_shapes_stay(dtype: str) -> None:
    """Scalars and tensors without elements are converted too."""
    for shape in ((), (0, 3), (2, 1)):
        codes = encode(np.ones(shape, dtype=np.float32), dtype)
        assert codes.shape == shape
        assert decode(codes, dtype).shape == shape
