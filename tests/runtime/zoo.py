"""Small models, packaged whole: nothing here may import the rest of the tests."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings

import torch

from tfs.runtime.batched import batched

COUNTER = 0
RUNNING = 0


class Scale(torch.nn.Module):
    """y = x * factor + bias; the plainest model there is."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor([factor]))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def both(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * self.factor, x + 1

    def named(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scaled": x * self.factor, "extra": x}

    def overwrite(self, x: torch.Tensor) -> torch.Tensor:
        """Writes to its input."""
        x.mul_(self.factor)
        return x

    def write_weights(self, x: torch.Tensor) -> torch.Tensor:
        """Writes to its own weights, as a model with running state does."""
        self.factor.add_(1)
        return x * self.factor

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        """Draws from torch's stream and from Python's."""
        return torch.rand(x.shape) + random.random()

    def describe(self, x: torch.Tensor) -> torch.Tensor:
        """Tells under which conditions it runs: grad, inference, training, threads."""
        row = [
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            self.training,
            torch.get_num_threads(),
        ]
        return torch.tensor([row] * x.shape[0], dtype=torch.float32)

    def count(self, x: torch.Tensor) -> torch.Tensor:
        """Keeps a global of its module, private to the package."""
        global COUNTER
        COUNTER += 1
        return torch.full_like(x, COUNTER)

    def wrong_dtype(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()

    def wrong_rows(self, x: torch.Tensor) -> torch.Tensor:
        return x[:-1]

    def wrong_rank(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=1)

    def fail(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such thing")

    def garbled(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("half a \ud800 pair")

    def speechless(self, x: torch.Tensor) -> torch.Tensor:
        raise Speechless

    def frozen(self, x: torch.Tensor) -> torch.Tensor:
        raise Frozen("no changes")

    def exit(self, x: torch.Tensor) -> torch.Tensor:
        sys.exit(3)

    def unreadable(self, x: torch.Tensor) -> dict[object, torch.Tensor]:
        """Returns names that cannot be told."""
        return {Speechless(): x}

    def untouchable(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a tensor that lets nobody have its values."""
        return x.as_subclass(Untouchable)

    def quantised(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what no signature can promise."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch means to part with it
            return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)

    def meta(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a tensor without values."""
        return torch.empty_like(x, device="meta")

    def crash(self, x: torch.Tensor) -> torch.Tensor:
        """Dies by a signal where the input asks for it."""
        if x[0, 0] < 0:
            signal.raise_signal(signal.SIGSEGV)
        return x * self.factor

    def slow(self, x: torch.Tensor) -> torch.Tensor:
        """Takes as many seconds as the first value says."""
        time.sleep(float(x[0, 0]))
        return x * self.factor

    def pid(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, os.getpid(), dtype=torch.int64)


class ForksAndWaits(torch.nn.Module):
    """Forks a child that returns or raises, and waits for its end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the child's exit status, for each row."""
        pid = os.fork()
        if pid == 0:
            if x[0, 0] < 0:
                raise ValueError("a child's")
            if x[0, 0] == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(1)  # it was not ended
            return x
        _, status = os.waitpid(pid, 0)
        return torch.full_like(x, float(status))


class Threads(torch.nn.Module):
    """Computes on threads that end with the call, as a pool in a ``with`` does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: dict[int, torch.Tensor] = {}

        def compute(index: int) -> None:
            rows[index] = x * index

        for first in range(0, 8, 4):
            threads = [
                threading.Thread(target=compute, args=(first + index,))
                for index in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return torch.stack(list(rows.values())).sum(0)


class Speechless(BaseException):
    """Fails when it is asked what it says."""

    def __str__(self) -> str:
        raise SystemExit("no words")

    __repr__ = __str__


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Refuses to have its traceback set, as all its attributes."""

    reason: str


class Untouchable(torch.Tensor):
    """Refuses whatever torch is asked to do with it."""

    @classmethod
    def __torch_function__(cls, *_args: object, **_keywords: object) -> object:
        raise Speechless


class Spawner(torch.nn.Module):
    """Starts processes beside its own, and answers with their numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forks a copy of itself that goes on as if it were the worker."""
        return torch.full_like(x, os.fork(), dtype=torch.int64)

    def lasting(self, x: torch.Tensor) -> torch.Tensor:
        """A forked child that sleeps, and a program that does."""
        child = os.fork()
        if child == 0:
            time.sleep(1000)
        program = subprocess.Popen(["sleep", "1000"])
        return torch.tensor([[child, program.pid]])

    def nested(self, x: torch.Tensor) -> torch.Tensor:
        """A forked child forks in turn; answers with the grandchild's status."""
        child = os.fork()
        if child == 0:
            sys.unraisablehook = lambda _: os._exit(9)  # what a fork's hooks raise
            grandchild = os.fork()
            if grandchild == 0:
                os._exit(0)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return torch.full_like(x, status, dtype=torch.int64)

    def crash(self, x: torch.Tensor) -> torch.Tensor:
        signal.raise_signal(signal.SIGSEGV)
        return x

    def stubborn(self, x: torch.Tensor) -> torch.Tensor:
        """Starts a program, and never lets go of Python's lock."""
        subprocess.Popen(["sleep", "1000"])
        ctypes.PyDLL(None).sleep(1000)
        return x

    def bare(self, x: torch.Tensor) -> torch.Tensor:
        """Closes all it has open, and never lets go of Python's lock."""
        os.closerange(3, 1 << 16)
        ctypes.PyDLL(None).sleep(1000)
        return x


class Joined(torch.nn.Module):
    """y = 2 x + 1, computed for concurrent requests together."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(2, 2)
        with torch.no_grad():
            self.net.weight.copy_(2 * torch.eye(2))
            self.net.bias.fill_(1)
        self.part = batched(self.net, max_batch_size=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.part(x)
        return y


class Weighted(torch.nn.Module):
    """A model of a given size; its answer depends on every weight."""

    def __init__(self, num_floats: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(num_floats, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight[-1]

    def total(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.sum()


class First(torch.nn.Module):
    """The first column: costs next to nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :1]


class Shout(torch.nn.Module):
    """Strings in, strings out."""

    def forward(self, text: list[bytes]) -> dict[str, object]:
        lengths = torch.tensor([len(item) for item in text])
        return {"loud": [item.upper() for item in text], "length": lengths}


class Embed(torch.nn.Module):
    """Python-bound, many inputs, like a recommender."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = torch.nn.ModuleList(
            torch.nn.EmbeddingBag(50, 8, mode="sum") for _ in range(3)
        )
        self.top = torch.nn.Linear(24, 4)

    def forward(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> torch.Tensor:
        parts = [table(x) for table, x in zip(self.tables, (a, b, c), strict=True)]
        out: torch.Tensor = self.top(torch.cat(parts, dim=1))
        return out


class ActsWhenLoaded(torch.nn.Module):
    """Does what ``on_load`` says when it is unpickled; answers with its input."""

    def __init__(self, folder: str = "") -> None:
        super().__init__()
        self.folder = folder

    def on_load(self) -> None:
        """Does nothing."""

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.on_load()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class DiesWhenLoaded(ActsWhenLoaded):
    """Ends its process while it is unpickled, or only sleeps there."""

    def __init__(self, sleep_s: float = 0.0) -> None:
        super().__init__()
        self.sleep_s = sleep_s

    def on_load(self) -> None:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        else:
            signal.raise_signal(signal.SIGKILL)


def _leave_file(folder: str) -> None:
    """Leaves a file that is named after this process."""
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/{os.getpid()}", "w"):
        pass


def _wait_for_files(folder: str, num: int) -> None:
    """Waits until there are so many files."""
    limit_s = time.monotonic() + 30
    while len(os.listdir(folder)) < num:
        if time.monotonic() > limit_s:
            raise TimeoutError("nobody else comes")
        time.sleep(0.002)


class ExitsWhenLoaded(ActsWhenLoaded):
    """Calls sys.exit() while it is unpickled."""

    def on_load(self) -> None:
        sys.exit(3)


class WaitsForFile(ActsWhenLoaded):
    """Leaves a file in a folder, and answers when there is another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _leave_file(self.folder)
        _wait_for_files(self.folder, 2)
        return x


class MeetsWhenLoaded(ActsWhenLoaded):
    """Leaves a file when it is unpickled; after the first, waits until there are 3."""

    def on_load(self) -> None:
        _leave_file(self.folder)
        if len(os.listdir(self.folder)) > 1:
            _wait_for_files(self.folder, 3)


class SeesImports(ActsWhenLoaded):
    """Tells which of two modules were imported before it was loaded."""

    names = ("tfs.export", "grpc")

    def on_load(self) -> None:
        self.seen = [float(name in sys.modules) for name in self.names]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([self.seen] * len(x))


class WaitsWhenLoaded(ActsWhenLoaded):
    """Leaves a file when it is unpickled, and waits until there are three."""

    def on_load(self) -> None:
        _leave_file(self.folder)
        _wait_for_files(self.folder, 3)


class LeavesAFileAndFails(ActsWhenLoaded):
    """Leaves a file when it is unpickled, which then fails."""

    def on_load(self) -> None:
        _leave_file(self.folder)
        raise ValueError("no such model")


class FailsAgain(ActsWhenLoaded):
    """Can be unpickled once: it makes a folder then."""

    def on_load(self) -> None:
        os.mkdir(self.folder)


class HangsTogether(torch.nn.Module):
    """Waits for ever if it is called while a call runs, and so does that call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global RUNNING
        RUNNING += 1
        time.sleep(0.001)
        while RUNNING > 1:
            time.sleep(0.01)
        RUNNING -= 1
        return x


class Leaks(torch.nn.Module):
    """Takes as many megabytes as its first value says, and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(torch.ones(int(x[0, 0]) << 20, dtype=torch.uint8))
        return x


class Hoarder(torch.nn.Module):
    """Takes as many megabytes as its first value says, and gives them back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = int(x[0, 0]) << 20
        return x + torch.ones(size, dtype=torch.uint8).sum(dtype=torch.uint8) * 0


class TellsHandlers(torch.nn.Module):
    """Fails, and says what logging it found set up."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"root handlers: {logging.getLogger().handlers}")


class Large(torch.nn.Module):
    """One parameter of so many bytes, of which a call reads little."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(size_bytes // 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight[0] + self.weight[-1]
