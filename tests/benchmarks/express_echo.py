"""The floor under TFS over express: returns the request's bytes, whatever was asked.

The transport alone on its serving loop, so the difference to TFS over express is what
serving adds. Run as `python -m tests.benchmarks.express_echo`, in a process of its own
so that its CPU can be counted. It prints `listening on 127.0.0.1:PORT` and ends on
SIGTERM.
"""

from __future__ import annotations

import signal

from tfs.core.call import Call, ListenerOptions, RpcMethod
from tfs.core.clock import MonotonicClock
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.express.transport import ExpressTransport

PREDICT = "/tensorflow.serving.PredictionService/Predict"
CLOSE_TIMEOUT_S = 10.0


def echo(call: Call) -> None:
    """Answers a call with its request."""
    call.reply(bytes(call.message))


def serve_until_sigterm() -> None:
    """Serves on a free port of the loopback, says which, and ends on SIGTERM."""
    # Blocked before any thread starts, so that it waits for sigwait below.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    loop = ServingLoop(name="echo-loop")
    loop.start()
    transport = ExpressTransport(loop)
    (address,) = transport.start(
        [ListenerOptions("grpc", "127.0.0.1:0")], {PREDICT: RpcMethod(PREDICT, echo)}
    )
    print(f"listening on {address}", flush=True)
    signal.sigwait({signal.SIGTERM})
    transport.close()
    loop.close(MonotonicClock.now() + CLOSE_TIMEOUT_S)


if __name__ == "__main__":
    serve_until_sigterm()
