"""A server that takes its models from a fleet: whom it obeys, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from tests.e2e.serving import Serving, run_command
from tests.runtime.process_host import until
from tfs.client import Client
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.testing.patience import PATIENCE_S

X = np.ones((1, 2), np.float32)


class Server:
    """A server with ``--source=rpc``, and its AdminService."""

    def __init__(self, state_dir: Path, *, is_fresh: bool = False) -> None:
        self._flags = ("--source=rpc", f"--state_dir={state_dir}")
        serving = Serving(*self._flags, measures=is_fresh, is_fresh=is_fresh)
        self.serving = serving.__enter__()

    def start_again(self) -> None:
        """Kills the process and starts another with the same state."""
        self.serving.close()
        self.serving = Serving(*self._flags).__enter__()

    def ask(self, method: str, request: Any, reply: Any) -> Any:
        """Makes one call; returns the reply, or the status and its words."""
        with grpc.insecure_channel(self.serving.address) as channel:
            call: Any = channel.unary_unary(
                f"/tfs.v1.AdminService/{method}", None, None
            )
            try:
                message = call(request.SerializeToString(), timeout=PATIENCE_S)
            except grpc.RpcError as error:
                return error.code().name, error.details()
        return reply.FromString(message)

    def told(
        self,
        *paths: Path,
        fleet: str = "f",
        epoch: int = 1,
        sequence: int = 1,
        revision: int = 1,
        num_models: int | None = None,
        take_over: bool = False,
    ) -> str:
        """Tells it to serve these; returns "OK", or the status."""
        request = pb.AspireRequest(
            claim=pb.FleetClaim(
                fleet=fleet,
                name=f"fleet {fleet}",
                epoch=epoch,
                sequence=sequence,
                revision=revision,
            ),
            num_models=len(paths) if num_models is None else num_models,
            take_over=take_over,
        )
        request.config.model_config_list.SetInParent()
        for path in paths:
            request.config.model_config_list.config.add(
                name=path.name, base_path=str(path)
            )
        reply = self.ask("Aspire", request, pb.AspireResponse)
        return "OK" if isinstance(reply, pb.AspireResponse) else " ".join(reply)

    @property
    def claim(self) -> pb.FleetClaim:
        """The fleet that it says it belongs to."""
        reply = self.ask("ListModels", pb.ListModelsRequest(), pb.ListModelsResponse)
        claim: pb.FleetClaim = reply.server.fleet
        return claim

    @property
    def models(self) -> set[str]:
        """The models that it has."""
        reply = self.ask("ListModels", pb.ListModelsRequest(), pb.ListModelsResponse)
        return {each.name for each in reply.models}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "state")
    yield server
    server.serving.close()


def test_a_new_server_answers_its_fleet_before_it_imports_torch(tmp_path: Path) -> None:
    """A fleet's start does not wait for it; the first model does not, either."""
    server = Server(tmp_path / "state", is_fresh=True)
    try:
        process = psutil.Process(server.serving.process.pid)

        def has_torch() -> bool:
            return any("libtorch_cpu" in each.path for each in process.memory_maps())

        assert server.models == set()
        assert not has_torch()
        assert not process.children()
        assert server.told() == "OK"
        until(lambda: has_torch() and bool(process.children()), "torch and a zygote")
    finally:
        server.serving.close()


def test_what_a_fleet_said_outlives_the_fleet_and_the_process(
    server: Server, scale: Path
) -> None:
    """A killed server starts with what it was told last, and still knows whose it is."""
    assert server.told(scale, epoch=3, sequence=7, revision=20) == "OK"
    server.start_again()
    server.serving.wait_for("scale/2 is available")
    with Client(server.serving.address, timeout_s=PATIENCE_S) as client:
        assert client.predict("scale", {"x": X}).version == 2
    claim = server.claim
    assert (claim.fleet, claim.epoch, claim.sequence, claim.revision) == ("f", 3, 7, 20)
    assert "FAILED_PRECONDITION" in server.told(epoch=2, sequence=8, revision=21)
    assert server.models == {"scale"}


def test_only_the_newest_word_of_its_own_fleet_counts(
    server: Server, scale: Path
) -> None:
    """Whoever was replaced, another fleet and an older store are refused, and told why."""
    assert server.told(scale, epoch=2, sequence=5, revision=9) == "OK"
    for words, said in (
        ({"fleet": "other", "epoch": 9}, "belongs to the fleet fleet f"),
        ({"epoch": 1, "sequence": 9, "revision": 9}, "another synchronizer leads"),
        ({"epoch": 2, "sequence": 4, "revision": 9}, "another synchronizer leads"),
        ({"epoch": 3, "sequence": 1, "revision": 8}, "an older copy"),
    ):
        reply = server.told(**words)
        assert reply.startswith("FAILED_PRECONDITION")
        assert said in reply
    assert server.models == {"scale"}
    assert server.told(scale, epoch=2, sequence=5, revision=9) == "OK"  # once more
    assert server.told(fleet="other", take_over=True) == "OK"
    assert server.models == set()


def test_an_incomplete_message_unloads_nothing(server: Server, scale: Path) -> None:
    """A message is acted on only if it has as many models as it says."""
    assert server.told(scale) == "OK"
    assert "incomplete" in server.told(sequence=2, num_models=1)
    empty = pb.AspireRequest(claim=pb.FleetClaim(fleet="f", epoch=1, sequence=3))
    code, said = server.ask("Aspire", empty, pb.AspireResponse)
    assert code == "INVALID_ARGUMENT"
    assert "incomplete" in said
    assert server.models == {"scale"}
    assert server.told(sequence=4) == "OK"
    assert server.models == set()


def test_what_cannot_be_kept_is_not_acknowledged(server: Server, scale: Path) -> None:
    """On a full disk it says so and serves on; the same message counts once there is room."""
    assert server.told(scale) == "OK"
    server.serving.wait_for("scale/2 is available")
    process = psutil.Process(server.serving.process.pid)
    _, most = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (1, most))
    assert server.told(epoch=2).startswith(
        "UNAVAILABLE cannot keep what the fleet says"
    )
    with Client(server.serving.address, timeout_s=PATIENCE_S) as client:
        assert client.predict("scale", {"x": X}).version == 2
    assert server.claim.epoch == 1
    process.rlimit(psutil.RLIMIT_FSIZE, (most, most))
    assert server.told(epoch=2) == "OK"
    assert server.models == set()


def test_a_released_server_may_be_claimed_by_another_fleet(
    server: Server, scale: Path
) -> None:
    """It goes on serving what it had, until then."""
    assert server.told(scale) == "OK"
    code, printed = run_command("hosted", "release", server.serving.address)
    assert (code, "has left the fleet fleet f" in printed) == (0, True)
    assert server.models == {"scale"}
    assert server.told(scale, fleet="other") == "OK"
    assert server.claim.fleet == "other"


def test_a_server_of_a_fleet_takes_models_from_nobody_else(
    server: Server, scale: Path, tmp_path: Path
) -> None:
    """A reload by hand is refused with the way to go."""
    assert server.told(scale) == "OK"
    (tmp_path / "own").write_text("model_config_list {}")
    code, printed = run_command(
        "reload", str(tmp_path / "own"), f"--address={server.serving.address}"
    )
    assert code == 1
    assert "takes its models from a fleet" in printed
    assert server.models == {"scale"}
