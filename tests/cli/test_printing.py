"""How commands print tables, times and JSON."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.operating.model_report import report
from tfs.cli.printing import as_json, table
from tfs.proto.tfs.v1 import admin_service_pb2 as pb


def test_names_are_not_cut_and_control_characters_do_not_come_through() -> None:
    """Names are copied from here, and a model's message may hold a terminal's commands."""
    (_, line) = table(("A", "B", "C"), [("n" * 99, "b" * 99, "\x1b[2Jc")]).splitlines()
    assert line == f"{'n' * 99}  {'b' * 69}...  ?[2Jc"


def test_a_terminal_gets_a_table_of_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long cells go on in the next line, names stay whole, and brackets are no markup."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    drawn = table(("A", "B"), [("digits", "[bold]" + "b" * 60)])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", drawn).splitlines()
    assert lines[0].split() == ["A", "B"]
    assert lines[1].startswith("digits  [bold]")
    assert "".join(line.removeprefix("digits").strip() for line in lines[1:]) == (
        "[bold]" + "b" * 60
    )
    assert max(map(len, lines)) <= 40


def test_json_has_the_names_of_the_proto_files() -> None:
    """Scripts find the fields by the names that the proto files give them."""
    data = json.loads(as_json(report()))
    assert data["canary"]["guards"][0]["name"] == "max_mean_abs_diff"
    assert data["overridden"] is True


def test_json_has_the_same_keys_whatever_the_values() -> None:
    """A script that lists models finds a list, also while there are none."""
    assert json.loads(as_json(pb.ListModelsResponse()))["models"] == []
    data = json.loads(as_json(pb.ModelReport(name="a")))
    assert data["overridden"] is False
    assert "primary" not in data  # nothing answers: version 0 would be one
