"""``tfs hosted``: what its commands print, and what they refuse."""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hosted.fleets import state_in
from tfs.cli.argument_range import servers, size
from tfs.cli.main import main
from tfs.core.call import ListenerOptions
from tfs.core.clock import MonotonicClock
from tfs.hosted import edits
from tfs.hosted.edit_reader import EditReader
from tfs.hosted.fleet_state import FleetState
from tfs.hosted.identities import ControlOptions
from tfs.hosted.probes import PER_VERSION_BYTES
from tfs.hosted.reports import JobSighting, ReplicaSighting
from tfs.hosted.service import HostedService, ServiceOptions
from tfs.hosted.synchronizer import SynchronizerOptions
from tfs.server.config.server_config import read_model
from tfs.testing.patience import PATIENCE_S

ONE, TWO = "127.0.0.1:1", "127.0.0.1:2"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetState]:
    """A controller that commands find; it looks at servers itself, but tells nobody."""
    made = state_in(tmp_path)
    with tempfile.TemporaryDirectory(prefix="tfs") as folder:
        address = f"unix:{folder}/control.sock"
        service = HostedService(
            made,
            ServiceOptions(
                ControlOptions([ListenerOptions("control", address)]),
                None,
                synchronizing=SynchronizerOptions(only_routes=True),
                model_stores={
                    "": str(tmp_path / "store"),
                    "far": f"file://{tmp_path}/far",
                },
            ),
            reader=EditReader(read_model),
        )
        service.start()
        monkeypatch.setenv("TFS_HOSTED_CONTROLLER", address)
        monkeypatch.delenv("TFS_HOSTED_STORE", raising=False)
        yield made
        service.close(MonotonicClock.now() + PATIENCE_S)
    made.store.close()


@pytest.fixture
def table(tmp_path: Path) -> str:
    """The base path of a lookup table."""
    version = tmp_path / "prices" / "1"
    version.mkdir(parents=True)
    (version / "table.csv").write_text("key,price\na,1\n")
    return str(version.parent)


def hosted(*words: str) -> int:
    return main(["hosted", *words])


def change(*words: str) -> None:
    """Runs a command that changes a fleet whose servers never answer."""
    assert hosted(*words, "--wait_s=0.001") == 1


def see(state: FleetState, name: str, **at: ReplicaSighting) -> None:
    """Notes that both servers answer, and how a model fares on them."""
    jobs = {each: JobSighting((each,)) for each in (ONE, TWO)}
    addresses = {"one": ONE, "two": TWO}
    seen = {addresses[each]: sighting for each, sighting in at.items()}
    state.note({name: seen}, jobs)


