"""tfs.server.request_log.request_logs: how records are written."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfs.codec.tfrecord import read_records
from tfs.core.clock import MonotonicClock
from tfs.core.errors import InvalidArgument
from tfs.core.stats import Stats
from tfs.server.request_log.request_logs import LogWriter, LogWriterOptions
from tfs.testing.fake_clock import FakeClock
from tfs.testing.held_executor import HeldExecutor

START = "20231114-221320"  # the fake clock's wall time


class Written:
    """A writer whose thread a test stands for, and what it wrote."""

    def __init__(self, folder: Path, options: LogWriterOptions | None = None) -> None:
        self.folder = folder
        self.stats = Stats()
        self.clock = FakeClock()
        self.executor = HeldExecutor()
        self.writer = LogWriter(self.clock, self.stats, options, self.executor)
        self.file = self.writer.open(str(folder / "deep" / "log"))

    def submit(self, record: bytes) -> bool:
        return self.writer.submit(self.file, len(record), lambda: record)

    def close(self) -> None:
        self.executor.run_held()
        self.writer.close()

    def files(self) -> dict[str, list[bytes]]:
        found = {}
        for path in sorted(self.folder.glob("deep/*")):
            with path.open("rb") as file:
                found[path.name] = list(read_records(file))
        return found

    def counted(self, name: str, **labels: str) -> float:
        return self.stats.counter(name, **labels).value


def _limit_file_size(num_bytes: int) -> int:
    """Sets how large files may grow; returns what held. Python ignores SIGXFSZ."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, most))
    return before


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    made = Written(tmp_path)
    yield made
    made.close()


def test_records_are_written_in_order_and_whole(written: Written) -> None:
    """What was submitted is in the file once the writer had its turn."""
    assert written.submit(b"one")
    assert written.submit(b"two")
    assert written.files() == {}
    written.executor.run_held()
    assert written.files() == {f"log-{START}-0.tfrecord": [b"one", b"two"]}
    assert written.counted("request_log_records") == 2


def test_a_full_file_is_followed_by_the_next(tmp_path: Path) -> None:
    """Files are rotated by size; none is overwritten."""
    written = Written(tmp_path, LogWriterOptions(max_file_bytes=10))
    for record in (b"one", b"two"):
        written.submit(record)
    written.close()
    assert list(written.files().values()) == [[b"one"], [b"two"]]


def test_the_oldest_files_make_room(tmp_path: Path) -> None:
    """No more files than asked for, whoever wrote them; others' files are not touched."""
    folder = tmp_path / "deep"
    folder.mkdir()
    strangers = ["log-x.tfrecord", f"log2-{START}-0.tfrecord", f"log-{START}-0.txt"]
    for name in [*strangers, "log-20200101-000000-10.tfrecord"]:
        (folder / name).touch()
    (folder / "log-20200101-000000-9.tfrecord").touch()
    written = Written(tmp_path, LogWriterOptions(max_file_bytes=10, max_files=3))
    for record in (b"one", b"two"):
        written.submit(record)
    written.executor.run_held()
    kept = {path.name for path in folder.iterdir()} - set(strangers)
    assert kept == {
        "log-20200101-000000-10.tfrecord",
        f"log-{START}-0.tfrecord",
        f"log-{START}-1.tfrecord",
    }
    for record in (b"three", b"four", b"five"):
        written.submit(record)
    written.close()
    kept = {path.name for path in folder.iterdir()} - set(strangers)
    assert kept == {f"log-{START}-{index}.tfrecord" for index in (2, 3, 4)}


def test_the_files_take_no_more_than_asked_for(tmp_path: Path) -> None:
    """Files are smaller where the bound is, so that a part of the log goes at a time."""
    bound = 400
    written = Written(tmp_path, LogWriterOptions(max_total_bytes=bound))
    for _ in range(100):
        written.submit(b"x" * 34)  # 50 with its frame
        written.executor.run_held()
        taken = [path.stat().st_size for path in (tmp_path / "deep").iterdir()]
        assert sum(taken) <= bound
    assert len(taken) > 2
    assert sum(taken) > bound // 2
    written.close()


def test_a_clock_set_back_deletes_the_oldest_files_all_the_same(
    tmp_path: Path,
) -> None:
    """The oldest files go first even if the clock was set back."""
    written = Written(tmp_path, LogWriterOptions(max_file_bytes=10, max_files=2))
    for hours, record in enumerate((b"one", b"two", b"three", b"four")):
        written.clock.set_wall(1_700_000_000 - 3600 * hours)
        written.submit(record)
        written.executor.run_held()
    written.close()
    assert list(written.files().values()) == [[b"three"], [b"four"]]


def test_a_clock_set_back_deletes_no_file_that_is_written(tmp_path: Path) -> None:
    """The file that is written is not deleted, even if its name is the oldest."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "log-20990101-000000-0.tfrecord").touch()
    written = Written(tmp_path, LogWriterOptions(max_files=1))
    written.submit(b"one")
    written.close()
    assert written.files() == {f"log-{START}-0.tfrecord": [b"one"]}


def test_a_file_that_cannot_be_deleted_costs_no_record(tmp_path: Path) -> None:
    """The bound is broken, and the log says so."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "log-20200101-000000-0.tfrecord").mkdir()
    written = Written(tmp_path, LogWriterOptions(max_files=1))
    written.submit(b"one")
    written.executor.run_held()
    assert (tmp_path / "deep" / f"log-{START}-0.tfrecord").read_bytes()
    assert written.counted("request_log_dropped", reason="disk") == 0
    written.close()


