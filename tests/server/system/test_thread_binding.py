"""Variables that would tie everything to one core."""

from __future__ import annotations

import os

import pytest

from tfs.runtime.process.zygote_process import BINDING, worker_environment
from tfs.server.system.thread_binding import drop_thread_binding


@pytest.mark.parametrize("name", BINDING)
def test_a_variable_that_binds_threads_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Importing torch would confine the server, or a worker, to one core."""
    monkeypatch.setenv(name, "true")
    assert name not in worker_environment()
    drop_thread_binding()
    assert name not in os.environ
    assert name in caplog.text
    caplog.clear()
    drop_thread_binding()
    assert not caplog.text
