"""The float types that numpy lacks, to float32 and back.

float8 has so few numbers that a table holds them all: writing looks for the nearest one,
reading looks a code up. Rounding is to nearest, ties to even. A number that is too large
becomes what torch makes it: infinity, NaN, or the largest number (float8_e4m3fn).
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

NARROW_FLOATS: Final = (
    "bfloat16",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)
"""The names of these types, as in signatures."""

# Mantissa bits and exponent bias; the codes of the largest finite number, for what is
# beyond it, and of NaN (all without their sign).
_FORMATS: Final = {
    "float8_e5m2": (2, 15, 0x7B, 0x7C, 0x7E),
    "float8_e4m3fn": (3, 7, 0x7E, 0x7E, 0x7F),
    "float8_e4m3fnuz": (3, 8, 0x7F, 0x80, 0x80),
    "float8_e5m2fnuz": (2, 16, 0x7F, 0x80, 0x80),
}
_SIGN: Final = 0x80


def encode(values: Floats, dtype: str) -> npt.NDArray[Any]:
    """Returns the codes of the nearest numbers: uint16 of bfloat16, else uint8."""
    if dtype == "bfloat16":
        return _encode_bfloat16(values)
    _, _, largest, beyond, nan = _FORMATS[dtype]
    numbers = _magnitudes(dtype)
    is_nan = np.isnan(values)
    sizes = np.where(is_nan, np.float32(0), np.abs(values))
    # The first number that is not smaller; the one before it may be nearer.
    codes = np.searchsorted(numbers[: largest + 2], sizes).clip(1, largest + 1)
    low, high = sizes - numbers[codes - 1], numbers[codes] - sizes
    codes = codes - ((low < high) | ((low == high) & (codes % 2 == 1)))
    codes = np.where(codes > largest, beyond, codes)
    codes = np.where(is_nan, nan, codes)
    has_sign = np.signbit(values)
    if nan == _SIGN:  # one zero and one NaN, which is where -0 would be
        has_sign &= (codes != 0) & (codes != nan)
    return np.asarray(codes | np.where(has_sign, _SIGN, 0), dtype=np.uint8)


def decode(codes: npt.NDArray[Any], dtype: str) -> Floats:
    """Returns the numbers that the codes stand for, exactly."""
    if dtype == "bfloat16":
        return (codes.astype("<u4") << 16).view(np.float32)
    return np.asarray(_numbers(dtype)[codes], dtype=np.float32)


def _encode_bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    bits = np.array(values, dtype=np.float32, order="C").view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    # Rounding could make a NaN infinite.
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


@cache
def _magnitudes(dtype: str) -> npt.NDArray[np.float64]:
    """Returns the number of every code without a sign, and of one code more."""
    mantissa_bits, bias, _, _, _ = _FORMATS[dtype]
    codes = np.arange(_SIGN + 1)
    exponents, mantissas = codes >> mantissa_bits, codes % (1 << mantissa_bits)
    mantissas = np.where(exponents > 0, mantissas + (1 << mantissa_bits), mantissas)
    powers = np.maximum(exponents, 1) - bias - mantissa_bits
    return np.asarray(np.ldexp(mantissas.astype(np.float64), powers), dtype=np.float64)


@cache
def _numbers(dtype: str) -> Floats:
    _, _, largest, beyond, nan = _FORMATS[dtype]
    numbers = _magnitudes(dtype)[:_SIGN].astype(np.float32)
    numbers[largest + 1 :] = np.nan
    if largest < beyond < nan:
        numbers[beyond] = np.inf
    signed = np.concatenate([numbers, -numbers])
    if nan == _SIGN:
        signed[nan] = np.nan
    return signed
