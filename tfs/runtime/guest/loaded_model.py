"""A model in a worker, with everything that answering a call needs."""

from __future__ import annotations

from tfs.core.errors import ServingError, Unavailable
from tfs.runtime.guest.guest_model import GuestModel
from tfs.runtime.guest.model_source import ModelSource


class LoadedModel:
    """Immutable.

    Args:
        source: The version.
        guest: The model, which answers calls.

    """

    __slots__ = ("__weakref__", "guest", "input_names", "signature_names", "source")

    def __init__(self, source: ModelSource, guest: GuestModel) -> None:
        self.source = source
        self.guest = guest
        # Both sides use the order of the source's mappings.
        self.signature_names = tuple(source.signatures)
        self.input_names = tuple(tuple(s.inputs) for s in source.signatures.values())


def not_loaded() -> ServingError:
    """Returns the answer to a request for a model that is not loaded here."""
    return Unavailable("the model is not loaded on this interpreter; retry")
