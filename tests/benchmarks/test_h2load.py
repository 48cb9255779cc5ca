"""What h2load's report is worth, and how h2load gets here."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.benchmarks import h2load

REPORT = """\
finished in 250.00ms, 400.00 req/s, 616.00KB/s
requests: 100 total, 100 started, 100 done, {ok} succeeded, {failed} failed, 0 errored
status codes: {ok} 2xx, 0 3xx, 0 4xx, {failed} 5xx
traffic: 14.2KB (14900) total, 3.05KB (3200) headers (space savings 15%), 7KB ({data}) data
"""
LOG = (
    "1700000000000001\t200\t90\n1700000000000002\t200\t30\n1700000000000003\t200\t60\n"
)


def report(*, ok: int = 100, data: int = 7500) -> str:
    return REPORT.format(ok=ok, failed=100 - ok, data=data)


def test_a_report_is_read() -> None:
    """Counts, rate and latencies are h2load's, in base units."""
    load = h2load.parse(report(), LOG)
    assert (load.num_asked, load.num_done, load.num_data_bytes) == (100, 100, 7500)
    assert load.num_answered == 100
    assert load.rate_per_s == pytest.approx(400)
    assert load.latency_us(0.5) == 60
    load.check(reply_bytes=70)


@pytest.mark.parametrize(
    "text", [report(ok=99), report(data=7425), report(data=7501), report(data=0)]
)
def test_replies_that_are_not_the_right_size_are_found(text: str) -> None:
    """One request that failed, or one reply without its message, is enough."""
    with pytest.raises(ValueError, match="100 requests done"):
        h2load.parse(text, LOG).check(reply_bytes=70)


def test_what_is_no_report_is_said() -> None:
    """h2load changes its words: the benchmark stops rather than count nothing."""
    with pytest.raises(ValueError, match="not h2load's report"):
        h2load.parse("no such option\n", "")


class Debian:
    """Answers the commands that unpack a package; notes them."""

    def __init__(self, failing: Sequence[str] = ()) -> None:
        self.commands: list[str] = []
        self._failing = list(failing)

    def __call__(self, command: Sequence[str], folder: Path) -> str:
        text = " ".join(command)
        self.commands.append(text)
        for index, start in enumerate(self._failing):
            if text.startswith(start):
                del self._failing[index]
                raise RuntimeError(f"{start} failed: unable to locate")
        if "apt-cache" in text:
            return "nghttp2-client\n  Depends: libc6\nlibc6\nlibev4\n<virtual>\n"
        if command[0] == "dpkg-query":
            return "libc6 installed\nlibev4 deinstalled\n"
        if "download" in command:
            for name in command[command.index("download") + 1 :]:
                (folder / f"{name}_1_amd64.deb").touch()
        if command[0] == "dpkg":
            (Path(command[3]) / "usr/lib/x86_64-linux-gnu").mkdir(
                parents=True, exist_ok=True
            )
        return ""


@pytest.fixture
def _debian_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool}")


@pytest.mark.usefixtures("_debian_tools")
def test_only_what_is_missing_is_downloaded(tmp_path: Path) -> None:
    """The package and its libraries, but none that the machine has; once."""
    debian = Debian()
    found = h2load.unpack(tmp_path / "h2load", debian)
    assert "apt-get download nghttp2-client libev4" in debian.commands
    assert sum(text.startswith("dpkg -x") for text in debian.commands) == 2
    assert found.program == tmp_path / "h2load/usr/bin/h2load"
    assert found.libraries == tmp_path / "h2load/usr/lib/x86_64-linux-gnu"
    assert [path.name for path in tmp_path.iterdir()] == ["h2load"]
    again = Debian()
    assert h2load.unpack(tmp_path / "h2load", again) == found
    assert again.commands == []


@pytest.mark.usefixtures("_debian_tools")
def test_without_package_lists_own_ones_are_fetched(tmp_path: Path) -> None:
    """A machine that never ran apt-get update needs no root for it."""
    debian = Debian(failing=["apt-get download"])
    h2load.unpack(tmp_path / "h2load", debian)
    updates = [text for text in debian.commands if text.endswith(" update")]
    assert len(updates) == 1
    assert f"Dir::State={tmp_path}" in updates[0]


@pytest.mark.usefixtures("_debian_tools")
def test_a_failed_download_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    """Without network the next attempt starts afresh, and people know the package."""
    debian = Debian(failing=["apt-get download", "apt-get -o"])
    with pytest.raises(h2load.H2loadMissingError, match="apt-get install nghttp2"):
        h2load.unpack(tmp_path / "h2load", debian)
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_apt_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing tool is named, and what would do instead."""
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    with pytest.raises(h2load.H2loadMissingError, match="so is apt-get"):
        h2load.find(tmp_path)
