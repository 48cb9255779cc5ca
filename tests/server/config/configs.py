"""Configs of single models, and overrides of them, as tests write them."""

from __future__ import annotations

from tests.server.environment import config, message, model
from tfs.server.config.overrides import (
    ModelConfig,
    Override,
)
from tfs.server.config.running_config import (
    Base,
    Origin,
)
from tfs.server.config.server_config import read_config_text


def config_of(name: str, extra: str = "", base_path: str = "") -> ModelConfig:
    """Returns one model's config."""
    (found,) = message(model(name, base_path, extra)).model_config_list.config
    return found


def override(name: str, extra: str) -> Override:
    """Returns an override of the fields in ``extra``."""
    config = config_of(name, extra)
    config.ClearField("base_path")
    return Override(config=config, made_by="rollback", since_s=12.5)


PLATFORMS = ("", "hashmap")


def base(*models: str, origin: Origin = Origin.CONFIG_FILE) -> Base:
    """Returns a base."""
    return Base(read_config_text(config(*models), "test"), origin)
