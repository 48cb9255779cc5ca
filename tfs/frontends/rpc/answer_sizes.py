"""Remembers which models give long answers to short requests.

The size of an answer is known only once it has been computed. If a hundred short
requests are computed together, that is too late: a server of two hundred megabytes grew
to a gigabyte. So models with long answers are remembered, and their requests wait for
room as if they were as long as the answers. Where a signature fixes how long its
answers are, that is known before the first request.
"""

from __future__ import annotations

from math import inf
from typing import Final

LARGE_BYTES: Final = 65_536
"""Requests and answers of at least this many bytes wait for room."""

_MAX_MODELS: Final = 256
_MODEL_SPEC: Final = 0x0A  # field 1 of inference requests, and the name in it
# No longer: one answer of 64 MB has the model's small requests wait for each other.
_REMEMBERED_S: Final = 60.0


class AnswerSizes:
    """The models with long answers, by what a request begins with. Loop-confined.

    ``expect`` may be called on any thread.

    Attributes:
        by_model: For each model, the bytes of its last long answer and when that was.
            Usually empty.

    """

    __slots__ = ("_least_bytes", "by_model")

    def __init__(self) -> None:
        self.by_model: dict[bytes, tuple[int, float]] = {}
        self._least_bytes: dict[bytes, int] = {}  # of models whose signatures tell

    def expect(self, model: str, least_bytes: int) -> None:
        """Notes how long a model's answers are at least, and forgets those it gave.

        To be called when that changes, with 0 when the model is gone.
        """
        key = model.encode()
        if least_bytes >= LARGE_BYTES:
            self._least_bytes[key] = least_bytes
            self.by_model[key] = least_bytes, inf
        else:
            self._least_bytes.pop(key, None)
            self.by_model.pop(key, None)

    def note(self, request: bytes | memoryview, num_bytes: int, now_s: float) -> None:
        """Remembers a long answer to a short request."""
        if num_bytes < LARGE_BYTES or len(request) >= LARGE_BYTES:
            return
        model = model_of(request)
        if model not in self.by_model and len(self.by_model) >= _MAX_MODELS:
            model = b""
        self.by_model[model] = num_bytes, now_s

    def expected_bytes(self, request: bytes | memoryview) -> int:
        """Returns the length of the request or that of its expected answer."""
        size = len(request)
        if size >= LARGE_BYTES or not self.by_model:
            return size
        found = self.by_model.get(model_of(request))
        return size if found is None else max(size, found[0])

    def sweep(self, now_s: float) -> None:
        """Forgets the answers of models that gave no long ones lately."""
        for model, (_, at_s) in list(self.by_model.items()):
            if now_s - at_s > _REMEMBERED_S:
                least_bytes = self._least_bytes.get(model, 0)
                if least_bytes:
                    self.by_model[model] = least_bytes, inf
                else:
                    self.by_model.pop(model, None)


def model_of(request: bytes | memoryview) -> bytes:
    """Returns the model's name if it comes first, where all serializers put it."""
    if len(request) < 4 or request[0] != _MODEL_SPEC or request[2] != _MODEL_SPEC:
        return b""
    return bytes(request[4 : 4 + request[3]])
