"""The contents of a PredictRequest, independent of the message."""

from __future__ import annotations

from tfs.codec.model_spec import ModelSpec
from tfs.core.tensor_view import TensorView


class PredictRequestView:
    """A decoded ``PredictRequest``. Its tensors may borrow the message. Immutable.

    Attributes:
        model_spec: Which model; None if the request has none. Equal specs are often
            the same object, so it may be looked up by identity.
        inputs: Tensors by name, in the order sent.
        output_filter: Names of the wanted outputs, as sent; empty for all.
        client_id: The caller's name for itself; None if it sent none.
        filled_bytes: How much its tensors take beyond what was sent.

    """

    __slots__ = ("client_id", "filled_bytes", "inputs", "model_spec", "output_filter")

    def __init__(
        self,
        model_spec: ModelSpec | None,
        inputs: dict[str, TensorView],
        output_filter: tuple[str, ...] = (),
        client_id: bytes | None = None,
        filled_bytes: int = 0,
    ) -> None:
        self.model_spec = model_spec
        self.inputs = inputs
        self.output_filter = output_filter
        self.client_id = client_id
        self.filled_bytes = filled_bytes

    @property
    def is_plain(self) -> bool:
        """Whether it holds a model and tensors, and nothing else."""
        return (
            self.model_spec is not None
            and not self.output_filter
            and self.client_id is None
        )

    def renewed(
        self, inputs: dict[str, TensorView], text: bytes | None
    ) -> PredictRequestView:
        """Returns the same request with other tensors and another ``client_id``."""
        return PredictRequestView(self.model_spec, inputs, self.output_filter, text)

    def __eq__(self, other: object) -> bool:
        """Equal in all that the request says."""
        if not isinstance(other, PredictRequestView):
            return NotImplemented
        return (self.model_spec, self.inputs, self.output_filter, self.client_id) == (
            other.model_spec,
            other.inputs,
            other.output_filter,
            other.client_id,
        )

    __hash__ = None  # type: ignore[assignment]  # tensors have none

    def __repr__(self) -> str:
        return (
            f"PredictRequestView({self.model_spec}, {self.inputs}, "
            f"{self.output_filter}, {self.client_id!r})"
        )
