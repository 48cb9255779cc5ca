"""A fleet of real servers behind a router: placed, routed, rolled back, one killed."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.certificates import Certificates
from tests.e2e.serving import (
    Serving,
    export_sleeper,
    fork_tfs,
    run_command,
)
from tests.hosted.routing.engines import skip_without_ads
from tests.hosted.routing.xds_client import XdsClient
from tests.server.validated import save_for, write_requests
from tfs.client import Client
from tfs.client.retry_policy import RetryPolicy
from tfs.core.errors import ServingError
from tfs.core.version.input_statistics import MIN_VALUES
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2
from tfs.testing.patience import PATIENCE_S

X = np.ones((1, 2), np.float32)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[list[Serving]]:
    """Two servers without a model, that take what a fleet says."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                Serving("--source=rpc", f"--state_dir={tmp_path / each}")
            )
            for each in ("one", "two")
        ]


@pytest.fixture
def control(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where commands find the controller, and the flag that has it there."""
    address = f"unix:{short_folder}/control.sock"
    monkeypatch.setenv("TFS_HOSTED_CONTROLLER", address)
    return f"--control={address}"


def hosted(*words: str) -> str:
    code, printed = run_command("hosted", *words)
    assert code == 0, printed
    return printed


def test_a_fleet_serves_through_rollback_and_a_killed_server(
    jobs: list[Serving], scale: Path, tmp_path: Path, control: str
) -> None:
    """Users name a model; where it is, and who dies, is not theirs to know."""
    store = f"--store={tmp_path / 'fleet.db'}"
    certificates = Certificates()
    tls = f"--ssl_config_file={certificates.write_config(tmp_path)}"
    router = Serving.of(
        fork_tfs(
            *("hosted", "run", "--listen=127.0.0.1:0", "--down_after_s=3"),
            *(store, tls, control),
        )
    )
    try:
        address = router.wait_for(r"listening on (127\S+)")
        router.wait_for("listening on unix")
        hosted("add-job", jobs[0].address, "--memory=1G")
        hosted("add-model", "early", str(scale))
        hosted("add-job", jobs[1].address, "--memory=1G")
        seen = json.loads(hosted("status", "--json"))["sightings"]["models"]
        assert seen["early"]["answering"] == 2, "the job is in force"
        dry = hosted("add-model", "scale", str(scale), "--replicas=2", "--dry_run")
        assert "FREE AFTERWARDS" in dry
        hosted("add-model", "scale", str(scale), "--replicas=2")
        retry = RetryPolicy(max_attempts=1)
        secure = certificates.client_credentials()
        with Client(
            address, timeout_s=PATIENCE_S, retry=retry, credentials=secure
        ) as client:
            # It is in force, so nobody has to wait for anything any more.
            assert client.predict("scale", {"x": X}).version == 2
            large = np.ones((9_000_000, 2), np.float32)
            assert client.predict("scale", {"x": large}).version == 2
            hosted("rollback", "scale")
            assert client.predict("scale", {"x": X}).version == 1
            jobs[0].process.kill()
            answers = [client.predict("scale", {"x": X}) for _ in range(200)]
            assert {each.version for each in answers} == {1}
        router.wait_for("event=job_down")
        assert f"{jobs[0].address}  down" in run_command("hosted", "status")[1]
        assert "rollback to 1 of scale" in hosted("status", "--history=9")
        why = hosted("why", "scale")
        assert f"taken from {jobs[0].address}, which is down" in why
        assert router.stop() == 0
    finally:
        router.close()


def test_a_fleet_has_its_servers_validate_each_version(
    jobs: list[Serving], tmp_path: Path, control: str
) -> None:
    """The whole block goes to them; a version made for other inputs, or that answers
    otherwise, serves nowhere, and the command says why."""
    requests = write_requests(tmp_path / "requests", num=MIN_VALUES // 2)
    base_path = tmp_path / "scale"
    validation = (
        f'validation {{ requests: "{requests}" limits {{ max_mean_abs_diff: 0.5 }} '
        "skew { max_out_of_range: 0.1 } }"
    )
    save_for(base_path, [0.0, 2.0])
    store = f"--store={tmp_path / 'fleet.db'}"
    router = Serving.of(
        fork_tfs("hosted", "run", "--listen=127.0.0.1:0", store, control)
    )
    try:
        address = router.wait_for(r"listening on (127\S+)")
        router.wait_for("listening on unix")
        hosted("add-job", jobs[0].address, "--memory=1G")
        hosted("add-model", "scale", str(base_path), f"--config={validation}")
        save_for(base_path, [5.0, 7.0])
        code, printed = run_command("hosted", "add-version", "scale", "2")
        assert code == 1
        assert "skew: x out_of_range 1 > 0.1" in printed
        with Client(address, timeout_s=PATIENCE_S) as client:
            assert client.predict("scale", {"x": X}).version == 1
            save_for(base_path, [0.0, 2.0], 9.0)
            assert run_command("hosted", "add-version", "scale", "3")[0] == 1
            said = jobs[0].wait_for("servable_end servable=scale/3.*")
            assert "mean_abs_diff 8 > 0.5" in said
            save_for(base_path, [0.0, 2.0])
            hosted("add-version", "scale", "4")
            assert client.predict("scale", {"x": X}).version == 4
        assert router.stop() == 0
    finally:
        router.close()


def test_signals_mean_to_a_router_what_they_mean_to_a_server(
    jobs: list[Serving], tmp_path: Path, control: str
) -> None:
    """A SIGHUP ends nothing; a second SIGTERM ends a drain that waits for a request."""
    store = f"--store={tmp_path / 'fleet.db'}"
    export_sleeper(tmp_path / "sleeper")
    router = Serving.of(
        fork_tfs("hosted", "run", "--listen=127.0.0.1:0", store, control)
    )
    try:
        address = router.wait_for(r"listening on (127\S+)")
        router.wait_for("listening on unix")
        hosted("add-job", jobs[0].address, "--memory=1G")
        hosted("add-model", "sleeper", str(tmp_path / "sleeper"))
        router.process.send_signal(signal.SIGHUP)
        router.wait_for("SIGHUP: the store is looked at")
        with Client(address, timeout_s=PATIENCE_S) as client:
            client.predict("sleeper", {"x": X * 0})
            jobs[0].wait_for("asleep")
            sleeping = threading.Thread(target=_sleep, args=(client,))
            sleeping.start()
            jobs[0].wait_for("asleep")
            router.process.send_signal(signal.SIGTERM)
            router.wait_for("draining; again to end at once")
            router.process.send_signal(signal.SIGTERM)
            assert router.process.wait(PATIENCE_S) == 130
            sleeping.join()
    finally:
        router.close()


def _sleep(client: Client) -> None:
    with contextlib.suppress(ServingError):
        client.predict("sleeper", {"x": X * PATIENCE_S})


def test_clients_without_a_router_outlive_a_killed_server(
    jobs: list[Serving], scale: Path, tmp_path: Path, control: str
) -> None:
    """gRPC's own ``xds:///`` finds the servers that ``--xds`` names, and asks the other."""
    skip_without_ads()
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "scale"
    sent = request.inputs["x"]
    sent.dtype = types_pb2.DT_FLOAT
    sent.tensor_content = X.tobytes()
    for size in X.shape:
        sent.tensor_shape.dim.add().size = size
    store = f"--store={tmp_path / 'fleet.db'}"
    doors = ("--listen=127.0.0.1:0", "--xds=127.0.0.1:0")
    fleet = Serving.of(fork_tfs("hosted", "run", store, control, *doors))
    try:
        fleet.wait_for(r"listening on 127\S+")
        with XdsClient(fleet.wait_for(r"listening on (127\S+)")) as client:
            for each in jobs:
                hosted("add-job", each.address, "--memory=1G")
            hosted("add-model", "scale", str(scale), "--replicas=2")
            message = request.SerializeToString()
            client.begin("scale", message, 20, PATIENCE_S)
            (answer,) = client.outcomes()
            client.begin("scale", message, 3000, PATIENCE_S)
            jobs[0].process.kill()
            assert client.outcomes() == {answer: 3000}
    finally:
        fleet.close()
