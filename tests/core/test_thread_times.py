"""tfs.core.thread_times: computing is told from standing in line and from sleeping."""

from __future__ import annotations

import threading
import time

from tfs.core.thread_times import ThreadTimes, thread_times


def test_the_kernel_counts_what_a_thread_computes() -> None:
    """A thread's time is read by its number, also by another thread."""
    before = thread_times(threading.get_native_id())
    assert before is not None
    begun_s = time.thread_time()
    while time.thread_time() - begun_s < 0.02:
        pass
    found: list[ThreadTimes | None] = []
    ident = threading.get_native_id()
    other = threading.Thread(target=lambda: found.append(thread_times(ident)))
    other.start()
    other.join()
    assert found[0] is not None
    assert found[0].since(before).ran_s > 0.01
    assert found[0].since(before).queued_s >= 0.0


def test_of_what_is_no_thread_of_this_process_nothing_is_known() -> None:
    """Nothing is known of other processes' threads, or if the kernel counts nothing."""
    assert thread_times(1 << 30) is None
