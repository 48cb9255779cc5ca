"""A client as somebody else writes it: gRPC alone, and ``xds:///`` for an address.

A process of its own, because gRPC reads where ADS is from the environment, once.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc

PREDICT = "/tensorflow.serving.PredictionService/Predict"


class XdsClient:
    """Calls models until closed.

    Args:
        ads: The address where it asks for servers.

    """

    def __init__(self, ads: str) -> None:
        server = {"server_uri": ads, "channel_creds": [{"type": "insecure"}]}
        bootstrap = {"xds_servers": [server], "node": {"id": "somebody"}}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hosted.routing.xds_client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "GRPC_XDS_BOOTSTRAP_CONFIG": json.dumps(bootstrap)},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(
        self,
        model: str,
        message: bytes,
        num: int,
        timeout_s: float,
        *,
        waits: bool = False,
    ) -> None:
        """Sends so many requests, four at once; ``wait_for_ready`` if ``waits``."""
        words = (model, message.hex(), num, timeout_s, waits)
        self._stdin.write(json.dumps(words) + "\n")
        self._stdin.flush()

    def outcomes(self) -> Mapping[str, int]:
        """Returns how often there was each answer or code, of what began first."""
        found: Mapping[str, int] = json.loads(self._stdout.readline())
        return found


def _outcome(channel: grpc.Channel, message: bytes, **how: Any) -> str:
    call: Any = channel.unary_unary(PREDICT, None, None)
    try:
        reply: bytes = call(message, **how)
    except grpc.RpcError as error:
        problem: Any = error
        return str(problem.code().name)
    return reply.decode("latin-1")


def _main() -> None:
    channels: dict[str, grpc.Channel] = {}
    threads = ThreadPoolExecutor(4)
    for line in sys.stdin:
        model, message, num, timeout_s, waits = json.loads(line)
        if model not in channels:
            channels[model] = grpc.insecure_channel(f"xds:///{model}")
        calls = [
            threads.submit(
                _outcome,
                channels[model],
                bytes.fromhex(message),
                timeout=timeout_s,
                wait_for_ready=waits,
            )
            for _ in range(num)
        ]
        counts = collections.Counter(each.result() for each in calls)
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    _main()
