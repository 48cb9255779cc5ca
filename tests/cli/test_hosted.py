"""``tfs hosted``: what its commands print, and what they refuse."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from tfs.cli.hosted import size
from tfs.cli.main import main
from tfs.hosted.fleet_store import FleetStore, ModelSighting
from tfs.testing.fake_clock import FakeClock


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "fleet.db"
    monkeypatch.setenv("TFS_HOSTED_STORE", str(path))
    return path


@pytest.fixture
def table(tmp_path: Path) -> str:
    """The base path of a lookup table."""
    version = tmp_path / "prices" / "1"
    version.mkdir(parents=True)
    (version / "table.csv").write_text("key,price\na,1\n")
    return str(version.parent)


def hosted(*words: str) -> int:
    return main(["hosted", *words])


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


def test_a_model_goes_its_way_by_commands_alone(
    store: Path, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Added, shown, put on trial, promoted, rolled back, scaled and removed."""
    assert hosted("add-job", "127.0.0.1:1", "--memory=1G") == 0
    assert hosted("add-job", "127.0.0.1:2", "--memory=1G") == 0
    config = 'model_platform: "hashmap"'
    assert hosted("add-model", "prices", table, f"--config={config}") == 0
    assert "prices: 32.0 MiB (estimated) on 127.0.0.1:1" in capsys.readouterr().out
    assert hosted("canary", "prices", "2", "--primary=1", "--tee=0.1") == 0
    assert hosted("promote", "prices", "2") == 0
    assert hosted("rollback", "prices", "1") == 0
    assert hosted("rollback", "prices", "--end") == 0
    assert hosted("scale", "prices", "--replicas=2-3") == 0
    assert hosted("remove-job", "127.0.0.1:2", "--force") == 0
    words = ("--memory=64M", f"--config={config}")
    assert hosted("add-model", "zones", table, *words) == 0
    capsys.readouterr()
    assert hosted("status") == 0
    printed = capsys.readouterr().out
    assert "127.0.0.1:1  up" in printed
    (prices,) = re.findall(r"^prices  1 of 2 .*", printed, re.M)
    assert "prices  1 of 2    -          32.0 MiB  " in prices
    assert prices.endswith("  no room for 1 of its replicas")
    assert "zones   1 of 1    -          64.0 MiB (fixed)  " in printed, (
        "the rest is as measured"
    )
    assert hosted("remove-model", "zones") == 0
    capsys.readouterr()
    assert hosted("status", "--json") == 0
    model = json.loads(capsys.readouterr().out)["models"][0]
    assert 'model_platform: "hashmap"' in model["config"]
    assert hosted("remove-model", "prices") == 0
    capsys.readouterr()
    assert hosted("status", "--history=99") == 0
    told = capsys.readouterr().out
    assert "rollback to 1 of prices" in told
    assert "rollback --end of prices" in told
    assert "canary 2 of prices" in told


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
        (["promote", "m"], "takes a version, or --end"),
        (["rollback", "m", "1", "--end"], "takes a version, or --end"),
        (["rollback", "m", "1"], "no model m"),
        (["canary", "m", "1", "--primary=1"], "no model m"),
        (["run", "--cert=c"], "need --ca"),
        (["run", "--ca=/absent"], "cannot read /absent"),
        (["run", "--hedge_budget=2"], "hedge_budget must be from 0 to 1: 2"),
        (["run", "--down_after_s=1"], "down_after_s must be more than 1"),
        (["run", "--listen=127.0.0.1"], "127.0.0.1"),
        (["run", "--ssl_config_file=/absent"], "--ssl_config_file=/absent"),
        (["run", "--listen=unix:/s", "--ssl_config_file=/absent"], "TCP"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    store: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that fails says why in one line, and changes nothing."""
    assert hosted("add-job", "127.0.0.1:1", "--memory=1G") == 0
    assert hosted(*words) == 1
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1
    assert hosted("status", "--history=9") == 0
    assert "add-job" in capsys.readouterr().out.splitlines()[1]


@pytest.mark.parametrize(
    "address", ["server", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:99999", ":8500", "unix:"]
)
def test_an_address_that_no_server_can_have_is_refused(
    store: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip in a port would be a server that is up for ten seconds, and takes models."""
    with pytest.raises(SystemExit):
        hosted("add-job", address, "--memory=1G")
    assert f"HOST:PORT or unix:/path: {address}" in capsys.readouterr().err
    assert not store.exists()


def test_a_status_without_a_store_says_so_and_makes_none(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong path must not look like a fleet without servers."""
    assert hosted("status") == 1
    assert f"no fleet in {store}" in capsys.readouterr().err
    assert hosted("status", "--history=3") == 1
    assert not store.exists()
    FleetStore(str(store)).read()  # as a router does, which makes an empty one
    assert hosted("status") == 1


def test_a_model_that_does_not_answer_shows_in_the_status(
    store: Path, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has a place may be damaged there; and it may be long since anybody looked."""
    assert hosted("add-job", "127.0.0.1:1", "--memory=1G") == 0
    assert hosted("add-model", "prices", table) == 0
    capsys.readouterr()
    assert hosted("status") == 0
    assert "nobody has looked at the servers yet" in capsys.readouterr().out
    seen = {"prices": ModelSighting(0, "127.0.0.1:1: table.csv is damaged")}
    FleetStore(str(store)).note_sightings(seen)
    assert hosted("status") == 1
    printed = capsys.readouterr().out
    assert "127.0.0.1:1: table.csv is damaged" in printed
    assert "note:" not in printed
    clock = FakeClock()
    clock.advance(100.0)
    FleetStore(str(store), clock).note_sightings({"prices": ModelSighting(1)})
    assert hosted("status") == 0
    assert "does tfs hosted run still run?" in capsys.readouterr().out
    assert hosted("status", "--json") == 0
    said = json.loads(capsys.readouterr().out)["sightings"]["models"]
    assert said == {"prices": {"answering": 1, "problem": ""}}


def test_a_version_that_is_not_there_is_noted(
    store: Path, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may still come, or be visible to the servers alone; but most often it is a slip."""
    assert hosted("add-job", "127.0.0.1:1", "--memory=1G") == 0
    assert hosted("add-model", "prices", table) == 0
    capsys.readouterr()
    assert hosted("rollback", "prices", "1") == 0
    assert "note" not in capsys.readouterr().out
    assert hosted("rollback", "prices", "99") == 0
    printed = capsys.readouterr().out
    assert f"note: version 99 is not in {table}, which has 1" in printed


def test_a_store_has_to_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is kept where nobody said."""
    monkeypatch.delenv("TFS_HOSTED_STORE", raising=False)
    assert hosted("status") == 1
    assert "--store" in capsys.readouterr().err
