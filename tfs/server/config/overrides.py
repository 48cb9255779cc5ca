"""Operators' changes of single models, which are laid over the base.

An override is a ``ModelConfig`` whose top-level fields, where set, replace those of the
base as a whole. (Protobuf's own merging would, for example, merge two canaries.) It
holds until it is dropped, whatever base comes (running_config).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tfs.core.errors import InvalidArgument
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.server.config.server_config import Message, config_text, parse_config_text

ModelConfig = model_server_config_pb2.ModelConfig

_NOTE = "# tfs: "  # a comment that carries what a ModelConfig has no field for


@dataclass(frozen=True, slots=True)
class Override:
    """One model's override. Immutable; the message is never changed.

    Attributes:
        config: The name, and the fields that replace those of the base.
        made_by: "canary", "promote" or "rollback".
        since_s: When it was made, in seconds since the epoch; 0 if unknown.

    """

    config: ModelConfig
    made_by: str = ""
    since_s: float = 0.0


Overrides = Mapping[str, Override]
"""The override of each model, by its name."""


def overridden(model: ModelConfig, override: ModelConfig) -> ModelConfig:
    """Returns ``model`` with the fields of ``override``, each replaced as a whole."""
    result = ModelConfig()
    result.CopyFrom(model)
    for field, _ in override.ListFields():
        result.ClearField(field.name)
    result.MergeFrom(override)
    return result


def changed_fields(old: ModelConfig, new: ModelConfig) -> tuple[str, ...]:
    """Returns the names of the top-level fields that differ, by field number."""
    before, after = (
        {field.name: value for field, value in each.ListFields()} for each in (old, new)
    )
    return tuple(
        field.name
        for field in ModelConfig.DESCRIPTOR.fields
        if before.get(field.name) != after.get(field.name)
    )


def overrides_text(overrides: Overrides) -> str:
    """Returns the text form, a ``ModelServerConfig``, which reads back equal."""
    message = Message()
    message.model_config_list.SetInParent()
    lines = [
        "# Written by tfs: overrides of single models, laid over the configuration.",
        "# Change them with tfs canary, promote, rollback and config reset.",
    ]
    for name in sorted(overrides):
        override = overrides[name]
        message.model_config_list.config.add().CopyFrom(override.config)
        note = {
            "model": name,
            "made_by": override.made_by,
            "since_s": override.since_s,
        }
        lines.append(f"{_NOTE}{json.dumps(note)}")
    return "\n".join((*lines, config_text(message)))


def read_overrides(text: str, where: str) -> dict[str, Override]:
    """Reads the text form.

    Raises:
        InvalidArgument: It is damaged; says where. None of it can be used.

    """
    message = parse_config_text(text, where)
    if text.strip() and message.WhichOneof("config") != "model_config_list":
        raise InvalidArgument(f"{where} holds no model_config_list")
    notes = _notes(text)
    overrides: dict[str, Override] = {}
    for model in message.model_config_list.config:
        if not model.name or model.name in overrides:
            raise InvalidArgument(
                f"{where}: every override needs a model name of its own: {model.name!r}"
            )
        config = ModelConfig()
        config.CopyFrom(model)
        made_by, since_s = notes.get(model.name, ("", 0.0))
        overrides[model.name] = Override(config, made_by, since_s)
    return overrides


def _notes(text: str) -> dict[str, tuple[str, float]]:
    """Reads the comments; a damaged one counts as absent."""
    notes = {}
    for line in text.splitlines():
        if not line.startswith(_NOTE):
            continue
        try:
            note = json.loads(line.removeprefix(_NOTE))
            notes[str(note["model"])] = str(note["made_by"]), float(note["since_s"])
        except (ValueError, KeyError, TypeError):
            continue
    return notes
