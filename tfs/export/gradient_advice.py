"""Advice for authors whose model needs gradients, which servers do not compute."""

from __future__ import annotations

import re
from typing import Final

_DIFFERENTIATES: Final = re.compile("requires?[_ ]grad|inference tensor", re.I)
_ADVICE: Final = (
    "Servers call models in torch.inference_mode(): what needs gradients to predict "
    "belongs into 'with torch.inference_mode(False), torch.enable_grad():', with clones "
    "of the inputs"
)
_IN_THREADS: Final = (
    "; a model that starts threads to compute in puts what they do into "
    "'with torch.inference_mode():', which no thread inherits"
)


def gradient_advice(message: str) -> str:
    """Returns what to do about an error that inference mode explains, else ""."""
    if not _DIFFERENTIATES.search(message):
        return ""
    return _ADVICE + (_IN_THREADS if "saved for backward" in message else "")