@pytest.mark.parametrize(
    "options",
    [LogWriterOptions(max_queued_records=2), LogWriterOptions(max_queued_bytes=7)],
    ids=["records", "bytes"],
)
def test_what_does_not_fit_is_dropped_and_counted(
    tmp_path: Path, options: LogWriterOptions
) -> None:
    """A slow disk costs log lines; the queue is bounded by number and by size."""
    written = Written(tmp_path, options)
    assert [written.submit(b"abc") for _ in range(3)] == [True, True, False]
    assert written.counted("request_log_dropped", reason="queue") == 1
    written.executor.run_held()
    assert written.submit(b"abc")  # and what was written has made room
    written.close()


def test_a_disk_that_fails_is_told_once(
    written: Written, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Records that cannot be written are counted; writing goes on when it can."""
    (tmp_path / "deep").write_text("a file where the folder should be")
    for _ in range(3):
        written.submit(b"abc")
    written.executor.run_held()
    assert written.counted("request_log_dropped", reason="disk") == 3
    assert caplog.text.count("request_log_unwritable prefix=") == 1
    (problem,) = written.writer.problems
    assert "deep/log cannot be written" in problem
    (tmp_path / "deep").unlink()
    written.submit(b"abc")
    written.executor.run_held()
    assert list(written.files().values()) == [[b"abc"]]
    assert written.writer.problems == []


def test_a_log_that_is_written_does_not_hide_one_that_is_not(
    written: Written, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is told of once, until it is written again or nobody wants it any more."""
    (tmp_path / "deep").write_text("a file where the folder should be")
    other = written.writer.open(str(tmp_path / "other"))
    for _ in range(3):
        written.submit(b"abc")
        written.writer.submit(other, 3, lambda: b"abc")
        written.executor.run_held()
    assert caplog.text.count("request_log_unwritable prefix=") == 1
    assert len(written.writer.problems) == 1
    written.writer.close_file(written.file)
    written.executor.run_held()
    assert written.writer.problems == []


def test_a_full_disk_leaves_whole_records_and_no_litter(tmp_path: Path) -> None:
    """What was lost is counted and cut off; the same file goes on when there is room."""
    written = Written(tmp_path)
    written.submit(b"one")
    written.executor.run_held()
    whole = _limit_file_size(20)  # less than two records with their frames
    try:
        for _ in range(3):
            written.submit(b"lost")
            written.submit(b"lost too")
            written.executor.run_held()
        other = written.writer.open(str(tmp_path / "deep" / "other"))
        written.writer.submit(other, 1000, lambda: b"x" * 1000)
        written.executor.run_held()
    finally:
        _limit_file_size(whole)
    assert written.counted("request_log_records") == 1
    assert written.counted("request_log_dropped", reason="disk") == 7
    written.submit(b"two")
    written.executor.run_held()
    assert written.files() == {f"log-{START}-0.tfrecord": [b"one", b"two"]}
    written.close()


@pytest.mark.parametrize("how", ["folder", "file", "moved"])
def test_a_file_that_was_taken_away_is_followed_by_the_next(
    written: Written, how: str
) -> None:
    """Nothing is written, and counted as written, where nobody finds it."""
    written.submit(b"one")
    written.executor.run_held()
    folder = written.folder / "deep"
    if how == "folder":
        shutil.rmtree(folder)
    elif how == "file":
        (folder / f"log-{START}-0.tfrecord").unlink()
    else:
        folder.joinpath(f"log-{START}-0.tfrecord").rename(written.folder / "elsewhere")
    for record in (b"two", b"three"):
        written.submit(record)
        written.executor.run_held()
    assert written.files() == {f"log-{START}-1.tfrecord": [b"two", b"three"]}
    assert written.counted("request_log_records") == 3
    assert written.counted("request_log_dropped", reason="disk") == 0


def test_a_record_that_cannot_be_made_costs_itself_only(written: Written) -> None:
    """An exception of one record loses neither the thread nor the others."""

    def broken() -> bytes:
        raise ValueError("broken")

    written.writer.submit(written.file, 1, broken)
    written.submit(b"abc")
    written.executor.run_held()
    assert list(written.files().values()) == [[b"abc"]]


def test_closing_writes_what_is_queued(tmp_path: Path) -> None:
    """The thread ends after the last record; later ones are dropped."""
    writer = LogWriter(MonotonicClock(), Stats())
    file = writer.open(str(tmp_path / "log"))
    assert writer.submit(file, 3, lambda: b"one")
    writer.close()
    (path,) = tmp_path.iterdir()
    with path.open("rb") as written:
        assert list(read_records(written)) == [b"one"]
    assert not writer.submit(file, 3, lambda: b"two")


def test_senseless_options_are_refused() -> None:
    """A queue of nothing would drop everything."""
    with pytest.raises(InvalidArgument, match="max_queued_records"):
        LogWriterOptions(max_queued_records=0)
