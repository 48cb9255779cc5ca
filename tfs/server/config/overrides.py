"""Operators' changes of single models, which are laid over the base, and the file that keeps them.

An override is a ``ModelConfig`` whose top-level fields, where set, replace those of the
base as a whole. (Protobuf's own merging would, for example, merge two canaries.) It
holds until it is dropped, whatever base comes (running_config).
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping

from tfs.core.errors import FailedPrecondition, InvalidArgument, ServingError
from tfs.core.system.replaced_file import replace_file
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.config.config_file import read_config_file
from tfs.server.config.server_config import Message, config_text, parse_config_text

log = logging.getLogger(__name__)

ModelConfig = model_server_config_pb2.ModelConfig

_FILE_NAME = "overrides.pbtxt"
_PROBE_BYTES = 4096
_NOTE = "# tfs: "  # a comment that carries what a ModelConfig has no field for


Override = pb.OverrideReport
"""One model's override: the name and the fields that replace those of the base, by which
command it was made, and when. It is never changed; a report of it adds the rest."""

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
        made_by, since_s = notes.get(model.name, ("", 0.0))
        overrides[model.name] = Override(config=model, made_by=made_by, since_s=since_s)
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


class OverridesFile:
    """``overrides.pbtxt`` of one state directory. Confined to one thread at a time.

    If the file cannot be read, the server starts without overrides and says so. The
    file stays where it is, so that every start says it again. When an override is
    written, the file is moved aside to ``overrides.pbtxt.unreadable``.

    Args:
        state_dir: The directory; "" keeps overrides in memory only.

    Attributes:
        path: The file; "" for none.
        problem: Why the file could not be read; "" if it could.
        obstacle: Why nothing could be written the last time; "" if it could.

    """

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self.path = os.path.join(state_dir, _FILE_NAME) if state_dir else ""
        self.problem = ""
        self.obstacle = ""

    def read(self) -> dict[str, Override]:
        """Returns the overrides in the file; none if there is no file or it is damaged.

        Does not raise; see ``problem`` and ``obstacle``.
        """
        if not self.path:
            return {}
        self.obstacle = self._find_obstacle()
        if self.obstacle:
            log.warning("event=state_dir_unwritable problem=%s", self.obstacle)
        try:
            os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError:
            pass  # reading the file will report the error
        try:
            return read_overrides(read_config_file(self.path), self.path)
        except ServingError as error:
            self.problem = (
                f"the overrides in {self.path} cannot be used, none is in force: "
                f"{error.message}; repair the file and restart, or make them anew (the "
                "file then moves aside)"
            )
            log.error("event=overrides_unreadable problem=%s", self.problem)
            return {}

    def write(self, overrides: Overrides) -> None:
        """Replaces the file; after a crash it is either the old or the new one, complete.

        Raises:
            FailedPrecondition: It cannot be written; the old one is still there.

        """
        if not self.path:
            return
        try:
            os.makedirs(self._state_dir, exist_ok=True)
            replace_file(
                self.path,
                overrides_text(overrides),
                is_durable=True,
                old_path=f"{self.path}.unreadable" if self.problem else "",
            )
        except OSError as error:
            self.obstacle = self._cannot_keep(error)
            raise FailedPrecondition(
                f"cannot keep overrides in {self.path}: {error.strerror}; nothing "
                "was changed: mend that, or have it in the configuration (tfs reload), "
                "for which nothing is written"
            ) from error
        self.problem = self.obstacle = ""

    def _find_obstacle(self) -> str:
        try:
            os.makedirs(self._state_dir, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._state_dir, buffering=0) as file:
                # An empty file can be made even if the disk is full.
                file.write(bytes(_PROBE_BYTES))
        except OSError as error:
            return self._cannot_keep(error)
        return ""

    def _cannot_keep(self, error: OSError) -> str:
        return f"nothing can be kept in {self._state_dir}: {error.strerror}"
