"""Messages with something wrong about them, the same every time."""

from __future__ import annotations

import random


def mutated(message: bytes, seed: int) -> bytes:
    """Changes, drops, inserts, doubles or cuts some bytes."""
    rng = random.Random(seed)
    data = bytearray(message)
    for _ in range(rng.randrange(3)):
        where = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if data:
                data[where % len(data)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[where % len(data)] = rng.choice((0, 1, 0x12, 0x7F, 0x80, 0xFF))
            case 2:
                del data[where : where + rng.randrange(4)]
            case 3:
                data[where:where] = rng.randbytes(rng.randrange(4))
            case 4:
                stop = where + rng.randrange(40)
                data[where:where] = data[where:stop]
            case _:
                del data[where:]
    return bytes(data)
