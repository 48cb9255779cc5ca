"""Train, serve, query, swap and roll back: the whole job in one run.

    make demo

Everything happens in a temporary directory and on a free loopback port. Exits 0
only if every answer equals plain torch's and no request failed.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from client import Answer, DigitsClient, Images, Traffic
from digits import Digits, load_data, train
from digits_net import DigitsNet

import tfs.export

CONFIG = """\
model_config_list {{
  config {{
    name: "digits"
    base_path: "{base_path}"
    {policy}
  }}
}}
"""
TOLERANCE = 1e-4
PATIENCE_S = 60.0


def main() -> int:
    """Runs the demo; returns the exit code."""
    begun_s = time.perf_counter()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    with tempfile.TemporaryDirectory(prefix="tfs-demo-") as scratch:
        return _run(Path(scratch), begun_s)


def _run(scratch: Path, begun_s: float) -> int:
    base_path = scratch / "digits"
    config = scratch / "models.config"
    data = load_data()

    _say("1. Training a small CNN on 1,400 handwritten digits")
    net = DigitsNet()
    train(net, data, 12, "version 1")
    _export(net, data, base_path, 1)
    _write_config(config, base_path, policy="")

    _say("2. Starting the server")
    server, address = _start_server(config)
    try:
        client = DigitsClient(address)
        accuracy, torch_accuracy, num_checked = _check_answers(client, net, data)
        images: Images = data.held_out_images.numpy()
        traffic = Traffic(client, images)
        traffic.start()
        traffic.wait_for(1, 50, PATIENCE_S)

        _say("4. Training on, and dropping version 2 beside it while requests run")
        train(net, data, 6, "version 2")
        _export(net, data, base_path, 2)
        traffic.wait_for(2, 50, PATIENCE_S)
        print("  version 2 answers; nobody was asked to wait")

        _say("5. Rolling back: one edit of the config, specific { versions: 1 }")
        policy = "model_version_policy { specific { versions: 1 } }"
        _write_config(config, base_path, policy)
        traffic.wait_for(1, 50, PATIENCE_S)
        print("  version 1 answers again")

        traffic.stop()
        client.close()
        for version, num in sorted(traffic.num_by_version.items()):
            print(f"  answered by version {version}: {num}")
        for failure in traffic.failures[:5]:
            print(f"  FAILED: {failure}")
    finally:
        server.send_signal(signal.SIGTERM)
        exit_code = server.wait(PATIENCE_S)
    print(f"  server drained and exited with {exit_code}")

    num_requests = traffic.num_requests + num_checked
    num_failed = len(traffic.failures)
    print(
        f"demo: accuracy={accuracy:.4f} torch={torch_accuracy:.4f} "
        f"requests={num_requests} failed={num_failed} swaps=2 "
        f"seconds={time.perf_counter() - begun_s:.1f}"
    )
    return int(bool(num_failed or exit_code or accuracy != torch_accuracy))


def _write_config(config: Path, base_path: Path, policy: str) -> None:
    """Edits the config as an editor does: the server never sees half of it."""
    scratch = config.with_suffix(".new")
    scratch.write_text(CONFIG.format(base_path=base_path, policy=policy))
    scratch.replace(config)


def _export(net: DigitsNet, data: Digits, base_path: Path, version: int) -> None:
    path = tfs.export.save(
        net,
        {"images": data.train_images[:4]},
        str(base_path),
        version=version,
        method="classify",
        labels=[str(digit) for digit in range(10)],
    )
    size_kb = sum(f.stat().st_size for f in Path(path).rglob("*")) / 1000
    print(f"  exported version {version}: model, code and weights, {size_kb:.0f} kB")


def _start_server(config: Path) -> tuple[subprocess.Popen[str], str]:
    """Starts ``tfs serve``; returns it with its address once version 1 is available.

    Its code is new to the server: it is loaded and measured in a process of its own
    first, which takes a second or two.
    """
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tfs",
            "serve",
            "--grpc_host=127.0.0.1",
            "--any_port",
            "--log_level=warning",
            f"--model_config_file={config}",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    address = ""
    for line in server.stdout:
        print(f"  {line.rstrip()}")
        found = re.search(r"listening on (\S+)", line)
        if found:
            address = found[1]
        elif "digits/1 is available" in line:
            return server, address
    raise SystemExit(f"the server ended with {server.wait()}")


def _check_answers(
    client: DigitsClient, net: DigitsNet, data: Digits
) -> tuple[float, float, int]:
    """Compares every held-out image's answers with plain torch's."""
    _say("3. Asking for all 397 held-out digits, by Classify and by Predict")
    with torch.inference_mode():
        expected = net(data.held_out_images)["scores"].numpy()
    labels = data.held_out_labels.numpy()
    images: Images = data.held_out_images.numpy()
    classified = _ask(client.classify, images, "Classify")
    predicted = _ask(client.predict, images, "Predict")
    for index, answers in enumerate(zip(classified, predicted, strict=True)):
        for answer in answers:
            distance = float(np.abs(answer.scores - expected[index]).max())
            if answer.digit != expected[index].argmax() or distance > TOLERANCE:
                raise SystemExit(
                    f"image {index}: served {answer.digit}, torch says "
                    f"{expected[index].argmax()} (scores differ by {distance:.2g})"
                )
    digits = np.array([answer.digit for answer in predicted])
    accuracy = float((digits == labels).mean())
    torch_accuracy = float((expected.argmax(axis=1) == labels).mean())
    print(
        f"  accuracy {accuracy:.4f}; plain torch {torch_accuracy:.4f}, image by image"
    )
    return accuracy, torch_accuracy, len(classified) + len(predicted)


def _ask(
    call: Callable[[Images], Answer], images: Images, title: str
) -> Sequence[Answer]:
    answers = [call(image) for image in images]
    latencies_ms = np.array([answer.latency_s for answer in answers[1:]]) * 1e3
    p50_ms, p99_ms = np.percentile(latencies_ms, (50, 99))
    print(f"  {title:8} {len(answers)} calls, p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms")
    return answers


def _say(text: str) -> None:
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
