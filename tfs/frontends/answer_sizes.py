"""The models that give long answers to short requests.

The length of an answer is known only once it was computed. If a hundred short requests
were computed together, that would be too late: a server of two hundred megabytes grew to
a gigabyte. So a request counts as long as its model's last answer, or as its signature
says that answers are at least.
"""

from __future__ import annotations

from typing import Final

from tfs.frontends.budget import LONG_BYTES

_MAX_MODELS: Final = 256
_MODEL_SPEC: Final = 0x0A  # field 1 of inference requests, and the name in it


class AnswerSizes:
    """The lengths of long answers, by model. Loop-confined, but for ``expect``.

    Attributes:
        by_model: For each model with long answers, how long the last one was. Usually
            empty.

    """

    __slots__ = ("_least_bytes", "by_model")

    def __init__(self) -> None:
        self.by_model: dict[bytes, int] = {}
        self._least_bytes: dict[bytes, int] = {}  # of models whose signatures tell

    def expect(self, model: str, least_bytes: int) -> None:
        """Notes how long a model's answers are at least. Thread-safe.

        To be called when that changes, with 0 when the model is gone.
        """
        key = model.encode()
        if least_bytes >= LONG_BYTES:
            self._least_bytes[key] = self.by_model[key] = least_bytes
        else:
            self._least_bytes.pop(key, None)
            self.by_model.pop(key, None)

    def note(self, request: bytes | memoryview, num_bytes: int) -> None:
        """Notes how long the answer to a request was."""
        model = model_of(request)
        if num_bytes < LONG_BYTES:
            num_bytes = self._least_bytes.get(model, 0)
            if not num_bytes:
                self.by_model.pop(model, None)
                return
        elif model not in self.by_model and len(self.by_model) >= _MAX_MODELS:
            return
        self.by_model[model] = num_bytes

    def expected_bytes(self, request: bytes | memoryview) -> int:
        """Returns the length of the answer, if it is expected to be long; else 0."""
        return self.by_model.get(model_of(request), 0)


def model_of(request: bytes | memoryview) -> bytes:
    """Returns the model's name if it comes first, where all serializers put it."""
    if len(request) < 4 or request[0] != _MODEL_SPEC or request[2] != _MODEL_SPEC:
        return b""
    return bytes(request[4 : 4 + request[3]])
