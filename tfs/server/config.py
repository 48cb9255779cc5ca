"""A ``ModelServerConfig``, checked whole before anything is changed.

The text format and the messages are TensorFlow Serving's, with fields of ours from
20001 on (docs/configuration.md). What the rest of the server sees is
:class:`ServerConfig`: frozen, validated, one :class:`ModelSettings` a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from google.protobuf import text_format

from sources.version_policy import All, Latest, Specific, VersionPolicy
from tfs.core.errors import FailedPrecondition, InvalidArgument, Unimplemented
from tfs.proto._pool import POOL
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.proto.tfs.v1 import model_config_pb2

DETECT: Final = ""
"""The platform of a model that is told by its content."""

_TENSORFLOW = "tensorflow"  # what unchanged configs say; means "by content" here
_MODEL_TYPE_TENSORFLOW = 1


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What the config says of one model. Immutable.

    Attributes:
        name: The model's name.
        base_path: Absolute path or URL of the directory that holds its versions.
        platform: Name of a platform, or :data:`DETECT`.
        policy: Which of the versions are aspired.
        labels: Version by label.
        primary: Version served to requests that name none; None is the latest.
        keeps_resources: Whether a swap unloads the old version first.

    """

    name: str
    base_path: str
    platform: str = DETECT
    policy: VersionPolicy = field(default_factory=Latest)
    labels: Mapping[str, int] = field(default_factory=dict)
    primary: int | None = None
    keeps_resources: bool = False

    @property
    def pinned_versions(self) -> frozenset[int]:
        """Versions aspired whatever the policy says."""
        return frozenset(() if self.primary is None else (self.primary,))


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The models to serve, by name, and the message they were read from."""

    models: Mapping[str, ModelSettings]
    message: model_server_config_pb2.ModelServerConfig


def single_model(name: str, base_path: str) -> ServerConfig:
    """Returns the config of single-model mode."""
    message = model_server_config_pb2.ModelServerConfig()
    message.model_config_list.config.add(name=name, base_path=base_path)
    return read_config(message)


def read_config_text(text: str, where: str) -> ServerConfig:
    """Reads the text format.

    Raises:
        InvalidArgument: A syntax error, with line and column, or a bad value.
        Unimplemented: A field whose room is not built yet.

    """
    message = model_server_config_pb2.ModelServerConfig()
    try:
        text_format.Parse(text, message, descriptor_pool=POOL)
    except text_format.ParseError as error:
        raise InvalidArgument(f"Invalid protobuf file: '{where}': {error}") from error
    return read_config(message)


def read_config(message: model_server_config_pb2.ModelServerConfig) -> ServerConfig:
    """Validates a config; returns it in our own words.

    Raises:
        InvalidArgument: Naming the model, what is wrong and what is expected.
        Unimplemented: A field whose room is not built yet.

    """
    kind = message.WhichOneof("config")
    if kind == "custom_model_config":
        raise Unimplemented(
            "custom_model_config is not supported; list the models in model_config_list"
        )
    models: dict[str, ModelSettings] = {}
    for model in message.model_config_list.config:
        if model.name in models:
            raise InvalidArgument(
                f"Illegal to list model {model.name} multiple times in config list"
            )
        models[model.name] = _read_model(model)
    return ServerConfig(models, message)


def check_change(old: ServerConfig, new: ServerConfig) -> None:
    """Checks that the running server may go from ``old`` to ``new``.

    Raises:
        FailedPrecondition: A model's platform would change.

    """
    for name, settings in new.models.items():
        before = old.models.get(name)
        if before is not None and before.platform != settings.platform:
            raise FailedPrecondition(
                "Illegal to change a model's platform. For model "
                f"{name} platform was {before.platform or _TENSORFLOW} and new "
                f"platform requested is {settings.platform or _TENSORFLOW}"
            )


def _read_model(model: model_server_config_pb2.ModelConfig) -> ModelSettings:
    name = model.name
    if not name:
        raise InvalidArgument("a model in the config list has no name")
    if model.HasField("logging_config"):
        raise Unimplemented(
            f"model {name}: logging_config: request logging is not built yet"
        )
    traffic = model.traffic
    if traffic.HasField("canary"):
        raise Unimplemented(f"model {name}: traffic.canary: canaries are not built yet")
    if model.HasField("runtime"):
        raise Unimplemented(
            f"model {name}: runtime: choosing interpreters is not built yet"
        )
    for label, version in model.version_labels.items():
        if not label or version < 0:
            raise InvalidArgument(
                f"model {name}: label {label!r} points to version {version}; give a "
                "non-empty label a version >= 0"
            )
    return ModelSettings(
        name=name,
        base_path=_read_base_path(name, model.base_path),
        platform=_read_platform(model),
        policy=_read_policy(name, model.model_version_policy),
        labels=dict(model.version_labels),
        primary=_read_primary(name, traffic),
        keeps_resources=model.transition == model_config_pb2.RESOURCE_PRESERVING,
    )


def _read_base_path(name: str, base_path: str) -> str:
    if not base_path.startswith("/") and "://" not in base_path:
        raise InvalidArgument(
            f"Expected model {name} to have an absolute path or URI; "
            f"got base_path()={base_path}"
        )
    return base_path


def _read_platform(model: model_server_config_pb2.ModelConfig) -> str:
    name, kind, platform = model.name, model.model_type, model.model_platform
    if kind and platform:
        raise InvalidArgument(
            "Illegal setting both ModelServerConfig::model_type (deprecated) and "
            f"ModelServerConfig::model_platform, model name is {name}"
        )
    if kind not in (0, _MODEL_TYPE_TENSORFLOW):
        raise InvalidArgument(
            f"ModelServerConfig::model_type choice {kind} not supported."
        )
    return DETECT if platform in ("", _TENSORFLOW) else platform


def _read_policy(name: str, policy: object) -> VersionPolicy:
    match policy.WhichOneof("policy_choice"):  # type: ignore[attr-defined]
        case "all":
            return All()
        case "specific":
            versions = tuple(policy.specific.versions)  # type: ignore[attr-defined]
            if any(version < 0 for version in versions):
                raise InvalidArgument(f"model {name}: specific versions must be >= 0")
            return Specific(versions)
        case "latest":
            return Latest(max(1, policy.latest.num_versions))  # type: ignore[attr-defined]
        case _:
            return Latest()


def _read_primary(name: str, traffic: model_config_pb2.Traffic) -> int | None:
    if not traffic.HasField("primary"):
        return None
    if traffic.primary < 0:
        raise InvalidArgument(f"model {name}: traffic.primary must be >= 0")
    return traffic.primary