@pytest.mark.parametrize("partition", ["", "far"])
def test_an_uploaded_version_is_copied_and_added(
    partition: str,
    state: FleetState,
    table: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Into the store of its partition, a folder or a URL; once, and never over another."""
    change("add-job", ONE, "--memory=1G", f"--partition={partition}")
    source = Path(table, "1")
    (source / "servable.json").write_text("{}")
    place = tmp_path / (partition or "store") / "prices"
    words = ("upload", "prices", str(source), f"--partition={partition}")
    assert hosted(*words, "--dry_run") == 0
    assert not place.exists()
    for _ in range(2):  # the second finds the model, and its files in place
        change(*words, '--config=model_platform: "hashmap"')
        copied = place / "1" / "table.csv"
        assert copied.read_text() == (source / "table.csv").read_text()
    assert "add-version 1 of prices" in capsys.readouterr().out
    (source / "table.csv").write_text("key,price\na,22\n")
    assert hosted(*words) == 1
    assert "other files" in capsys.readouterr().err
    change(*words, "--version=7")
    assert sorted(each.name for each in place.iterdir()) == ["1", "7"]


@pytest.mark.parametrize("partition", ["", "far"])
def test_an_upload_compares_what_is_there(
    partition: str,
    state: FleetState,
    table: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Other files of the same size are other files; half a version is made whole."""
    change("add-job", ONE, "--memory=1G", f"--partition={partition}")
    source = Path(table, "1")
    place = tmp_path / (partition or "store") / "prices"
    words = ("upload", "prices", str(source), f"--partition={partition}")
    change(*words, '--config=model_platform: "hashmap"')
    (source / "table.csv").write_text("key,price\na,2\n")
    assert hosted(*words) == 1
    assert "other files" in capsys.readouterr().err
    assert (place / "1" / "table.csv").read_text() == "key,price\na,1\n"
    (source / "table.csv").write_text("key,price\na,1\n")
    (source / "servable.json").write_text("{}")  # its upload ended before this
    if partition:
        change(*words)
        assert (place / "1" / "servable.json").read_text() == "{}"
    change(*words, "--version=2")
    (place / "2" / "servable.json").write_text("[]")
    assert hosted(*words, "--version=2") == 1


def test_an_upload_that_fails_leaves_no_version_that_is_whole(
    state: FleetState, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind a URL files appear one by one: the manifest, by which servers know, is last."""
    change("add-job", ONE, "--memory=1G", "--partition=far")
    source, place = Path(table, "1"), tmp_path / "far" / "prices" / "1"
    for name in ("servable.json", "z"):
        (source / name).write_text("{}")
    (place / "z").mkdir(parents=True)
    flags = ("--partition=far", "--version=1", '--config=model_platform: "hashmap"')
    assert hosted("upload", "prices", str(source), *flags) == 1
    assert "Is a directory" in capsys.readouterr().err
    assert (place / "table.csv").exists()
    assert not (place / "servable.json").exists()


def test_an_upload_to_a_store_with_errors_of_its_own_fails_in_one_line(
    state: FleetState,
    table: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever a store's driver raises, the command names the place and what it said."""

    def fail(*_: object) -> None:
        raise RuntimeError("the token has expired")

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.put_file", fail)
    change("add-job", ONE, "--memory=1G", "--partition=far")
    flags = ("--partition=far", "--version=1", '--config=model_platform: "hashmap"')
    capsys.readouterr()
    assert hosted("upload", "prices", str(Path(table, "1")), *flags) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "far/prices" in told
    assert "the token has expired" in told


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        ("prices", (), "nothing was copied"),
        ("prices", ("--memory=2G",), "nothing was copied"),
        ("../prices", (), "names no folder"),
    ],
)
def test_of_a_new_model_that_is_refused_nothing_is_copied(
    state: FleetState,
    table: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    flags: tuple[str, ...],
    said: str,
) -> None:
    """The controller is asked first; a model is below its store, wherever that is.

    It needs room beside its next version, as when it is added.
    """
    change("add-job", ONE, f"--memory={PER_VERSION_BYTES * 3 // 2}")
    there = sorted(tmp_path.rglob("*.csv"))
    words = ("upload", name, str(Path(table, "1")), *flags)
    for more in ((), ("--dry_run",)):
        assert hosted(*words, *more) == 1
        assert said in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*.csv")) == there


@pytest.mark.parametrize("is_new", [True, False])
def test_of_a_directory_with_nothing_to_serve_nothing_is_copied(
    state: FleetState,
    table: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    is_new: bool,
) -> None:
    """Servers would pass over it for ever, or say only later what it lacks."""
    change("add-job", ONE, "--memory=1G")
    if not is_new:
        change("add-model", "prices", table)
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "README").write_text("to be trained")
    before = sorted(tmp_path.rglob("README"))
    for directory in (notes, tmp_path / "absent", notes / "README"):
        capsys.readouterr()
        assert hosted("upload", "prices", str(directory)) == 1
        printed = capsys.readouterr().err
        assert str(directory) in printed
        assert printed.count("\n") == 1
    assert sorted(tmp_path.rglob("README")) == before


