"""Settings of the whole suite."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator

import pytest
from hypothesis import settings

# The suite gives the same answer every time. New examples are looked for elsewhere:
# HYPOTHESIS_PROFILE=explore make test
settings.register_profile("suite", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


_WAIT_FOR_PROCESSES = {"e2e", "export", "hosted", "runtime", "servables"}


def pytest_configure() -> None:
    """Has what tests start hear a hang-up, though nohup has the suite ignore it.

    The suite goes on ignoring it: only a handler is not inherited.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for no garbage meanwhile, which takes a fifth of the time and finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts what waits for processes of its own first, the rest fills the time.

    A file's tests stay in one process. A file of a minute that began last would be waited
    for by all the others.
    """
    items.sort(key=lambda item: not _WAIT_FOR_PROCESSES.intersection(item.path.parts))


def pytest_collection_finish() -> None:
    """Lets torch compute on the test's own thread, once the tests have imported it.

    Models of tests are small: a second thread has nothing to add, and is waited for
    where the machine has no core to spare. Zygotes, of which tests start many, are forks
    of one, and loads make way for nobody: other tests would keep the cores busy, and each
    load waited for them.

    What was imported and collected is no garbage. Looking for some there takes 0.4 s.
    """
    gc.collect()
    gc.freeze()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    zygotes = sys.modules.get("tfs.runtime.process.zygote")
    if zygotes is not None:
        from tests.runtime.warm_zygotes import WarmZygotes, keep_priority

        keep_priority()
        vars(zygotes)["ZygoteProcess"] = WarmZygotes().start
