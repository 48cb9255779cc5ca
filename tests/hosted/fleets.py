"""Fleets for tests: state in a file of a test's own, changed by edits."""

from __future__ import annotations

from pathlib import Path

from tfs.core.clock import Clock
from tfs.core.errors import InvalidArgument
from tfs.hosted import edits
from tfs.hosted.fleet import (
    Fleet,
    HostedModel,
    Job,
    ModelConfig,
    config_text,
    read_config,
)
from tfs.hosted.fleet_state import Edit, FleetState
from tfs.hosted.store.sqlite import SqliteStore

MIB = 1 << 20


def state_in(folder: Path, clock: Clock | None = None) -> FleetState:
    """Returns the fleet whose store is in a folder."""
    return FleetState(SqliteStore(str(folder / "fleet.db"), clock))


def server(address: str, memory_bytes: int, partition: str = "") -> Job:
    """Returns a job of one server that somebody else runs."""
    return Job(address, memory_bytes, partition, addresses=(address,))


def config(name: str, extra: str = "") -> ModelConfig:
    """Returns the config of a model."""
    return read_config(f'name: "{name}" base_path: "/models/{name}" {extra}')


def model(
    name: str, memory_bytes: int = 20 * MIB, least: int = 1, most: int = 0
) -> HostedModel:
    """Returns a model of a stated size."""
    text = config_text(config(name))
    return HostedModel(
        name, text, memory_bytes, False, least, most or least, num_replicas=least
    )


def check(config: ModelConfig) -> None:
    """Refuses the platform "absent", as a server refuses what it does not know."""
    if config.model_platform == "absent":
        raise InvalidArgument("no such platform")


class EditedFleet:
    """A fleet without a store, changed by edits."""

    def __init__(self, *jobs: Job) -> None:
        self.fleet = Fleet()
        for job in jobs:
            self.apply(edits.put_job(job))

    def apply(self, edit: Edit) -> Fleet:
        """Makes an edit; the fleet stays as it is if that raises."""
        self.fleet = edit.apply(self.fleet)
        return self.fleet
