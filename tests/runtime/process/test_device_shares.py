"""Weights that lie on a device once for all workers.

Each test runs with the system's shared memory for a device, and again on a GPU where
there is one.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package, signature, values
from tests.runtime.process_host import ProcessHost, is_gone, until, wait_for_successor
from tests.runtime.zoo import Heavy
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.crash_policy import CrashPolicy
from tfs.runtime.process.device_shares import DeviceShares
from tfs.runtime.process.process_backend import ProcessBackend
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.process_pool import ProcessPool

X = {"x": floats((1, 2), (3, 4))}
SIGNATURES = {
    name: signature()
    for name in ("serving_default", "write_buffer", "write_plain", "write_parameter")
}
STRICT = ProcessOptions(crashes=CrashPolicy(max_crashes=1))
"""Quarantines whatever is blamed once."""


@dataclass(frozen=True)
class Device:
    """Where weights are shared, and how."""

    name: str
    kinds: Mapping[str, str]

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"


@pytest.fixture(
    params=[
        pytest.param(Device("cpu", {"cpu": "posix"}), id="posix"),
        pytest.param(
            Device("cuda:0", {"cuda": "cuda"}),
            id="cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(
                    not torch.cuda.is_available(), reason="torch sees no CUDA device"
                ),
            ],
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> Device:
    found: Device = request.param
    return found


@pytest.fixture
def shares(host: ProcessHost, device: Device) -> Iterator[DeviceShares]:
    """The keepers of a server that there is not."""
    shares = DeviceShares(host.loop, host.zygote, WorkerOptions(), device.kinds)
    yield shares
    host.close_interpreters()
    host.on_loop(shares.close)


class Loaded:
    """One version in two processes."""

    def __init__(
        self, host: ProcessHost, shares: DeviceShares, source: ModelSource
    ) -> None:
        self.interpreters = [host.interpreter(STRICT, None, shares) for _ in range(2)]
        share = self.interpreters[0].share_of(source)
        self.models: list[ProcessModel] = [
            each.load(source, None, None, share) for each in self.interpreters
        ]

    def answers(self, name: str = "serving_default") -> list[object]:
        """What each of them says to the same request."""
        return [values(ask(each, X, name).outputs()["y"]) for each in self.models]

    @property
    def shared_bytes(self) -> int:
        """What the workers share, by what they said of it."""
        share = self.models[0].share
        assert share is not None
        return share.shared_bytes

    def assert_shared(self, num_storages: int) -> set[str]:
        """Looks at what both have mapped, where that shows; returns it."""
        assert bool(self.shared_bytes) == bool(num_storages)
        if self.models[0].source.device != "cpu":
            return set()
        first, second = (held(each.pid) for each in self.interpreters)
        assert first == second
        assert len(first) == num_storages
        return first

    def unload(self) -> None:
        for each in self.models:
            each.unload()


def heavy(
    folder: Path, device: Device, name: str = "heavy"
) -> tuple[ModelSource, object]:
    """A version, and what the plain model answers there."""
    torch.manual_seed(3)
    model = Heavy().eval()
    source = package(folder, model, SIGNATURES, name)
    return replace(source, device=device.name), plain(model, device)


def plain(model: torch.nn.Module, device: Device) -> object:
    model.to(device.name)
    if isinstance(model, Heavy):
        model.halves = [each.to(device.name) for each in model.halves]
    x = torch.tensor([[1.0, 2], [3, 4]], device=device.name)
    with torch.inference_mode():
        return model(x).tolist()


def held(pid: int | None) -> set[str]:
    """The device's memory that a process has mapped, by its number."""
    assert pid is not None
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "memfd:tfs:held" in line}


def num_held(keeper: int | None) -> int:
    """How many storages the keeper has."""
    folder = f"/proc/{keeper}/fd"
    links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
    return sum("memfd:tfs:held" in link for link in links)


def mapped_kb(pid: int | None, name: str) -> int:
    """How much of a file in memory a process has touched."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    found = re.findall(rf"memfd:tfs:{re.escape(name)}.*?\nRss: +(\d+)", text, re.DOTALL)
    assert found
    return sum(map(int, found))


def test_parameters_lie_on_the_device_once(
    host: ProcessHost, device: Device, shares: DeviceShares, tmp_path: Path
) -> None:
    """All workers look into the keeper's one copy, and answer as the plain model does."""
    source, expected = heavy(tmp_path, device)
    loaded = Loaded(host, shares, source)
    loaded.assert_shared(1)  # the parameter; the buffer and the tensors are their own
    assert loaded.shared_bytes == 64 * 1024 * 4
    if not device.is_gpu:
        keeper = shares.keeper_pid(device.name)
        until(lambda: num_held(keeper) == 1, "the keeper to close what it handed out")
    assert loaded.answers() == [expected, expected]
    # What was copied to the device is no longer the keeper's in the system's memory.
    assert mapped_kb(shares.keeper_pid(device.name), "model.pt") == 0


