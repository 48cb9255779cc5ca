"""A fleet of three servers on this machine, under load: one killed, versions changed.

    make demo-hosted

Everything happens in a temporary directory, on Unix sockets. Exits 0 only if no request
failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import torch
from client import DigitsClient, Images, Traffic
from digits import load_data, train
from digits_net import DigitsNet

import tfs.export

NUM_SERVERS = 3
NUM_CALLERS = 4
PATIENCE_S = 120.0


def main() -> int:
    """Runs the demo; returns the exit code."""
    begun_s = time.perf_counter()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    # A short path, because sockets need one.
    with tempfile.TemporaryDirectory(prefix="tfs-") as scratch:
        return _run(Path(scratch), begun_s)


def _run(scratch: Path, begun_s: float) -> int:
    base_path = scratch / "digits"
    router, control = f"unix:{scratch}/router.sock", f"unix:{scratch}/control.sock"
    os.environ["TFS_HOSTED_CONTROLLER"] = control
    data = load_data()
    net = DigitsNet()

    _say("1. Training a small CNN on handwritten digits")
    train(net, data, 6, "version 1")
    _export(net, base_path, 1, data.train_images[:4])

    _say(f"2. tfs hosted up --servers {NUM_SERVERS}")
    fleet = subprocess.Popen(
        [
            *(sys.executable, "-m", "tfs", "hosted", "up"),
            f"--folder={scratch}/fleet",
            f"--servers={NUM_SERVERS}",
            "--memory=3G",
            f"--listen={router}",
            f"--control={control}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        _wait_for_line(fleet, "tfs: ready")
        _hosted("add-model", "digits", str(base_path))

        images: Images = data.held_out_images.numpy()
        callers = [Traffic(DigitsClient(router), images) for _ in range(NUM_CALLERS)]
        for caller in callers:
            caller.start()
        callers[0].wait_for(1, 200, PATIENCE_S)
        loaded_s = time.perf_counter()

        _say("3. kill -9 of one server")
        _kill_one_server(fleet.pid)
        callers[0].wait_for(1, 500, PATIENCE_S)
        print("  the others answer, and a new one is started in its place")

        _say("4. A new version, a canary, a rollback")
        train(net, data, 3, "version 2")
        _export(net, base_path, 2, data.train_images[:4])
        _hosted("add-version", "digits", "2")
        callers[0].wait_for(2, 200, PATIENCE_S)
        train(net, data, 3, "version 3")
        _export(net, base_path, 3, data.train_images[:4])
        _hosted("canary", "digits", "3", "--split=0.2")
        callers[0].wait_for(3, 20, PATIENCE_S)
        _hosted("rollback", "digits", "1")
        callers[0].wait_for(1, 200, PATIENCE_S)
        _hosted("why", "digits")
        _hosted("status")

        for caller in callers:
            caller.stop()
        elapsed_s = time.perf_counter() - loaded_s
    finally:
        _say("5. Ctrl-C")
        fleet.send_signal(signal.SIGINT)
        exit_code = fleet.wait(PATIENCE_S)
    print(f"  the fleet drained and exited with {exit_code}")
    failures = [each for caller in callers for each in caller.failures]
    for failure in failures[:5]:
        print(f"  FAILED: {failure}")
    num_requests = sum(caller.num_requests for caller in callers)
    print(
        f"demo-hosted: servers={NUM_SERVERS} requests={num_requests} "
        f"per_second={num_requests / elapsed_s:.0f} failed={len(failures)} killed=1 "
        f"changes=3 seconds={time.perf_counter() - begun_s:.1f}"
    )
    return int(bool(failures or exit_code))


def _export(
    net: DigitsNet, base_path: Path, version: int, examples: torch.Tensor
) -> None:
    labels = [str(digit) for digit in range(10)]
    tfs.export.save(
        net,
        {"images": examples},
        str(base_path),
        version=version,
        method="classify",
        labels=labels,
    )


def _hosted(*words: str) -> None:
    """Runs a command, and shows it."""
    print(f"  $ tfs hosted {' '.join(words)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "tfs", "hosted", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    print("".join(f"    {line}\n" for line in done.stdout.splitlines()), end="")
    if done.returncode:
        raise SystemExit(f"tfs hosted {words[0]}: {done.stdout}{done.stderr}")


def _kill_one_server(fleet_pid: int) -> None:
    for child in psutil.Process(fleet_pid).children():
        if "serve" in child.cmdline():
            child.kill()
            print(f"  killed process {child.pid}")
            return
    raise SystemExit("no server runs")


def _wait_for_line(fleet: subprocess.Popen[str], start: str) -> None:
    """Shows the fleet's lines up to one, and those after it on a thread."""
    assert fleet.stdout is not None
    for line in fleet.stdout:
        print(f"  {line.rstrip()}", flush=True)
        if line.startswith(start):
            break
    else:
        raise SystemExit(f"the fleet ended with {fleet.wait()}")
    rest = fleet.stdout
    threading.Thread(target=lambda: [print(f"  {x.rstrip()}") for x in rest]).start()


def _say(text: str) -> None:
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
