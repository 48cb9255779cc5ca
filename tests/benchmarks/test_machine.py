"""What a result says about the machine it was measured on."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks import machine


def test_description_names_processor_cores_memory_and_versions(tmp_path: Path) -> None:
    """A figure can be judged only by who knows what it was measured on."""
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast One\n")
    (tmp_path / "meminfo").write_text("MemTotal:       16777216 kB\n")
    text = machine.describe(tmp_path)
    assert text.startswith("Fast One, ")
    assert " cores, 16 GiB, Linux " in text
    assert "Python 3." in text
    assert "torch 2." in text


def test_description_survives_processors_without_a_name(tmp_path: Path) -> None:
    """Some machines name no model; the architecture stands in."""
    (tmp_path / "cpuinfo").write_text("processor : 0\n")
    (tmp_path / "meminfo").write_text("")
    assert " cores, Linux " in machine.describe(tmp_path)


def test_a_busy_machine_is_reported(tmp_path: Path) -> None:
    """Figures taken beside other work are worthless, so the run says so."""
    (tmp_path / "loadavg").write_text("1.25 0.5 0.1 1/100 1234\n")
    assert machine.find_other_load(tmp_path) == "load 1.25"
    (tmp_path / "loadavg").write_text("0.02 0.5 0.1 1/100 1234\n")
    assert machine.find_other_load(tmp_path) is None
