"""Asks a server for its health over gRPC: exit 0 if it answers and serves, else 1.

Run as `python healthcheck.py HOST:PORT [SERVICE]`, or with `unix:/path` where the port
speaks TLS; the service is a model's name or `tfs.live`. It needs grpcio only, so that it
starts fast and works whatever else of TFS is broken: the service is the one field of the
request, the status the one of the reply.
"""

from __future__ import annotations

import sys

import grpc

CHECK = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"
TIMEOUT_S = 4.0
_MAX_BYTES = 127  # the longest service name: its length is one byte in the message


def find_fault(target: str, service: str = "") -> str | None:
    """Returns why the server at `target` is unhealthy, or None if it is healthy.

    A server that answers that it has no health service is alive, and counts as healthy.
    """
    with grpc.insecure_channel(target) as channel:
        check = channel.unary_unary(CHECK, bytes, bytes)
        try:
            reply = check(request_for(service), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return None
            return f"{target}: {error.code().name}: {error.details()}"
    if reply != SERVING:
        return f"{target} answers, but is not serving"
    return None


def request_for(service: str) -> bytes:
    """Returns a HealthCheckRequest for a service whose name has up to 127 bytes."""
    name = service.encode()
    return b"\x0a" + bytes((len(name),)) + name if name else b""


def main(argv: list[str]) -> int:
    """Prints the fault, if any, and returns the exit status."""
    if len(argv) not in (2, 3) or len(argv[-1].encode()) > _MAX_BYTES:
        print("usage: healthcheck.py HOST:PORT|unix:PATH [SERVICE]", file=sys.stderr)
        return 2
    fault = find_fault(*argv[1:])
    if fault is not None:
        print(f"unhealthy: {fault}", file=sys.stderr)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