def test_an_upload_that_is_repeated_acts_once(
    state: FleetState, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever lost the answer gets the same one, and no further version."""
    change("add-job", ONE, "--memory=1G")
    exported = Path(table, "1").rename(tmp_path / "exported")
    words = ("upload", "prices", str(exported))
    new = (*words, '--config=model_platform: "hashmap"', "--request_id=a")
    place = tmp_path / "store" / "prices"
    for request in (new, (*words, "--request_id=b")):
        change(*request)
        first = [each for each in capsys.readouterr().out.splitlines() if "rev" in each]
        there = sorted(each.name for each in place.iterdir())
        change(*request)
        assert first[-1] in capsys.readouterr().out
        assert sorted(each.name for each in place.iterdir()) == there
    assert hosted(*words, "--request_id=c", "--if_generation=9") == 1
    assert "nothing was copied" in capsys.readouterr().err
    assert sorted(each.name for each in place.iterdir()) == there


def test_an_upload_that_would_be_refused_copies_nothing(
    state: FleetState, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a model that is known, too: servers find by themselves what was copied."""
    change("add-job", ONE, "--memory=1G")
    exported = Path(table, "1").rename(tmp_path / "exported")
    words = ("upload", "prices", str(exported))
    change(*words, '--config=model_platform: "hashmap"')
    place = tmp_path / "store" / "prices"
    assert hosted(*words, "--dry_run") == 0
    assert "would add version 2 of prices" in capsys.readouterr().out
    change("promote", "prices", "1")
    for more in ("--dry_run", "--wait_s=0"):
        capsys.readouterr()
        assert hosted(*words, more) == 1
        told = capsys.readouterr()
        assert "version 1 of prices is pinned" in told.err
        assert "nothing was copied" in told.err
        assert not told.out
    assert [each.name for each in place.iterdir()] == ["1"]
    change("canary", "prices", "2", "--primary=1")
    change(*words)
    assert sorted(each.name for each in place.iterdir()) == ["1", "2"]


def test_sizes_are_read_as_people_write_them() -> None:
    """Powers of 1,024, with or without the unit's end."""
    assert [size(each) for each in ("7", "500M", "8G", "2GiB", "1KB")] == [
        7,
        500 << 20,
        8 << 30,
        2 << 30,
        1 << 10,
    ]
    for text in ("", "0", "-1", "1.5G", "8 GB x", "G"):
        with pytest.raises(argparse.ArgumentTypeError):
            size(text)


def test_a_range_has_both_ends() -> None:
    """Half of one is a mistake, and not another range."""
    assert [servers(each) for each in ("2", "2-6", "0-2")] == [(2, 2), (2, 6), (0, 2)]
    for text in ("2-", "-2", "0-", "0", "2-x"):
        with pytest.raises(argparse.ArgumentTypeError):
            servers(text)


def test_a_model_goes_its_way_by_commands_alone(
    state: FleetState, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Added, shown, put on trial, promoted, rolled back, scaled and removed."""
    change("add-job", ONE, "--memory=1G")
    change("add-job", TWO, "--memory=1G")
    config = 'model_platform: "hashmap"'
    capsys.readouterr()
    change("add-model", "prices", table, f"--config={config}")
    printed = capsys.readouterr().out
    assert "revision 3: add-model prices" in printed
    assert f"waits for {ONE} to answer" in printed
    change("canary", "prices", "2", "--primary=1", "--tee=0.1")
    change("promote", "prices", "2")
    change("rollback", "prices", "1")
    change("rollback", "prices", "--end")
    change("scale", "prices", "--replicas=2-3")
    change("update-model", "prices", f"--config={config} max_in_flight: 3")
    assert hosted("remove-job", TWO, "--force") == 0
    change("add-model", "zones", table, "--memory=64M", f"--config={config}")
    capsys.readouterr()
    assert hosted("status") == 1
    printed = capsys.readouterr().out
    assert f"{ONE}  up" in printed
    (prices,) = re.findall(r"^prices  1 of 2 .*", printed, re.M)
    assert "prices  1 of 2    0          32.0 MiB  " in prices
    assert "no room for 1 of its replicas" in prices
    assert "zones   1 of 1    0          64.0 MiB (fixed)  " in printed, (
        "the rest is as measured"
    )
    change("scale", "zones", "--memory=96M", "--cpus=0.5")
    zones = state.read().fleet.models["zones"]
    assert (zones.memory_bytes, zones.cpus) == (size("96M"), 0.5)
    change("scale", "zones", "--memory=0")
    assert state.read().fleet.models["zones"].is_estimate
    assert hosted("remove-model", "zones", "--wait_s=5") == 0
    capsys.readouterr()
    assert hosted("status", "--json") == 1, "nobody answers for prices"
    said = json.loads(capsys.readouterr().out)
    assert 'model_platform: "hashmap"' in said["models"][0]["config"]
    assert said["placement"] == {"prices": [ONE]}
    assert said["sightings"]["models"] == {"prices": {"answering": 0, "problem": ""}}
    assert hosted("remove-model", "prices") == 0
    capsys.readouterr()
    assert hosted("status", "--history=99") == 0
    told = capsys.readouterr().out
    assert "rollback to 1 of prices" in told
    assert "latest version of prices" in told
    assert "canary 2 of prices" in told
    assert hosted("why", "prices") == 0
    assert f"placed on {ONE}, which had" in capsys.readouterr().out


def test_a_command_answers_when_it_is_in_force(
    state: FleetState, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0 says that servers do it; a repeated request gets the same answer."""
    change("add-job", ONE, "--memory=1G")
    change("add-model", "prices", table, "--request_id=x")
    see(state, "prices", one=ReplicaSighting(1, 1, (1,)))
    capsys.readouterr()
    assert hosted("add-model", "prices", table, "--request_id=x") == 0
    assert hosted("status") == hosted("status", "--json") == 0
    assert capsys.readouterr().out.startswith("revision 2: add-model prices\n")
    assert hosted("promote", "prices", "1", "--if_generation=7") == 1
    assert "prices is at generation 1, not 7" in capsys.readouterr().err


def test_a_dry_run_tells_what_would_be(
    state: FleetState, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it would go and what would be left, or why not."""
    change("add-job", ONE, "--memory=1G")
    before = state.read()
    capsys.readouterr()
    words = ("add-model", "prices", table, "--dry_run")
    assert hosted(*words) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"^prices  32.0 MiB  -     {ONE}", printed, re.M)
    assert re.search(rf"^{ONE}  1024.0 MiB  992.0 MiB", printed, re.M)
    assert hosted(*words, "--memory=9G") == 1
    assert "would be refused: no room" in capsys.readouterr().out
    assert hosted("add-job", ONE, "--memory=2G", "--dry_run") == 0
    assert "no model would move" in capsys.readouterr().out
    stale = ("add-job", ONE, "--memory=2G", "--dry_run", "--if_generation=9")
    assert hosted(*stale) == 1
    assert "generation 1, not 9" in capsys.readouterr().out
    assert state.read() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add-model", "m", "relative"], "absolute"),
        (["add-model", "m", "/absent"], "--memory"),
        (["add-model", "m", "/m", "--memory=9G"], "no room"),
        (["add-model", "m", "/m", "--memory=1M", "--config=x: 1"], "config"),
        (["add-model", "m", "/m", "--memory=1M", "--replicas=3-2"], "replicas"),
        (["remove-model", "m"], "no model m; there are: none; tfs hosted add-model"),
        (["remove-job", "m"], "no serving job m"),
        (["add-job", "m", "--memory=1G"], "(--servers)"),
        (["add-job", "10.0.0.1:0", "--memory=1G"], "HOST:PORT or unix:/path"),
        (["add-job", "x", "--memory=1G", "--servers=2"], "tfs hosted up does"),
        (["add-version", "m", "1"], "no model m"),
        (["update-model", "m"], "no model m"),
        (["why", "m"], "no model m"),
        (["scale", "m"], "say --replicas, --memory or --cpus"),
        (["promote", "m"], "takes a version, or --end"),
        (["rollback", "m", "1", "--end"], "takes a version, or --end"),
        (["rollback", "m", "1"], "no model m"),
        (["canary", "m", "1", "--primary=1"], "no model m"),
        (["status", "--cert=c"], "need --ca"),
        (["run"], "--store"),
        (["run", "--cert=c"], "need --ca"),
        (["run", "--ca=/absent"], "cannot read /absent"),
        (["run", "--hedge_budget=2"], "hedge_budget must be from 0 to 1: 2"),
        (["run", "--down_after_s=1"], "down_after_s must be more than 1"),
        (["run", "--listen=127.0.0.1"], "--listen takes"),
        (["run", "--control=x"], "--control takes"),
        (["run", "--xds=x"], "--xds takes"),
        (["run", "--envoy=/x", "--ssl_config_file=/absent"], "/absent"),
        (["run", "--envoy=/x", "--hedge_after_s=0"], "hedge_after_s must be"),
        (["up", "--servers=9"], "at most 8"),
        (["up", "--listen=nowhere"], "--listen takes"),
        (["run", "--ssl_config_file=/absent"], "--ssl_config_file=/absent"),
        (["run", "--listen=unix:/s", "--ssl_config_file=/absent"], "TCP"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    state: FleetState,
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A command that fails says why in one line, and changes nothing."""
    change("add-job", ONE, "--memory=1G")
    if words[0] == "run" and len(words) > 1:
        words = [*words, f"--store={tmp_path / 'other.db'}"]
    capsys.readouterr()
    assert hosted(*words) == 1
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1
    assert list(state.read().fleet.jobs) == [ONE]
    assert not state.read().fleet.models


def test_a_problem_and_a_version_that_is_not_there_are_told(
    state: FleetState, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has a place may be damaged there; a version that is missing is often a slip."""
    change("add-job", ONE, "--memory=1G")
    change("add-model", "prices", table)
    see(state, "prices", one=ReplicaSighting(1, None, problem="table.csv is damaged"))
    capsys.readouterr()
    assert hosted("status") == 1
    assert f"a version on {ONE}: table.csv is damaged" in capsys.readouterr().out
    see(state, "prices", one=ReplicaSighting(1, 1, problem="prices/2 differs"))
    assert hosted("why", "prices") == 0
    assert "prices/2 differs" in capsys.readouterr().out
    change("rollback", "prices", "1")
    change("rollback", "prices", "99")
    see(state, "prices", one=ReplicaSighting(3, 1, problem="prices/99 is absent"))
    assert hosted("why", "prices") == 0
    assert "version 99 as the one that answers" in capsys.readouterr().out


def test_a_crash_is_a_problem_until_a_newer_version_answers(
    state: FleetState, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is over stays in the history of a model, and not in its line for ever."""
    change("add-job", ONE, "--memory=1G")
    change("add-model", "prices", table)
    crashed = {"2": "it crashed"}
    state.change(
        edits.update_model("prices", lambda m: replace(m, quarantined=crashed), "x")
    )
    for primary, is_told in ((1, True), (3, False)):
        see(state, "prices", one=ReplicaSighting(2, primary))
        capsys.readouterr()
        hosted("status")
        told = "version 2 is quarantined: it crashed" in capsys.readouterr().out
        assert told == is_told


def test_a_controller_that_is_not_there_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The message says how to start one, or where to say which it is."""
    assert hosted("status", "--controller=unix:/absent.sock") == 1
    printed = capsys.readouterr().err
    assert (
        "cannot reach a controller at unix:/absent.sock: start tfs hosted up" in printed
    )