@pytest.mark.parametrize("name", ["write_buffer", "write_plain"])
def test_what_is_no_parameter_is_each_workers_own(
    host: ProcessHost, device: Device, shares: DeviceShares, tmp_path: Path, name: str
) -> None:
    """A model that writes to its state changes nobody else's, and stays one model."""
    source, expected = heavy(tmp_path, device)
    loaded = Loaded(host, shares, source)
    once, twice = (ask(loaded.models[0], X, name).outputs()["y"] for _ in range(2))
    assert values(once) != expected
    assert values(twice) != values(once)
    assert values(ask(loaded.models[0], X).outputs()["y"]) == values(twice)
    assert values(ask(loaded.models[1], X).outputs()["y"]) == expected
    loaded.assert_shared(1)


def test_a_version_that_writes_to_its_parameters_gets_copies(
    host: ProcessHost,
    device: Device,
    shares: DeviceShares,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What one worker wrote, others do not keep; the version is told of, not blamed."""
    source, expected = heavy(tmp_path, device)
    loaded = Loaded(host, shares, source)
    pids = [each.pid for each in loaded.interpreters]
    keeper = shares.keeper_pid(device.name)
    assert keeper is not None
    with caplog.at_level(logging.WARNING):
        ask(loaded.models[0], X, "write_parameter").outputs()
        for interpreter, pid in zip(loaded.interpreters, pids, strict=True):
            wait_for_successor(interpreter, pid)
    assert "it writes to its parameters" in caplog.text
    assert loaded.answers() == [expected, expected]
    loaded.assert_shared(0)
    ask(loaded.models[0], X, "write_parameter").outputs()
    assert values(ask(loaded.models[1], X).outputs()["y"]) == expected
    until(lambda: is_gone(keeper), "the keeper's end: nobody shares anything")


def test_a_worker_that_is_killed_leaves_the_others_what_they_share(
    host: ProcessHost, device: Device, shares: DeviceShares, tmp_path: Path
) -> None:
    """The next one shares the same memory; the keeper has seen nothing of it."""
    source, expected = heavy(tmp_path, device)
    loaded = Loaded(host, shares, source)
    before, keeper = loaded.assert_shared(1), shares.keeper_pid(device.name)
    one, two = loaded.interpreters
    pid, other = one.pid, two.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for_successor(one, pid)
    assert loaded.answers() == [expected, expected]
    assert loaded.assert_shared(1) == before
    assert (two.pid, shares.keeper_pid(device.name)) == (other, keeper)


def test_workers_end_with_their_keeper_and_come_back_with_another(
    host: ProcessHost, device: Device, shares: DeviceShares, tmp_path: Path
) -> None:
    """No model is blamed: it did nothing."""
    source, expected = heavy(tmp_path, device)
    loaded = Loaded(host, shares, source)
    pids = [each.pid for each in loaded.interpreters]
    keeper = shares.keeper_pid(device.name)
    assert keeper is not None
    os.kill(keeper, signal.SIGKILL)
    for interpreter, pid in zip(loaded.interpreters, pids, strict=True):
        wait_for_successor(interpreter, pid)
    assert loaded.answers() == [expected, expected]
    loaded.assert_shared(1)
    assert shares.keeper_pid(device.name) not in (None, keeper)


def test_a_keeper_that_dies_too_often_is_not_wait_for_successor(
    host: ProcessHost, device: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers have copies of their own then, and the log says why."""
    shares = DeviceShares(
        host.loop,
        host.zygote,
        WorkerOptions(),
        device.kinds,
        CrashPolicy(max_crashes=1),
    )
    source, expected = heavy(tmp_path, device)
    loaded = Loaded(host, shares, source)
    pids = [each.pid for each in loaded.interpreters]
    keeper = shares.keeper_pid(device.name)
    assert keeper is not None
    with caplog.at_level(logging.WARNING):
        os.kill(keeper, signal.SIGKILL)
        for interpreter, pid in zip(loaded.interpreters, pids, strict=True):
            wait_for_successor(interpreter, pid)
    assert loaded.answers() == [expected, expected]
    loaded.assert_shared(0)
    assert shares.keeper_pid(device.name) is None
    assert "its keeper died 1 times" in caplog.text


def test_unloading_a_version_frees_its_memory_and_no_other(
    host: ProcessHost, device: Device, shares: DeviceShares, tmp_path: Path
) -> None:
    """With the last version the keeper goes, and its context with it."""
    (source, expected), (other, _) = (
        heavy(tmp_path, device),
        heavy(tmp_path, device, "other"),
    )
    loaded = Loaded(host, shares, source)
    others = Loaded(host, shares, other)
    keeper = shares.keeper_pid(device.name)
    assert keeper is not None

    def look() -> int:
        return 0 if device.is_gpu else num_held(keeper)

    # A worker can answer before the keeper has closed what it handed out.
    before = 0
    if not device.is_gpu:
        before = len(
            held(loaded.interpreters[0].pid) | held(others.interpreters[0].pid)
        )
        until(lambda: look() == before, "the keeper to keep no more than is mapped")
    others.models[0].unload()
    assert look() == before
    others.models[1].unload()
    assert look() == max(0, before - 1)  # at once: unloading waits for it
    assert loaded.answers() == [expected, expected]
    # As torch makes them where a device's memory is shared.
    counters = Path(f"/dev/shm/torch_{keeper}_1234_0")
    counters.touch()
    loaded.unload()
    assert shares.keeper_pid(device.name) is None
    until(lambda: is_gone(keeper), "the keeper's end")
    assert not counters.exists()


def test_two_versions_in_one_process_have_a_share_each(
    host: ProcessHost, device: Device, shares: DeviceShares, tmp_path: Path
) -> None:
    """Unloading one gives its memory back though the process stays."""
    (source, _), (other, expected) = (
        heavy(tmp_path, device),
        heavy(tmp_path, device, "other"),
    )
    interpreter = host.interpreter(STRICT, None, shares)
    models = [interpreter.load(source), interpreter.load(other)]
    pid = interpreter.pid
    if device.is_gpu:
        models[0].unload()
    else:
        assert len(held(pid)) == 2
        models[0].unload()
        assert num_held(shares.keeper_pid(device.name)) == len(held(pid)) == 1
    assert values(ask(models[1], X).outputs()["y"]) == expected
    assert interpreter.pid == pid


def test_a_pool_shares_among_its_processes(
    host: ProcessHost, device: Device, shares: DeviceShares, tmp_path: Path
) -> None:
    """The processes of a pool, which load side by side, share the weights."""
    source, expected = heavy(tmp_path, device)
    members = [host.interpreter(STRICT, None, shares) for _ in range(3)]
    model = ProcessPool("pool", members, STRICT).load(source)
    assert values(ask(model, X).outputs()["y"]) == expected
    if not device.is_gpu:
        assert len(set.union(*(held(each.pid) for each in members))) == 1
    model.unload()
    assert shares.keeper_pid(device.name) is None


def test_a_version_that_does_not_load_leaves_nothing_on_the_device(
    host: ProcessHost, device: Device, shares: DeviceShares, tmp_path: Path
) -> None:
    """Whatever had been opened of it."""
    source, _ = heavy(tmp_path, device)
    signatures = {**SIGNATURES, "absent": signature()}
    entry = {"methods": {"absent": "absent"}}
    broken = replace(source, entry=entry, signatures=signatures)
    with pytest.raises(Exception, match="absent"):
        host.interpreter(STRICT, None, shares).load(broken)
    until(lambda: shares.keeper_pid(device.name) is None, "the keeper's end")


def test_where_memory_cannot_be_shared_workers_have_copies(
    host: ProcessHost, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Asked for a device that there is not, the keeper refuses; the log says it once."""
    device = Device("cpu", {"cpu": "cuda"})
    shares = DeviceShares(host.loop, host.zygote, WorkerOptions(), device.kinds)
    (source, expected), (other, _) = (
        heavy(tmp_path, device, name) for name in ("heavy", "other")
    )
    with caplog.at_level(logging.WARNING):
        loaded = [Loaded(host, shares, each) for each in (source, other)]
    assert loaded[0].answers() == loaded[1].answers() == [expected, expected]
    told = [each for each in caplog.messages if "event=weights_not_shared" in each]
    assert len(told) == 1
    assert "device=cpu" in told[0]
    until(lambda: shares.keeper_pid(device.name) is None, "the keeper's end")


SERVABLE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(64, 1024))
        self.register_buffer("table", torch.zeros(32, 1024))

    def forward(self, x):
        return (x @ self.weight[:2]) @ self.weight[:2].T + self.table.mean()

class Servable:
    def load(self, version):
        self.model = Model().to(version.device)
        self.model.load_state_dict(version.weights, assign=ASSIGN)

    def predict(self, x):
        return {"y": self.model(x)}
"""


class Plain(torch.nn.Module):
    """What SERVABLE makes, for the other platforms."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(64, 1024))
        self.table = torch.nn.Buffer(torch.rand(32, 1024))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight[:2]) @ self.weight[:2].T + self.table.mean()


def written(folder: Path, form: str, device: Device) -> tuple[ModelSource, object]:
    """A version of one of the platforms, and what the plain model answers."""
    torch.manual_seed(5)
    model = Plain().eval()
    platform = "python"
    match form:
        case "torch_export":
            platform = form
            program = torch.export.export(
                model, (torch.ones(2, 2),), dynamic_shapes=({0: torch.export.Dim("n")},)
            )
            torch.export.save(program, folder / "model.pt2")
        case "torchscript":
            platform = form
            with warnings.catch_warnings(action="ignore"):  # TorchScript is old
                torch.jit.save(torch.jit.script(model), str(folder / "model.pt"))
        case "safetensors":
            save_file(dict(model.state_dict()), folder / "weights.safetensors")
        case _:
            torch.save(dict(model.state_dict()), folder / "weights.pt")
    if platform == "python":
        is_assigned = str(form != "copied")
        (folder / "servable.py").write_text(SERVABLE.replace("ASSIGN", is_assigned))
    signatures = {"serving_default": signature()}
    source = ModelSource(
        ServableId(form, 1), str(folder), platform, {}, signatures, device.name
    )
    return source, plain(model, device)


@pytest.mark.parametrize(
    ("form", "num_shared"),
    [
        ("torch_export", 1),
        ("torchscript", 1),
        ("safetensors", 1),
        ("checkpoint", 1),
        ("copied", 0),
    ],
)
def test_every_platform_shares_what_it_has_as_parameters(
    host: ProcessHost,
    device: Device,
    shares: DeviceShares,
    tmp_path: Path,
    form: str,
    num_shared: int,
) -> None:
    """However the weights are written; what a model copies by itself is its own."""
    source, expected = written(tmp_path, form, device)
    loaded = Loaded(host, shares, source)
    loaded.assert_shared(num_shared)
    assert loaded.answers() == [expected, expected]
    loaded.unload()
    # Of what nobody shared it was rid before, and nobody waited for that.
    until(lambda: shares.keeper_pid(device.name) is None, "the end of the keeper")


WAITING = """
import os
import time
from pathlib import Path

class Waiting(Servable):
    def load(self, version):
        super().load(version)
        Path(version.path, "loading").touch()
        while not Path(version.path, "go").exists():
            time.sleep(0.01)
"""


def test_a_keeper_that_dies_while_a_version_is_loaded_spoils_no_load(
    host: ProcessHost, device: Device, shares: DeviceShares, tmp_path: Path
) -> None:
    """The version comes up, and its worker is replaced as if it had been up before."""
    source, expected = written(tmp_path, "safetensors", device)
    code = (tmp_path / "servable.py").read_text() + WAITING
    (tmp_path / "servable.py").write_text(code)
    source = replace(source, entry={"class": "Waiting"})
    interpreter = host.interpreter(STRICT, None, shares)
    with ThreadPoolExecutor(1) as executor:
        loading = executor.submit(interpreter.load, source)
        until((tmp_path / "loading").exists, "the load")
        keeper, pid = shares.keeper_pid(device.name), interpreter.pid
        assert keeper is not None
        os.kill(keeper, signal.SIGKILL)
        until(lambda: shares.keeper_pid(device.name) != keeper, "its end to be noticed")
        (tmp_path / "go").touch()
        model = loading.result()
    wait_for_successor(interpreter, pid)
    assert values(ask(model, X).outputs()["y"]) == expected
    assert shares.keeper_pid(device.name) not in (None, keeper)


def test_the_servers_backend_shares_what_its_options_say(
    host: ProcessHost, device: Device, tmp_path: Path
) -> None:
    """A version's pool has its weights on the device once; closing leaves nothing."""
    source, expected = heavy(tmp_path, device)
    options = ProcessOptions(kept_devices=device.kinds)
    backend = ProcessBackend(host.loop, options)
    try:
        pool = backend.pool(2)
        model = pool.load(source)
        assert values(ask(model, X).outputs()["y"]) == expected
        if not device.is_gpu:
            pids = [each.pid for each in pool.interpreters]
            assert held(pids[0]) == held(pids[1]) != set()
    finally:
        backend.close()
    pids = [each.pid for each in pool.interpreters]
    assert pids == [None, None]
