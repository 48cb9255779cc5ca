"""The contents of a request of ModelInfer or /infer, independent of the message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from tfs.codec.model_spec import ModelSpec
from tfs.core.errors import InvalidArgument, Unimplemented
from tfs.core.tensor_view import TensorView

_MAX_VERSION: Final = (1 << 63) - 1
_US_PER_S: Final = 1e6
_NORMAL: Final = 1  # the highest priority; 0 stands for the default, which is no lower

PRIORITY: Final = "priority"
TIMEOUT: Final = "timeout"
SIGNATURE: Final = "signature_name"
BINARY_OUTPUT: Final = "binary_data_output"
BINARY: Final = "binary_data"
BINARY_SIZE: Final = "binary_data_size"


@dataclass(frozen=True, slots=True)
class InferSettings:
    """What the parameters of a request ask for. Immutable.

    Attributes:
        signature_name: The signature; empty for the default one.
        is_low: Whether it gives way to others.
        timeout_s: It fails if it has not begun by then; None for no such limit.
        binary_output: Whether outputs that do not say otherwise are binary, over HTTP.

    """

    signature_name: str = ""
    is_low: bool = False
    timeout_s: float | None = None
    binary_output: bool = False

    @property
    def changes_call(self) -> bool:
        """Whether it asks for a deadline or a priority."""
        return self.is_low or self.timeout_s is not None


NO_SETTINGS: Final = InferSettings()


def read_settings(parameters: Iterable[tuple[str, object]]) -> InferSettings:
    """Returns what the parameters of a request ask for.

    Raises:
        InvalidArgument: One is not known, or has no such value.
        Unimplemented: It belongs to an extension that is not offered.

    """
    values = dict(parameters)
    if not values:
        return NO_SETTINGS
    signature_name = values.pop(SIGNATURE, "")
    if not isinstance(signature_name, str):
        raise InvalidArgument(f"parameter {SIGNATURE} must be a string")
    binary_output = values.pop(BINARY_OUTPUT, False)
    if not isinstance(binary_output, bool):
        raise InvalidArgument(f"parameter {BINARY_OUTPUT} must be a boolean")
    priority = _number(PRIORITY, values.pop(PRIORITY, 0))
    timeout_us = _number(TIMEOUT, values.pop(TIMEOUT, 0))
    for name in values:
        if name.startswith("sequence_"):
            raise Unimplemented(f"parameter {name}: this server keeps no sequences")
        raise InvalidArgument(
            f"parameter {name[:64]!r} means nothing here; requests may have {PRIORITY}, "
            f"{TIMEOUT} (microseconds), {SIGNATURE} and {BINARY_OUTPUT}"
        )
    return InferSettings(
        signature_name,
        priority > _NORMAL,
        timeout_us / _US_PER_S if timeout_us else None,
        binary_output,
    )


def _number(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"parameter {name} must be an integer, 0 or more")
    return value


def check_parameters(
    kind: str, name: str, parameters: Iterable[str], known: str
) -> None:
    """Refuses parameters of an input or an output, but the one that is known."""
    for each in parameters:
        if each.startswith("shared_memory_"):
            raise Unimplemented(
                f"{kind} {name!r}: this server uses no shared memory of clients; tensors "
                "travel in messages"
            )
        if each == "classification" and known == BINARY:
            raise Unimplemented(
                f"{kind} {name!r}: classification is not offered; a model with labels "
                "answers Classify"
            )
        if each != known:
            raise InvalidArgument(
                f"{kind} {name!r}: parameter {each[:64]!r} means nothing here"
            )


def read_version(text: str) -> int | None:
    """Returns the version of that name; None for "", which leaves it to the server.

    Raises:
        InvalidArgument: It is no number.

    """
    if not text:
        return None
    if not text.isdecimal() or len(text) > 19 or int(text) > _MAX_VERSION:
        raise InvalidArgument(
            f"version {text[:64]!r} is no number; leave it out for the version that "
            "answers by default"
        )
    return int(text)


@dataclass(slots=True)
class InferRequestView:
    """A decoded request. Its tensors may borrow the message. Never changed.

    Attributes:
        model_spec: Which model.
        inputs: Tensors by name, in the order sent.
        output_filter: Names of the wanted outputs; empty for all.
        request_id: The caller's name for the request, which the answer repeats.
        settings: What its parameters ask for.
        is_raw: Whether its contents were raw, and so are those of the answer.
        filled_bytes: How much its tensors take beyond what was sent.

    """

    model_spec: ModelSpec | None
    inputs: dict[str, TensorView]
    output_filter: tuple[str, ...] = ()
    request_id: bytes = b""
    settings: InferSettings = NO_SETTINGS
    is_raw: bool = True
    filled_bytes: int = 0
    client_id: ClassVar[bytes | None] = None

    @property
    def is_plain(self) -> bool:
        """Whether it holds a model and raw tensors, and nothing else."""
        return (
            self.is_raw
            and not self.request_id
            and not self.output_filter
            and self.settings == NO_SETTINGS
        )

    def renewed(
        self, inputs: dict[str, TensorView], text: bytes | None
    ) -> InferRequestView:
        """Returns the same request with other tensors and another ``request_id``.

        Raises:
            InvalidArgument: The id is no text.

        """
        if text is not None:
            try:
                text.decode()
            except UnicodeDecodeError:
                raise InvalidArgument(
                    "cannot parse the ModelInferRequest: its id is no UTF-8"
                ) from None
        return InferRequestView(
            self.model_spec,
            inputs,
            self.output_filter,
            text or b"",
            self.settings,
            self.is_raw,
        )
