"""What a request over tf.Examples asks, and which signatures of a version can answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tfs.codec.example import ExampleInput, takes_examples
from tfs.codec.model_spec import ModelSpec
from tfs.codec.multi_inference import InferenceTaskView
from tfs.core.errors import InvalidArgument, Unimplemented
from tfs.core.signature import Method, Signature

_NOUN: Final = {Method.CLASSIFY: "classification", Method.REGRESS: "regression"}
_ANSWERS: Final = {
    Method.CLASSIFY: frozenset({"classes", "scores"}),
    Method.REGRESS: frozenset({"outputs"}),
}
_NO_ANSWER: Final = {
    Method.CLASSIFY: "Expected classification signature outputs to contain at least one "
    'of "classes" or "scores". Signature was',
    Method.REGRESS: "No regression outputs found in SignatureDef",
}
"""Upstream's words."""


@dataclass(frozen=True, slots=True)
class ExampleQuestion:
    """What a Classify, Regress or MultiInference request asks. Immutable.

    Attributes:
        model_spec: Which version answers.
        tasks: Its signatures, and the method that each must have, as they were sent.
            They are checked once the version is known.
        rows: The Examples.

    """

    model_spec: ModelSpec
    tasks: tuple[InferenceTaskView, ...]
    rows: ExampleInput

    @property
    def key(self) -> str:
        """The signature's key; "" if there are several signatures."""
        return self.model_spec.signature_key if len(self.tasks) == 1 else ""

    @property
    def num_rows(self) -> int:
        """How many Examples were sent."""
        return len(self.rows.examples)


@dataclass(frozen=True, slots=True)
class FoundTask:
    """A task that can be run. Immutable."""

    model_spec: ModelSpec
    method: Method
    signature: Signature


def find_tasks(
    signatures: Mapping[str, Signature],
    tasks: Sequence[InferenceTaskView],
    missing: str,
    *,
    check_method: bool,
) -> list[FoundTask]:
    """Returns the tasks with their signatures; all of one model, and none repeated.

    Args:
        signatures: The version's, by key.
        tasks: The tasks in the order in which they were sent.
        missing: The message for a missing signature, up to its key.
        check_method: Whether a signature's method must be the one asked for.

    Raises:
        ServingError: The first thing wrong, in upstream's order.

    """
    found: list[FoundTask] = []
    for task in tasks:
        spec = task.model_spec
        if spec is None or not spec.name:
            raise InvalidArgument("Found ModelSpec with an empty model name.")
        if found and spec.name != found[0].model_spec.name:
            raise InvalidArgument(
                "All ModelSpecs in a MultiInferenceRequest must access the same "
                "model name."
            )
        key = spec.signature_key
        if key in [each.model_spec.signature_key for each in found]:
            raise InvalidArgument(f"Duplicate evaluation of signature: {key}")
        signature = signatures.get(key)
        if signature is None:
            raise InvalidArgument(f"{missing}: {key}")
        method = _method(task.method_name)
        _check_signature(signature, method, check_method=check_method)
        found.append(FoundTask(spec, method, signature))
    return found


def _check_signature(
    signature: Signature, method: Method, *, check_method: bool
) -> None:
    """Returns normally if the signature can answer ``method``."""
    if signature.method is method:
        return
    if check_method or not takes_examples(signature):
        raise InvalidArgument(
            f"Expected {_NOUN[method]} signature method_name to be "
            f"{method.method_name}. Was: {signature.method.method_name}"
        )
    if not _ANSWERS[method] & signature.outputs.keys():
        raise InvalidArgument(f"{_NO_ANSWER[method]}: {sorted(signature.outputs)}")


def _method(name: str) -> Method:
    for method in (Method.CLASSIFY, Method.REGRESS):
        if name == method.method_name:
            return method
    raise Unimplemented(f"Unsupported signature method_name: {name}")
