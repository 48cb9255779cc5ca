"""The RPC source: a fleet's synchronizer says what the server serves.

Each message is the whole wanted state. It is on disk before it is acknowledged, so that a
restarted server goes on from there, whether or not anybody calls it. A server belongs to
the first fleet that claims it.

("TensorFlow-Serving", section 3.1: the Synchronizer "instructs serving jobs which
models/versions to keep loaded"; section 2.1.1 has Sources that are not a file system.)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from google.protobuf.message import DecodeError

from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    Unavailable,
)
from tfs.core.replaced_file import replace_file
from tfs.proto.tensorflow_serving.config.model_server_config_pb2 import (
    ModelServerConfig,
)
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.options import ServerOptions, SourceKind

log = logging.getLogger(__name__)

FILE_NAME: Final = "fleet.pb"


@dataclass(frozen=True, slots=True)
class FleetClaim:
    """To which fleet a server belongs, and the last that it was told. Immutable.

    Attributes:
        fleet: The fleet's id, made with its store.
        name: How people call the fleet.
        epoch: Grows with each synchronizer that begins to lead.
        revision: The revision of the fleet's store that the message follows.
        sequence: Counts the messages of an epoch.

    """

    fleet: str
    name: str
    epoch: int = 0
    revision: int = 0
    sequence: int = 0

    def check_successor(self, other: FleetClaim) -> None:
        """Raises FailedPrecondition unless ``other`` is of this fleet, and not older."""
        if other.fleet != self.fleet:
            raise FailedPrecondition(
                f"this server belongs to the fleet {self.name} ({self.fleet}), not to "
                f"{other.name} ({other.fleet}): tfs hosted release gives it free, or "
                "claim it with --take_over"
            )
        if (other.epoch, other.sequence) < (self.epoch, self.sequence):
            raise FailedPrecondition(
                f"message {other.sequence} of epoch {other.epoch} comes after message "
                f"{self.sequence} of epoch {self.epoch}: another synchronizer leads the "
                f"fleet {self.name} now"
            )
        if other.revision < self.revision:
            raise FailedPrecondition(
                f"the store of the fleet {self.name} is at revision {other.revision}, "
                f"and this server was told revision {self.revision}: it is an older copy; "
                "put the newest back, or claim the server with --take_over"
            )


def awaits_fleet(options: ServerOptions) -> bool:
    """Whether a server has nothing to serve until a fleet claims it."""
    if options.source is not SourceKind.RPC:
        return False
    return not os.path.exists(os.path.join(options.state_dir, FILE_NAME))


class FleetFile:
    """Keeps the claim and the config on disk. Not thread-safe; blocks on the disk.

    They are kept as a message: the text of ten thousand models takes 0.2 s to write.

    Args:
        state_dir: The directory; made if it is not there.

    """

    def __init__(self, state_dir: str) -> None:
        self.path = os.path.join(state_dir, FILE_NAME)
        os.makedirs(state_dir, exist_ok=True)

    def read(self) -> pb.AspireRequest:
        """Returns what was written last; without a claim and models if nothing was.

        Raises:
            DataLoss: The file is damaged.

        """
        try:
            with open(self.path, "rb") as file:
                told = pb.AspireRequest.FromString(file.read())
            check_complete(told)
        except FileNotFoundError:
            told = pb.AspireRequest()
            told.config.model_config_list.SetInParent()
        except (OSError, DecodeError, InvalidArgument) as error:
            raise DataLoss(
                f"what the fleet said last cannot be read from {self.path}: {error}; "
                "remove the file to start without models"
            ) from error
        return told

    def write(self, claim: FleetClaim | None, config: ModelServerConfig) -> None:
        """Replaces both; after a crash both are old or both new.

        Raises:
            Unavailable: The disk takes nothing; the old ones are still there.

        """
        told = pb.AspireRequest(claim=claim_report(claim), config=config)
        told.num_models = len(config.model_config_list.config)
        try:
            replace_file(self.path, told.SerializeToString(), is_durable=True)
        except OSError as error:
            raise Unavailable(
                f"cannot keep what the fleet says in {self.path}: {error.strerror}"
            ) from error


class FleetSource:
    """Follows one fleet. For the thread that changes configs; blocks on the disk.

    Args:
        file: Where the claim and the config are kept.

    Attributes:
        on_claimed: Called when a fleet claims the server, if none had.

    """

    def __init__(self, file: FleetFile) -> None:
        self._file = file
        told = file.read()
        self._claim = claim_of(told.claim) if told.HasField("claim") else None
        self._config = told.config
        self.on_claimed: Callable[[], None] = lambda: None

    @property
    def claim(self) -> FleetClaim | None:
        """The fleet that it belongs to, for any thread; None if none has claimed it."""
        return self._claim

    def admit(self, request: pb.AspireRequest) -> None:
        """Checks a message, and notes who speaks before its config is put in force.

        Raises:
            InvalidArgument: It is incomplete.
            FailedPrecondition: It is of another fleet, or older than what was told.
            Unavailable: The disk takes nothing.

        """
        claim = claim_of(request.claim)
        if not claim.fleet:
            raise InvalidArgument("the message names no fleet")
        check_complete(request)
        held = self._claim
        if held is not None and not request.take_over:
            held.check_successor(claim)
        if held is None or (held.fleet, held.epoch) != (claim.fleet, claim.epoch):
            # Whoever spoke before is refused from here on, also after a crash.
            self._file.write(claim, self._config)
            self._claim = claim
            if held is None:
                self.on_claimed()
            log.warning(
                "event=fleet_claimed fleet=%s epoch=%d", claim.name, claim.epoch
            )

    def note(self, request: pb.AspireRequest) -> None:
        """Notes a message whose config is in force.

        Raises:
            Unavailable: The disk takes nothing: a restart would not know of it.

        """
        claim = claim_of(request.claim)
        self._file.write(claim, request.config)
        self._claim, self._config = claim, request.config

    def leave(self) -> FleetClaim | None:
        """Forgets the fleet and returns it; what is served stays.

        Raises:
            Unavailable: The disk takes nothing; the server still belongs to it.

        """
        left = self._claim
        self._file.write(None, self._config)
        self._claim = None
        log.warning("event=fleet_left fleet=%s", left.name if left else "none")
        return left


def check_complete(told: pb.AspireRequest) -> None:
    """Raises InvalidArgument unless a message has as many models as it says."""
    listed = len(told.config.model_config_list.config)
    if not told.HasField("num_models") or told.num_models != listed:
        said = told.num_models if told.HasField("num_models") else "no number"
        raise InvalidArgument(
            f"the message is incomplete: {listed} models, and it speaks of {said}"
        )


def claim_of(message: pb.FleetClaim) -> FleetClaim:
    """Returns the claim in a message."""
    return FleetClaim(
        message.fleet, message.name, message.epoch, message.revision, message.sequence
    )


def claim_report(claim: FleetClaim | None) -> pb.FleetClaim | None:
    """Returns the message of a claim."""
    return None if claim is None else pb.FleetClaim(**asdict(claim))
