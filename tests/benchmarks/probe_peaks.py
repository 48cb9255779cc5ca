"""How near a probe's estimate is to what a version takes when it serves.

Twelve models in the shapes that people serve are tried by a server of a fleet, as
AddVersion has them tried; another server, with one worker for each, then answers the
largest batch of each, again and again. What such a worker took at most, with the weights
and beyond one of a model of a single layer, is compared with the estimate.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import torch
from torch import nn

from tests.benchmarks.models.alexnet import AlexNet
from tests.benchmarks.models.one_layer import OneLayer
from tests.benchmarks.models.real_shaped import Sound, Wide, Words
from tests.benchmarks.models.resnet18 import ResNet18
from tests.benchmarks.server_process import ServerProcess
from tests.models.bert_encoder import BertEncoder
from tests.models.dlrm import DLRM
from tests.models.mobilenet_v3 import MobileNetV3
from tests.models.seq2seq import Translator
from tests.models.tacotron import Tacotron
from tests.models.unet import UNet
from tfs.client import Client
from tfs.core.process_memory import peak_bytes, resident_bytes
from tfs.export import save
from tfs.proto.tfs.v1 import admin_service_pb2 as pb

_LARGEST: Final = 32
_BASE: Final = "nothing"
_TIMEOUT_S: Final = 300.0

Made = tuple[nn.Module, dict[str, torch.Tensor]]


def _image(module: nn.Module, channels: int, size: int) -> Made:
    name = "image" if channels == 1 or isinstance(module, MobileNetV3) else "x"
    return module, {name: torch.rand(2, channels, size, size)}


def _tokens(module: nn.Module, name: str, length: int, most: int) -> Made:
    return module, {name: torch.randint(3, most, (2, length))}


def _encoder() -> Made:
    module, inputs = _tokens(BertEncoder(20_000, 512, 6, 8), "input_ids", 64, 20_000)
    return module, {**inputs, "attention_mask": torch.ones(2, 64, dtype=torch.int64)}


def _ranking() -> Made:
    inputs = {
        "dense": torch.rand(2, 13),
        "categories": torch.randint(0, 100_000, (2, 8, 4)),
    }
    return DLRM(num_rows=100_000, width=32), inputs


MODELS: Final[dict[str, tuple[str, Callable[[], Made]]]] = {
    "alexnet": ("torch_package", lambda: _image(AlexNet(), 3, 224)),
    "resnet18": ("torch_export", lambda: _image(ResNet18(), 3, 224)),
    "mobilenet": ("torch_package", lambda: _image(MobileNetV3(1000), 3, 224)),
    "unet": ("torch_package", lambda: _image(UNet(width=32), 1, 128)),
    "ranking": ("torch_package", _ranking),
    "encoder": ("torch_package", _encoder),
    "perceptron": ("torch_package", lambda: (Wide(), {"x": torch.rand(2, 1024)})),
    "bfloat16": (
        "torch_package",
        lambda: (Wide(torch.bfloat16), {"x": torch.rand(2, 1024)}),
    ),
    "translator": (
        "torch_package",
        lambda: _tokens(Translator(8000, 512, 20), "source", 32, 8000),
    ),
    "speech": (
        "torch_package",
        lambda: _tokens(Tacotron(100, 512, 80, 100), "text", 50, 100),
    ),
    "words": ("torch_package", lambda: _tokens(Words(), "words", 64, 200_000)),
    "sound": ("torch_package", lambda: (Sound(), {"sound": torch.rand(2, 16_000)})),
}


def peaks_over_estimates() -> dict[str, float]:
    """Returns, by model, the most memory that it took over what a probe estimated."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows: dict[str, dict[str, torch.Tensor]] = {}
        shared: dict[str, int] = {}
        for model, (platform, make) in MODELS.items():
            module, inputs = make()
            save(module.eval(), inputs, folder / model, platform=platform)
            rows[model] = inputs
            weights = (*module.parameters(), *module.buffers())
            shared[model] = sum(each.numel() * each.element_size() for each in weights)
        save(OneLayer().eval(), {"x": torch.rand(2, 4)}, folder / _BASE)
        rows[_BASE] = {"x": torch.rand(2, 4)}
        estimates = _estimates(folder)
        peaks = _served_peaks(folder, rows)
    ratios = {}
    for model, estimate in estimates.items():
        taken = shared[model] + peaks[model] - peaks[_BASE]
        ratios[model] = taken / estimate
        print(
            f"  {model}: {taken >> 20} MiB, estimated {estimate >> 20}: "
            f"{ratios[model]:.2f}",
            flush=True,
        )
    return ratios


def _estimates(folder: Path) -> dict[str, int]:
    command = _serve("--source=rpc", f"--state_dir={folder / 'state'}")
    found = {}
    with ServerProcess(command) as server:
        for model in MODELS:
            request = pb.ProbeRequest(version=1)
            request.config.name = model
            request.config.base_path = str(folder / model)
            reply = _admin(server, "Probe", request, pb.ProbeResponse)
            if reply.outcome != pb.ProbeResponse.OK:
                raise RuntimeError(f"{model}: {reply}")
            found[model] = max(reply.load_peak_bytes, reply.work_peak_bytes)
    return found


def _served_peaks(
    folder: Path, rows: dict[str, dict[str, torch.Tensor]]
) -> dict[str, int]:
    """Returns the most memory that the one worker of each model took."""
    models = "".join(
        f'config {{ name: "{model}" base_path: "{folder / model}" '
        "runtime { backend: PROCESS num_interpreters: 1 } }"
        for model in rows
    )
    (empty := folder / "empty.config").write_text("model_config_list {}")
    found = {}
    command = _serve(f"--model_config_file={empty}")
    with ServerProcess(command) as server, Client(server.target) as client:
        asked = pb.ApplyConfigRequest(text=f"model_config_list {{ {models} }}")
        applied = _admin(server, "ApplyConfig", asked, pb.ApplyConfigResponse)
        if applied.status.code:
            raise RuntimeError(applied.status.message)
        for model, inputs in rows.items():
            for num in (1, *(_LARGEST,) * 8):
                batch = {
                    name: each[:1].repeat(num, *(1,) * (each.ndim - 1)).numpy()
                    for name, each in inputs.items()
                }
                client.predict(model, batch, timeout_s=_TIMEOUT_S)
            look = pb.ListModelsRequest(models=[model])
            reply = _admin(server, "ListModels", look, pb.ListModelsResponse)
            (version,) = reply.models[0].versions
            (interpreter,) = version.placement.interpreters
            found[model] = _own_peak_bytes(interpreter.pid)
    return found


def _own_peak_bytes(pid: int) -> int:
    """Returns the most that a process had beside what it shares with others.

    It shares its weights, and with the zygote whatever that had imported by then, which
    is more for some workers of one server than for others.
    """
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    own_kb = int(rollup.partition("Pss_Anon:")[2].split()[0])
    return (peak_bytes(pid) or 0) - (resident_bytes(pid) or 0) + (own_kb << 10)


def _serve(*flags: str) -> list[str]:
    own = ("serve", "--any_port", "--grpc_host=127.0.0.1")
    return [sys.executable, "-m", "tfs", *own, *flags]


def _admin(server: ServerProcess, method: str, request: Any, reply: Any) -> Any:
    with grpc.insecure_channel(server.target) as channel:
        call: Any = channel.unary_unary(f"/tfs.v1.AdminService/{method}", None, None)
        return reply.FromString(call(request.SerializeToString(), timeout=_TIMEOUT_S))


if __name__ == "__main__":
    peaks_over_estimates()
