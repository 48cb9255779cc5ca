"""The contents of a request of ModelInfer or /infer, independent of the message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

from tfs.codec.model_spec import ModelSpec
from tfs.core.errors import InvalidArgument, ServingError, Unimplemented
from tfs.core.tensor_view import TensorView

T = TypeVar("T")

_MAX_VERSION: Final = (1 << 63) - 1
_US_PER_S: Final = 1e6
_NORMAL: Final = 1  # the highest priority; 0 stands for the default, which is no lower

PRIORITY: Final = "priority"
TIMEOUT: Final = "timeout"
SIGNATURE: Final = "signature_name"
BINARY_OUTPUT: Final = "binary_data_output"
BINARY: Final = "binary_data"
BINARY_SIZE: Final = "binary_data_size"

_NOT_OFFERED: Final = {
    **dict.fromkeys(
        ("sequence_id", "sequence_start", "sequence_end"),
        "this server keeps no sequences",
    ),
    **dict.fromkeys(
        ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"),
        "this server uses no shared memory of clients; tensors travel in messages",
    ),
    "classification": "classification is not offered; a model with labels answers "
    "Classify",
}
"""Parameters of Triton's extensions, and what is said of them."""


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


def read_settings(parameters: Mapping[str, object]) -> InferSettings:
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
    _check_names(
        "requests", values, f"{PRIORITY}, {TIMEOUT} (us), {SIGNATURE}, {BINARY_OUTPUT}"
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


def _check_names(whose: str, names: Iterable[str], known: str) -> None:
    """Refuses parameters of these names, but for one that is known."""
    for name in names:
        if name == known:
            continue
        if name in _NOT_OFFERED:
            raise Unimplemented(f"{whose}: parameter {name!r}: {_NOT_OFFERED[name]}")
        raise InvalidArgument(
            f"{whose}: parameter {name[:64]!r} means nothing here; known: {known}"
        )


def read_inputs(
    inputs: Iterable[tuple[str, Iterable[str], T]], read: Callable[[T], TensorView]
) -> dict[str, TensorView]:
    """Returns tensors by name, in the order sent.

    Each comes as its name, the names of its parameters, and what ``read`` takes.

    Raises:
        ServingError: What ``read`` raises, with the input's name; or one comes twice, or
            has a parameter that means nothing here.

    """
    views: dict[str, TensorView] = {}
    for name, parameters, each in inputs:
        if name in views:
            raise InvalidArgument(f"input {name!r} comes twice")
        _check_names(f"input {name!r}", parameters, BINARY_SIZE)
        try:
            views[name] = read(each)
        except ServingError as error:
            raise type(error)(
                f"tensor parsing error: {name}: {error.message}"
            ) from error
    return views


def read_outputs(
    outputs: Iterable[tuple[str, Mapping[str, object]]],
) -> dict[str, bool | None]:
    """Returns by name whether each wanted output is to be binary, if it says so.

    Raises:
        ServingError: One comes twice, or has a parameter that means nothing here.

    """
    wanted: dict[str, bool | None] = {}
    for name, parameters in outputs:
        if name in wanted:
            raise InvalidArgument(f"output {name!r} comes twice")
        _check_names(f"output {name!r}", parameters, BINARY)
        is_binary = parameters.get(BINARY)
        if is_binary is not None and not isinstance(is_binary, bool):
            raise InvalidArgument(f"output {name!r}: {BINARY} must be a boolean")
        wanted[name] = is_binary
    return wanted


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
    client_id: ClassVar[bytes | None] = None  # as in requests of Predict

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
