"""``tfs hosted``: what its commands print, and what they refuse."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tfs.cli.hosted import size
from tfs.cli.main import main


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
    assert "prices  1 of 2    32.0 MiB  " in printed
    assert "zones   1 of 1    64.0 MiB (fixed)  " in printed, "the rest is as measured"
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
        (["remove-model", "m"], "no model m"),
        (["remove-job", "m"], "no serving job m"),
        (["promote", "m"], "takes a version, or --end"),
        (["rollback", "m", "1", "--end"], "takes a version, or --end"),
        (["rollback", "m", "1"], "no model m"),
        (["canary", "m", "1", "--primary=1"], "no model m"),
        (["run", "--cert=c"], "need --ca"),
        (["run", "--ca=/absent"], "cannot read /absent"),
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


def test_a_store_has_to_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is kept where nobody said."""
    monkeypatch.delenv("TFS_HOSTED_STORE", raising=False)
    assert hosted("status") == 1
    assert "--store" in capsys.readouterr().err
