"""Operators' changes of single models, which are laid over the base.

An override is a ``ModelConfig`` whose top-level fields, where set, replace those of the
base as a whole. (Protobuf's own merging would, for example, merge two canaries.) It
holds until it is dropped, survives every new base, and is kept while its model is not
configured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tfs.core.errors import InvalidArgument, ServingError
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


@dataclass(frozen=True, slots=True)
class Laid:
    """A base with overrides laid over it. Immutable.

    Attributes:
        message: The result.
        active: The overrides that make a difference, by model.
        inactive: Why an override has no effect, by model: its model is not configured.
        redundant: Models whose override says the same as the base, to be dropped.

    """

    message: Message
    active: Overrides
    inactive: Mapping[str, str]
    redundant: frozenset[str]


def lay_over(base: Message, overrides: Overrides) -> Laid:
    """Returns the result of ``base`` and ``overrides``; changes neither.

    Without overrides the result is ``base`` itself.
    """
    if not overrides:
        return Laid(base, {}, {}, frozenset())
    message = Message()
    message.CopyFrom(base)
    active: dict[str, Override] = {}
    redundant: set[str] = set()
    seen: set[str] = set()
    for model in message.model_config_list.config:
        override = overrides.get(model.name)
        if override is None:
            continue
        seen.add(model.name)
        laid = overridden(model, override.config)
        if _meaning(laid) == _meaning(model):
            redundant.add(model.name)
        else:
            active[model.name] = override
            model.CopyFrom(laid)
    inactive = {
        name: f"no model {name} in the configuration"
        for name in overrides
        if name not in seen
    }
    return Laid(message, active, inactive, frozenset(redundant))


def overridden(model: ModelConfig, override: ModelConfig) -> ModelConfig:
    """Returns ``model`` with the fields of ``override``, each replaced as a whole."""
    result = ModelConfig()
    result.CopyFrom(model)
    for field, _ in override.ListFields():
        result.ClearField(field.name)
    result.MergeFrom(override)
    return result


def _meaning(model: ModelConfig) -> ModelConfig:
    """Returns ``model`` without parts that mean nothing, such as an empty traffic."""
    if not model.HasField("traffic") or model.traffic.ByteSize():
        return model
    result = ModelConfig()
    result.CopyFrom(model)
    result.ClearField("traffic")
    return result


def changed_fields(old: ModelConfig, new: ModelConfig) -> tuple[str, ...]:
    """Returns the names of the top-level fields that differ, by field number."""
    names = []
    for field in ModelConfig.DESCRIPTOR.fields:
        one, other = ModelConfig(), ModelConfig()
        one.CopyFrom(old)
        other.CopyFrom(new)
        for each in ModelConfig.DESCRIPTOR.fields:
            if each.name != field.name:
                one.ClearField(each.name)
                other.ClearField(each.name)
        if one != other:
            names.append(field.name)
    return tuple(names)


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


def invalid_with(name: str, error: ServingError) -> ServingError:
    """Returns the refusal of a base that an override makes invalid."""
    return type(error)(
        f"{error.message} (with the override of {name} laid over the configuration; "
        f"tfs config reset {name} drops it)"
    )
