"""The rpc area's own logic: which replies are right, what runs where, what counts."""

from __future__ import annotations

import os
import shutil
import sys

import pytest
import torch

from tests.benchmarks import h2load, rpc
from tests.benchmarks.harness import Report
from tests.benchmarks.load import run_closed_loop
from tests.benchmarks.server_process import ServerProcess
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2

INPUTS = torch.tensor([[1.0, -2.0, 0.5, 3.0]])
UNPACKED = h2load.TOOLS / "h2load"
TINY = rpc.Effort(round_s=0.05, num_rounds=1, num_first=64)


def make_reply(inputs: torch.Tensor, *, raw: bool = False) -> bytes:
    """Returns a reply with `inputs` as its only output."""
    response = predict_pb2.PredictResponse()
    tensor = response.outputs["y"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in inputs.shape:
        tensor.tensor_shape.dim.add(size=size)
    if raw:
        tensor.tensor_content = inputs.numpy().tobytes()
    else:
        tensor.float_val.extend(inputs.reshape(-1).tolist())
    return response.SerializeToString()


@pytest.mark.parametrize("raw", [True, False])
def test_a_reply_is_right_if_it_is_what_torch_computes(raw: bool) -> None:
    """Values and shape, in either encoding, and nothing beside them."""
    assert rpc.is_right(make_reply(INPUTS, raw=raw), INPUTS)
    assert not rpc.is_right(make_reply(INPUTS + 1, raw=raw), INPUTS)
    assert not rpc.is_right(make_reply(INPUTS.reshape(2, 2), raw=raw), INPUTS)
    assert not rpc.is_right(b"", INPUTS)


def test_a_server_runs_on_its_core_with_all_its_threads() -> None:
    """What is pinned is pinned before it starts threads or children."""
    script = (
        "import os, signal, threading\n"
        "threads = []\n"
        "def look(): threads.append(os.sched_getaffinity(0))\n"
        "thread = threading.Thread(target=look); thread.start(); thread.join()\n"
        "print('listening on', sorted(threads[0])[0], flush=True)\n"
        "signal.pause()\n"
    )
    (core,), _ = rpc.split_cores()
    with ServerProcess([sys.executable, "-c", script], cores={core}) as server:
        assert server.target == str(core)


def test_the_echo_of_express_returns_every_body() -> None:
    """The floor answers Predict with its bytes, and ends on SIGTERM."""
    command = [sys.executable, "-m", "tests.benchmarks.express_echo"]
    with ServerProcess(command) as server:
        load = run_closed_loop(
            server.target,
            rpc.PREDICT,
            b"abc",
            num_in_flight=4,
            duration_s=0.1,
            check=lambda reply: reply == b"abc",
        )
        pid = server.pid
    assert load.num_ok > 0
    assert load.num_failed == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.skipif(
    shutil.which("h2load") is None and not UNPACKED.is_dir(),
    reason="no h2load here; make bench-rpc unpacks one",
)
def test_a_process_interpreter_is_measured_from_end_to_end() -> None:
    """One row the whole way: servers, checks, h2load, CPU of the tree."""
    pytest.importorskip("uvloop", reason="the reference server wants the extra 'bench'")
    report = Report(rpc.ROWS)
    rpc.measure_process(report, TINY)
    (outcome,) = (one for one in report.outcomes() if one.value is not None)
    assert outcome.row.name.startswith("rpc/small-process-tree-cpu/")
    assert outcome.baseline is not None
    assert outcome.baseline > 0  # its own may take less than a tick
