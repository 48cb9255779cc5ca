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
from typing import Final

from google.protobuf.message import DecodeError

from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    Unavailable,
)
from tfs.core.system.replaced_file import replace_file
from tfs.proto.tensorflow_serving.config.model_server_config_pb2 import (
    ModelServerConfig,
)
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.options import ServerOptions, SourceKind

log = logging.getLogger(__name__)

FILE_NAME: Final = "fleet.pb"


def awaits_fleet(options: ServerOptions) -> bool:
    """Whether a server has nothing to serve until a fleet claims it."""
    if options.source is not SourceKind.RPC:
        return False
    return not os.path.exists(os.path.join(options.state_dir, FILE_NAME))


def read_told(state_dir: str) -> pb.AspireRequest:
    """Returns what a fleet said last; without a claim and models if nothing was.

    Blocks on the disk, as :func:`keep_told` does; the directory is made if it is not there.

    Raises:
        DataLoss: The file is damaged.

    """
    os.makedirs(state_dir, exist_ok=True)
    path = os.path.join(state_dir, FILE_NAME)
    try:
        with open(path, "rb") as file:
            told = pb.AspireRequest.FromString(file.read())
        check_complete(told)
    except FileNotFoundError:
        told = pb.AspireRequest()
        told.config.model_config_list.SetInParent()
    except (OSError, DecodeError, InvalidArgument) as error:
        raise DataLoss(
            f"what the fleet said last cannot be read from {path}: {error}; remove the "
            "file to start without models"
        ) from error
    return told


def keep_told(state_dir: str, told: pb.AspireRequest) -> None:
    """Replaces what a fleet said; after a crash it is as before or as told.

    It is kept as a message: the text of ten thousand models takes 0.2 s to write.

    Raises:
        Unavailable: The disk takes nothing; what was kept before is still there.

    """
    path = os.path.join(state_dir, FILE_NAME)
    try:
        replace_file(path, told.SerializeToString(), is_durable=True)
    except OSError as error:
        raise Unavailable(
            f"cannot keep what the fleet says in {path}: {error.strerror}"
        ) from error


class FleetSource:
    """Follows one fleet. For the thread that changes configs; blocks on the disk.

    Args:
        told: What a fleet said last.
        keep: Keeps what it says, for a restart; see :func:`keep_told`.

    Attributes:
        on_claimed: Called when a fleet claims the server, if none had.

    """

    def __init__(
        self, told: pb.AspireRequest, keep: Callable[[pb.AspireRequest], None]
    ) -> None:
        self._told = told  # replaced as a whole, because other threads read it
        self._keep_told = keep
        self.on_claimed: Callable[[], None] = lambda: None

    @property
    def claim(self) -> pb.FleetClaim | None:
        """The fleet that it belongs to, for any thread; None if none has claimed it."""
        told = self._told
        return told.claim if told.HasField("claim") else None

    def admit(self, request: pb.AspireRequest) -> None:
        """Checks a message, and notes who speaks before its config is put in force.

        Raises:
            InvalidArgument: It is incomplete.
            FailedPrecondition: It is of another fleet, or older than what was told.
            Unavailable: The disk takes nothing.

        """
        claim, held = request.claim, self.claim
        if not claim.fleet:
            raise InvalidArgument("the message names no fleet")
        check_complete(request)
        if held is not None and not request.take_over:
            check_successor(held, claim)
        if held is None or (held.fleet, held.epoch) != (claim.fleet, claim.epoch):
            # Whoever spoke before is refused from here on, also after a crash.
            self._keep(claim, self._told.config)
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
        self._keep(request.claim, request.config)

    def leave(self) -> pb.FleetClaim | None:
        """Forgets the fleet and returns it; what is served stays.

        Raises:
            Unavailable: The disk takes nothing; the server still belongs to it.

        """
        left = self.claim
        self._keep(None, self._told.config)
        log.warning("event=fleet_left fleet=%s", left.name if left else "none")
        return left

    def _keep(self, claim: pb.FleetClaim | None, config: ModelServerConfig) -> None:
        num_models = len(config.model_config_list.config)
        told = pb.AspireRequest(claim=claim, config=config, num_models=num_models)
        self._keep_told(told)
        self._told = told


def check_successor(held: pb.FleetClaim, claim: pb.FleetClaim) -> None:
    """Raises FailedPrecondition unless ``claim`` is of the same fleet, and not older."""
    if claim.fleet != held.fleet:
        raise FailedPrecondition(
            f"this server belongs to the fleet {held.name} ({held.fleet}), not to "
            f"{claim.name} ({claim.fleet}): tfs hosted release gives it free, or "
            "claim it with --take_over"
        )
    if (claim.epoch, claim.sequence) < (held.epoch, held.sequence):
        raise FailedPrecondition(
            f"message {claim.sequence} of epoch {claim.epoch} comes after message "
            f"{held.sequence} of epoch {held.epoch}: another synchronizer leads the "
            f"fleet {held.name} now"
        )
    if claim.revision < held.revision:
        raise FailedPrecondition(
            f"the store of the fleet {held.name} is at revision {claim.revision}, "
            f"and this server was told revision {held.revision}: it is an older copy; "
            "put the newest back, or claim the server with --take_over"
        )


def check_complete(told: pb.AspireRequest) -> None:
    """Raises InvalidArgument unless a message has as many models as it says."""
    listed = len(told.config.model_config_list.config)
    if not told.HasField("num_models") or told.num_models != listed:
        said = told.num_models if told.HasField("num_models") else "no number"
        raise InvalidArgument(
            f"the message is incomplete: {listed} models, and it speaks of {said}"
        )
