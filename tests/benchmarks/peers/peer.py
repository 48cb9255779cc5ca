"""What the benchmark wants to know of another server, and who is running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.benchmarks.peers.exchange import Exchange
from tests.benchmarks.peers.workload import Workload

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Need:
    """Something outside Python packages that a server cannot run without.

    Attributes:
        what: a program on PATH, or a library's file name.
        command: installs it.
    """

    what: str
    command: str


@dataclass(frozen=True, slots=True)
class Setting:
    """What a server is started for.

    Attributes:
        folder: its own, empty.
        python: of the server's environment.
        ports: free ones on loopback, as many as the peer asked for.
    """

    workload: Workload
    is_batching: bool
    folder: Path
    python: Path
    ports: Sequence[int]

    @property
    def max_batch_size(self) -> int:
        return self.workload.max_batch_size if self.is_batching else 1

    @property
    def packages(self) -> Path:
        """Where the environment's packages lie."""
        return next(self.python.parents[1].glob("lib/python3*/site-packages"))


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server is started.

    Attributes:
        announcement: matches its output once the server listens; one group.
        target: host and port that requests go to; "" is what the group matched.
    """

    command: Sequence[str]
    announcement: str
    target: str
    environment: Mapping[str, str] = field(default_factory=dict)


class Peer(Protocol):
    """Another server. Immutable; an implementation is one module here.

    Its packages are `requirements/<name>.txt`, complete and pinned.
    """

    @property
    def name(self) -> str:
        """What it is called in rows and folders."""
        ...

    @property
    def needs(self) -> tuple[Need, ...]:
        """What it cannot run without, its packages apart."""
        ...

    @property
    def num_ports(self) -> int:
        """How many ports it takes."""
        ...

    def exchange(self, workload: Workload, *, is_batching: bool) -> Exchange:
        """Returns its best transport for that and the messages on it."""
        ...

    def launch(self, setting: Setting) -> Launch:
        """Writes what the server reads into the folder; returns how to start it."""
        ...
