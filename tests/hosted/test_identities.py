"""Who may do what with a fleet, and how much of it: roles and quotas by certificate."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import CLIENT_NAME, Certificates
from tests.hosted.fleets import MIB, check, server, state_in
from tfs.cli.hosted.run import control_options
from tfs.codec.call_error import read_error
from tfs.core.call import ListenerOptions, Peer
from tfs.core.clock import MonotonicClock
from tfs.core.errors import (
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    ServingError,
)
from tfs.hosted import edits
from tfs.hosted.controller import Controller
from tfs.hosted.edit_reader import EditReader
from tfs.hosted.fleet import Fleet
from tfs.hosted.identities import ControlOptions, Identities, Identity, read_identities
from tfs.hosted.service import HostedService, ServiceOptions
from tfs.hosted.synchronizer import SynchronizerOptions
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S

ANN = Peer("192.0.2.1:1", "control", identity=("ann",))
BOB = Peer("192.0.2.2:1", "control", identity=("something", "bob"))


def test_a_name_has_its_role() -> None:
    """An editor changes, a viewer reads, others get nothing, as does who shows no name."""
    known = Identities({"ann": Identity("editor"), "bob": Identity("viewer")})
    assert known.owner(ANN) == "ann"
    assert known.owner(BOB) == "bob"
    edit = edits.note_jobs({})
    assert known.guarded(edit, "ann").apply(Fleet()) == Fleet()
    with pytest.raises(PermissionDenied, match="bob is a viewer"):
        known.guarded(edit, "bob").apply(Fleet())
    with pytest.raises(PermissionDenied, match="eve is nobody"):
        known.owner(Peer("", "control", identity=("eve",)))
    with pytest.raises(PermissionDenied, match="shows no name is nobody"):
        known.owner(Peer("127.0.0.1:1", "control", True))
    assert Identities().owner(BOB) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", " names nobody"),
        ("[]", " names nobody"),
        ("{", ": no JSON: "),
        ('{"ann": {}}', ": ann: role is viewer or editor: ''"),
        ('{"ann": "editor"}', ": ann has 'editor'; it takes role, "),
        ('{"ann": {"role": ["viewer"]}}', ": ann: role is viewer or editor: "),
        ('{"ann": {"role": "editor", "instance": ""}}', ": ann: instance is prod or "),
        (
            '{"ann": {"role": "editor", "max": 1}}',
            ": ann has {'role': 'editor', 'max': 1}; it ",
        ),
        ('{"ann": {"role": "editor", "max_models": -1}}', ": ann: max_models is a "),
        ('{"ann": {"role": "editor", "max_models": "1"}}', ": ann: max_models is a "),
        ("\xff", ": no JSON: "),
        ("", ": No such file"),
    ],
)
def test_a_file_with_a_mistake_is_refused(text: str, said: str, tmp_path: Path) -> None:
    """It is not half believed: flag, name and field are named."""
    file = tmp_path / "identities.json"
    if text:
        file.write_text(text, encoding="latin-1")
    with pytest.raises(InvalidArgument) as caught:
        read_identities(str(file))
    assert caught.value.message.startswith(f"--identities={file}{said}")


@pytest.mark.parametrize("config", ["", "no client_verify", "broken", "whole"])
def test_names_are_told_apart_only_where_certificates_are_verified(
    config: str, tmp_path: Path
) -> None:
    """Without ``client_verify`` everybody might do everything: it does not start."""
    file = tmp_path / "identities.json"
    file.write_text('{"ann": {"role": "viewer"}}')
    tls = Certificates().write_config(tmp_path, mutual=config == "whole")
    if config == "broken":
        tls.write_text("server_key: ")
    arguments = argparse.Namespace(
        control="127.0.0.1:0",
        control_http="",
        control_ssl_config_file=str(tls) if config else "",
        identities=str(file),
    )
    if config == "whole":
        assert control_options(arguments, None).identities.by_name
        return
    said = (
        "no SSLConfig, at line" if config == "broken" else "needs client_verify: true"
    )
    with pytest.raises(InvalidArgument, match=said):
        control_options(arguments, None)


def test_quotas_are_kept_and_their_refusals_told(tmp_path: Path) -> None:
    """What an owner has is counted with all replicas; who has no quota is not counted."""
    quotas = tmp_path / "identities.json"
    quotas.write_text(
        '{"ann": {"role": "editor", "max_models": 2, "max_memory_bytes": 41943040}}'
    )
    known = read_identities(str(quotas))
    state = state_in(tmp_path)
    for address in ("a", "b"):
        state.change(edits.put_job(server(address, 1000 * MIB)))
    reader = EditReader(check, lambda path: 10 * MIB, identities=known)
    controller = Controller(state, reader, FakeClock())
    number = 0

    def ask(request: Any, owner: str = "ann") -> None:
        nonlocal number
        number += 1
        request.edit.request_id, request.edit.wait_s = f"r{number}", 0
        controller.change(request, None, lambda op: None, owner)

    def add(name: str, owner: str = "ann") -> None:
        hints = pb.Hints(memory_bytes=20 * MIB, min_replicas=1)
        request = pb.AddModelRequest(model=name, base_path=str(tmp_path), hints=hints)
        ask(request, owner)

    add("one")
    assert state.read().fleet.models["one"].owner == "ann"
    with pytest.raises(
        ResourceExhausted, match=r"ann .* 60.0 MiB .* now 20.0, .* quota is 40.0 MiB"
    ):
        # Whoever asks: it is ann's.
        ask(pb.SetHintsRequest(model="one", hints=pb.Hints(max_replicas=3)), "")
    told = controller.model(pb.GetModelRequest(model="one", num_changes=5)).changes
    assert "quota is 40.0 MiB" in told[0].why
    assert told[1].why.startswith("add-model one by ann; placed on")
    add("two")
    simulated = pb.SimulateRequest(
        add_model=pb.AddModelRequest(model="three", base_path=str(tmp_path))
    )
    assert "ann has 2 models" in controller.simulate(simulated, "ann").refusal
    assert not controller.simulate(simulated, "").refusal
    with pytest.raises(ResourceExhausted, match="ann has 2 models, and its quota is 2"):
        add("three")
    add("theirs", "")
    ask(pb.RemoveModelRequest(model="one"))
    add("three")
    state.store.close()


def test_prod_takes_the_place_of_temp_and_not_the_other_way(tmp_path: Path) -> None:
    """What gives way says so; a model of Temp that finds no room is refused."""
    known = Identities({"tim": Identity("editor", instance="temp")})
    state = state_in(tmp_path)
    state.change(edits.put_job(server("a", 100 * MIB)))
    # Twice, while versions change.
    reader = EditReader(check, lambda path: 30 * MIB, identities=known)
    controller = Controller(state, reader, FakeClock())

    def add(name: str, owner: str) -> None:
        request = pb.AddModelRequest(model=name, base_path=str(tmp_path))
        request.edit.request_id, request.edit.wait_s = name, 0
        controller.change(request, None, lambda op: None, owner)

    add("temp", "tim")
    with pytest.raises(ResourceExhausted, match="no room"):
        add("temp2", "tim")
    add("prod", "")
    assert state.read().fleet.packing() == {"temp": (), "prod": ("a",)}
    told = controller.model(pb.GetModelRequest(model="temp", num_changes=1)).changes
    assert told[0].why.startswith("add-model prod; taken from a")
    with pytest.raises(ResourceExhausted, match="no room"):
        add("temp3", "tim")
    state.store.close()


def test_a_name_of_temp_changes_models_of_temp_and_nothing_else(tmp_path: Path) -> None:
    """Neither a model of Prod nor a server, which Prod may need; its own as it likes."""
    known = Identities({"tim": Identity("editor", instance="temp")})
    state = state_in(tmp_path)
    state.change(edits.put_job(server("a", 1000 * MIB)))
    reader = EditReader(check, lambda path: MIB, identities=known)
    controller = Controller(state, reader, FakeClock())
    number = 0

    def ask(request: Any, owner: str = "tim") -> None:
        nonlocal number
        number += 1
        request.edit.request_id, request.edit.wait_s = f"r{number}", 0
        controller.change(request, None, lambda op: None, owner)

    ask(pb.AddModelRequest(model="prod", base_path=str(tmp_path)), "")
    ask(pb.AddModelRequest(model="temp", base_path=str(tmp_path)))
    before = state.read().fleet
    wide = pb.Hints(max_replicas=2)
    for request in (
        pb.RemoveModelRequest(model="prod"),
        pb.UpdateModelRequest(model="prod", base_path="/elsewhere"),
        pb.SetPolicyRequest(model="prod", latest=pb.Latest()),
        pb.SetHintsRequest(model="prod", hints=wide),
        pb.AddJobRequest(job="b", memory_bytes=MIB),
        pb.DrainJobRequest(job="a", force=True),
    ):
        with pytest.raises(PermissionDenied, match="tim belongs to Temp, and"):
            ask(request)
    assert state.read().fleet == before
    drained = pb.SimulateRequest(drain_job=pb.DrainJobRequest(job="a"))
    assert "tim belongs to Temp" in controller.simulate(drained, "tim").refusal
    found = {
        name: controller.model(pb.GetModelRequest(model=name))
        for name in ("prod", "temp")
    }
    assert (found["prod"].owner, found["prod"].instance) == ("", "prod")
    assert (found["temp"].owner, found["temp"].instance) == ("tim", "temp")
    ask(pb.SetHintsRequest(model="temp", hints=wide))
    ask(pb.RemoveModelRequest(model="temp"))
    assert set(state.read().fleet.models) == {"prod"}
    state.store.close()


def test_a_viewer_s_certificate_reads_over_grpc_and_changes_nothing(
    tmp_path: Path,
) -> None:
    """The door asks for the role of the name that TLS verified."""
    import grpc

    state = state_in(tmp_path)
    certificates = Certificates()
    tls = certificates.tls(mutual=True)
    service = HostedService(
        state,
        ServiceOptions(
            ControlOptions(
                [ListenerOptions("control", "127.0.0.1:0", tls=tls)],
                identities=Identities({CLIENT_NAME: Identity("viewer")}),
            ),
            None,
            SynchronizerOptions(only_routes=True),
        ),
        reader=EditReader(check, lambda path: MIB),
    )
    (address,) = service.start()
    credentials = certificates.client_credentials(named=True)
    with grpc.secure_channel(address, credentials) as channel:

        def ask(method: str, request: Any) -> bytes:
            call: Any = channel.unary_unary(f"/tfs.v1.Controller/{method}", None, None)
            try:
                reply = call(request.SerializeToString(), timeout=PATIENCE_S)
            except grpc.RpcError as error:
                raise read_error(error) from error
            return bytes(reply)

        assert not pb.FleetInfo.FromString(
            ask("ListModels", pb.ListFleetRequest())
        ).models
        request = pb.RemoveModelRequest(edit=pb.Edit(request_id="1"), model="m")
        with pytest.raises(ServingError, match=f"{CLIENT_NAME} is a viewer"):
            ask("RemoveModel", request)
        added = pb.AddJobRequest(job="127.0.0.1:1", memory_bytes=MIB)
        asked = pb.SimulateRequest(add_job=added)
        told = pb.Simulation.FromString(ask("Simulate", asked)).refusal
        assert told == f"{CLIENT_NAME} is a viewer, who changes nothing here"
    service.close(MonotonicClock.now() + PATIENCE_S)
    state.store.close()
