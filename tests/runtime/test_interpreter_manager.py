"""The library API, the paper's two programs of figure 2 first."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch.package.package_exporter import PackageExporter

from tests.runtime.dlmopen_host import needs_dlmopen
from tests.runtime.process_host import until
from tests.runtime.zoo import Scale, Weighted
from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
)
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.interpreter_manager import InterpreterManager
from tfs.runtime.library.interpreters import ProcessChannel
from tfs.runtime.process.process_options import ProcessOptions
from tfs.testing.patience import PATIENCE_S

GPU_INFERENCE = """
import torch

class GPUModel(torch.nn.Module):
    '''Moves inputs to the device of its model and back (here: the CPU).'''

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.offset = torch.ones(1)

    def forward(self, x):
        return self.model(x.to("cpu")).to("cpu") + self.offset
"""

POST_PROCESS = """
class PostProcessImage:
    def __new__(cls, image):
        return image.clamp(0, 4)
"""


def archive(path: Path, model: object) -> Path:
    with (
        warnings.catch_warnings(action="ignore"),
        PackageExporter(str(path)) as exporter,
    ):
        exporter.intern("tests.**")
        exporter.extern("**")
        exporter.save_source_string("gpu_inference", GPU_INFERENCE)
        exporter.save_source_string("post_process", POST_PROCESS)
        exporter.save_pickle("model", "model.pkl", model)
    return path


@pytest.fixture(scope="module", params=["process", "dlmopen"])
def manager(request: pytest.FixtureRequest) -> Iterator[InterpreterManager]:
    if request.param == "dlmopen":
        needs_dlmopen()
    with InterpreterManager(2, backend=request.param) as manager:
        yield manager


def test_figure_2_first_program(manager: InterpreterManager, tmp_path: Path) -> None:
    """Many threads call one movable object; the manager balances the interpreters."""
    package = manager.load_package(archive(tmp_path / "mobile_net_v3", Scale(3.0)))
    model = package.load_pickle("model", "model.pkl")
    images = [torch.rand(1, 3, 8, 8) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(model, images, timeout=PATIENCE_S))
    for image, result in zip(images, results, strict=True):
        assert isinstance(result, torch.Tensor)
        assert torch.equal(result, image * 3.0)


def test_figure_2_second_program(manager: InterpreterManager, tmp_path: Path) -> None:
    """A model is wrapped in one session, moved, and used in others with more steps."""
    package = manager.load_package(archive(tmp_path / "mobile_net_v3", Scale(3.0)))
    with package.acquire_session() as session:
        cpu_model = session.self.attr("load_pickle")("model", "model.pkl")
        gpu_model_class = session.global_("gpu_inference", "GPUModel")
        gpu_model = session.create_movable(gpu_model_class(cpu_model))
    image = torch.rand(1, 3, 8, 8)

    def infer(_: int) -> object:
        with gpu_model.acquire_session() as session:
            output_image = session.self(image)
            post = session.global_("post_process", "PostProcessImage")
            return post(output_image).value()

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(infer, range(8), timeout=PATIENCE_S))
    for result in results:
        assert isinstance(result, torch.Tensor)
        assert torch.equal(result, (image * 3.0 + 1).clamp(0, 4))


def test_values_pass_both_ways(manager: InterpreterManager) -> None:
    """Plain values and containers of them come back as they went."""
    value = {"a": [1, 2.5, None, True], "b": ("x", b"\x00y"), 3: {"t": [1]}, "e": []}
    described = ("float32", (2,), 0, 8)  # as a tensor is, on its way
    with manager.acquire_session() as session:
        copy = session.global_("copy", "copy")
        assert copy([value, described]).value() == [value, described]
        tensor = torch.arange(6).view(2, 3)
        back = copy([tensor, torch.empty(0, 2), torch.tensor(1.5)]).value()
        assert isinstance(back, list)
        assert torch.equal(back[0], tensor)
        assert back[1].shape == (0, 2)
        assert back[2].item() == 1.5
        large = torch.rand(1 << 18)
        assert torch.equal(copy(large).value(), large)  # type: ignore[arg-type]
        assert copy(session.global_("math", "pi")).value() == pytest.approx(3.14159265)
        assert session.self.value() is None


def test_what_cannot_pass_is_refused(manager: InterpreterManager) -> None:
    """Objects stay in their interpreter; the message says what can leave."""
    with manager.acquire_session() as session:
        counter = session.global_("itertools", "count")()
        with pytest.raises(InvalidArgument, match="count cannot pass"):
            counter.value()
        assert session.global_("builtins", "next")(counter).value() == 0
        with pytest.raises(InvalidArgument, match="type cannot pass"):
            session.global_("collections", "Counter").value()
        with pytest.raises(InvalidArgument, match="cannot pass"):
            session.global_("copy", "copy")(object())
        with pytest.raises(InvalidArgument, match=r"ndarray cannot.*torch\.as_tensor"):
            session.global_("copy", "copy")(torch.ones(1).numpy())
        with pytest.raises(InvalidArgument, match="cannot be called"):
            session.global_("math", "pi")()


def test_errors_name_what_failed(manager: InterpreterManager, tmp_path: Path) -> None:
    """Whatever user code raises arrives as a serving error; the session goes on."""
    with manager.acquire_session() as session:
        with pytest.raises(Internal, match="no_such_module"):
            session.global_("no_such_module", "x")
        with pytest.raises(Internal, match="no_such_name"):
            session.global_("math", "no_such_name")
        with pytest.raises(Internal, match="ValueError"):
            session.global_("math", "sqrt")(-1.0)
        with pytest.raises(Internal, match="SystemExit"):
            session.global_("sys", "exit")(3)
        assert session.global_("math", "sqrt")(4.0).value() == 2.0
    with pytest.raises(NotFound):
        manager.load_package(tmp_path / "absent.pt")
    package = manager.load_package(archive(tmp_path / "good.pt", Scale()))
    with pytest.raises(NotFound, match=r"other\.pkl"):
        package.load_pickle("model", "other.pkl")
    with package.acquire_session() as session:
        loaded = session.self.attr("load_pickle")("model", "model.pkl")
        with pytest.raises(
            Internal, match=r"\(tests/runtime/zoo\.py, line \d+, in fail"
        ):
            loaded.attr("fail")(torch.ones(1))
        with pytest.raises(InvalidArgument, match="object of this session"):
            session.create_movable(torch.ones(1))  # type: ignore[arg-type]
        dumps = session.global_("operator", "attrgetter")("forward.__code__")
        with pytest.raises(InvalidArgument, match="What moves is pickled"):
            session.create_movable(dumps(loaded))


def test_tensors_and_containers_that_cannot_pass_say_so(
    manager: InterpreterManager,
) -> None:
    """The error says what cannot pass, not which function of torch failed."""
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    unfit = {
        "bits8": torch.empty(2, dtype=torch.bits8),
        "meta": torch.ones(2, device="meta"),
        "nested too deeply": deep,
    }
    with manager.acquire_session() as session:
        repeat = session.global_("operator", "itemgetter")(0)
        for words, value in unfit.items():
            with pytest.raises(InvalidArgument, match=words):
                repeat([value])
        meta = session.global_("torch", "empty")(2, device="meta")
        with pytest.raises(InvalidArgument, match="meta"):
            meta.value()
        assert repeat([1]).value() == 1
        endless: list[object] = []
        endless.append(endless)
        assert repeat([3, endless]).value() == 3


CENSUS = """
import weakref

alive = weakref.WeakSet()

class Counted:
    def __init__(self):
        alive.add(self)

    def __setstate__(self, state):
        alive.add(self)

    def __getstate__(self):
        return {"any": "state"}

    def __call__(self):
        return len(alive)

def num_alive():
    return len(alive)
"""


def test_what_nobody_refers_to_any_more_is_dropped_everywhere(
    manager: InterpreterManager, tmp_path: Path
) -> None:
    """A program that makes an object for each request does not fill the interpreters."""
    path = tmp_path / "census.pt"
    with (
        warnings.catch_warnings(action="ignore"),
        PackageExporter(str(path)) as exporter,
    ):
        exporter.save_source_string("census", CENSUS)
        exporter.save_text("census", "note", "")
    package = manager.load_package(path)

    def nums_alive() -> list[object]:
        with package.acquire_session() as first, package.acquire_session() as second:
            both = (first, second)
            return [each.global_("census", "num_alive")().value() for each in both]

    with package.acquire_session() as session:
        counted = session.global_("census", "Counted")
        movables = [session.create_movable(counted()) for _ in range(3)]
    for movable in movables:
        with movable.acquire_session(), movable.acquire_session():
            pass  # on either interpreter
    assert nums_alive() == [3, 3]
    del movables, movable, counted, session
    gc.collect()
    assert nums_alive() == [0, 0]


@pytest.mark.parametrize("backend", ["process", "dlmopen"])
def test_a_manager_that_closes_gives_back_what_was_loaded(
    backend: Literal["process", "dlmopen"], tmp_path: Path
) -> None:
    """Closing frees packages and objects, even if somebody still refers to them."""
    if backend == "dlmopen":
        needs_dlmopen()
    path = archive(tmp_path / "kept-after-close.pt", Weighted(1024))

    def num_open() -> int:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        names = [os.readlink(link) for link in links if os.path.lexists(link)]
        return sum("kept-after-close" in name for name in names)

    with InterpreterManager(1, backend=backend) as manager:
        package = manager.load_package(path)
        model = package.load_pickle("model", "model.pkl")
        assert num_open()
    gc.collect()
    assert num_open() == 0
    with pytest.raises(Unavailable):
        model(torch.ones(1))


def test_an_interpreter_that_does_not_close_keeps_nothing_else_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error is raised when all else is closed."""
    manager = InterpreterManager(2)
    package = manager.load_package(archive(tmp_path / "open.pt", Scale()))

    def hang(_channel: ProcessChannel, _deadline_s: float) -> None:
        raise Internal("interpreter does not close")

    monkeypatch.setattr(ProcessChannel, "close", hang)
    with pytest.raises(Internal, match="does not close"):
        manager.close()
    assert package._file.fd < 0
    assert not [each for each in threading.enumerate() if "manager" in each.name]


def test_a_package_nobody_refers_to_is_closed(
    manager: InterpreterManager, tmp_path: Path
) -> None:
    """Its memory is not the manager's for good."""
    package = manager.load_package(archive(tmp_path / "short-lived.pt", Scale()))
    gone = weakref.ref(package)
    file = package._file
    del package
    gc.collect()
    assert gone() is None
    assert file.fd < 0


def test_a_session_can_use_and_wrap_movable_objects(
    manager: InterpreterManager, tmp_path: Path
) -> None:
    """Movable objects, of other packages too, may be arguments in a session."""
    package = manager.load_package(archive(tmp_path / "wrapping.pt", Scale(2.0)))
    other = manager.load_package(archive(tmp_path / "other.pt", Scale(3.0)))
    model = other.load_pickle("model", "model.pkl")
    x = torch.ones(2)
    with package.acquire_session() as session:
        wrapped = session.global_("gpu_inference", "GPUModel")(model)
        assert torch.equal(wrapped(x).value(), x * 3 + 1)  # type: ignore[arg-type]
        pair = session.global_("builtins", "list")([model, model])
        is_same = session.global_("operator", "is_")
        get = session.global_("operator", "getitem")
        assert is_same(get(pair, 0), get(pair, 1)).value() is True
        moved = session.create_movable(wrapped)
    assert torch.equal(moved(x), x * 3 + 1)  # type: ignore[arg-type]
    with (
        InterpreterManager(1) as stranger,
        stranger.acquire_session() as session,
        pytest.raises(InvalidArgument, match="another InterpreterManager"),
    ):
        session.global_("builtins", "list")([model])


def test_a_closed_package_says_so(manager: InterpreterManager, tmp_path: Path) -> None:
    """What a session has of it is good till its end, and nothing new can be had."""
    package = manager.load_package(archive(tmp_path / "closed.pt", Scale(3.0)))
    with package.acquire_session() as session:
        loaded = session.self.attr("load_pickle")("model", "model.pkl")
        package.close()
        assert loaded(torch.ones(1)).value() == 3
        with pytest.raises(FailedPrecondition, match="closed"):
            session.global_("post_process", "PostProcessImage")
        with pytest.raises(FailedPrecondition, match="closed"):
            session.create_movable(loaded)
    with pytest.raises(FailedPrecondition, match="closed"):
        package.acquire_session()


def test_values_end_with_their_session(
    manager: InterpreterManager, tmp_path: Path
) -> None:
    """A value is of no use afterwards, nor in another session."""
    package = manager.load_package(archive(tmp_path / "scale.pt", Scale()))
    with package.acquire_session() as session:
        value = session.global_("math", "pi")
        with package.acquire_session() as other, pytest.raises(InvalidArgument):
            other.create_movable(value)
        with package.acquire_session() as other, pytest.raises(InvalidArgument):
            other.global_("math", "sqrt")(value)
    session.close()
    with pytest.raises(FailedPrecondition, match="ended"):
        value.value()


def test_an_object_is_made_once_per_interpreter(
    manager: InterpreterManager, tmp_path: Path
) -> None:
    """State a model keeps stays in its interpreter, and drop makes it anew."""
    package = manager.load_package(archive(tmp_path / "scale.pt", Scale()))
    model = package.load_pickle("model", "model.pkl")
    x = torch.zeros(1)
    counts = []
    for _ in range(2):
        with model.acquire_session() as session:
            count = session.self.attr("count")
            counts.append(count(x).value())
    assert [int(each) for each in counts] == [1, 2]  # type: ignore[call-overload]
    model.drop()
    assert torch.equal(model(x), x)  # type: ignore[arg-type]


def test_what_a_session_changed_moves_along(
    manager: InterpreterManager, tmp_path: Path
) -> None:
    """Weights written in a session are moved as they are, not as the archive has them."""
    package = manager.load_package(archive(tmp_path / "scale.pt", Scale(2.0)))
    with package.acquire_session() as session:
        model = session.self.attr("load_pickle")("model", "model.pkl")
        model.attr("factor").attr("data").attr("add_")(5.0)
        changed = session.create_movable(model)
    plain = package.load_pickle("model", "model.pkl")
    x = torch.ones(1)
    for _ in range(3):
        assert torch.equal(changed(x), x * 7)  # type: ignore[arg-type]
        assert torch.equal(plain(x), x * 2)  # type: ignore[arg-type]


def test_closing_a_package_ends_its_use(
    manager: InterpreterManager, tmp_path: Path
) -> None:
    """What is not materialised cannot be any more; twice is harmless."""
    package = manager.load_package(archive(tmp_path / "scale.pt", Scale()))
    model = package.load_pickle("model", "model.pkl")
    package.close()
    package.close()
    model.drop()
    with pytest.raises(FailedPrecondition, match="closed"):
        model(torch.ones(1))


MANY_KINDS = """
import torch

class Kinds(torch.nn.Module):
    def __init__(self):
        super().__init__()
        base = torch.arange(12.0).reshape(3, 4)
        self.base, self.view, self.turned = base, base[1:, ::2], base.t()
        self.wide = torch.ones(2, 1).expand(2, 3)
        self.none, self.scalar = torch.empty(0, 3), torch.tensor(2.5)
        self.layer = self.tied = torch.nn.Linear(2, 2)
        self.sparse = torch.eye(3).to_sparse()
        self.conjugated = torch.ones(2, dtype=torch.complex64).conj()
        for name in ("uint16", "float8_e4m3fn", "bfloat16", "float16", "bool", "int8"):
            setattr(self, name, torch.ones(3).to(getattr(torch, name)))

    def facts(self):
        self.base[1, 0] = -1.0
        tensors = sorted(
            (name, str(value.dtype), tuple(value.shape), value.to_dense().tolist())
            for name, value in vars(self).items()
            if isinstance(value, torch.Tensor)
        )
        strides = [each.stride() for each in (self.view, self.turned, self.wide)]
        shared = self.view[0, 0].item(), self.turned[0, 1].item()
        return repr((tensors, strides, shared, self.layer is self.tied))
"""


def test_tensors_of_every_kind_move(
    manager: InterpreterManager, tmp_path: Path
) -> None:
    """Moved tensors keep dtype, layout, strides, and the memory that they share."""
    path = tmp_path / "kinds.pt"
    with (
        warnings.catch_warnings(action="ignore"),
        PackageExporter(str(path)) as exporter,
    ):
        exporter.extern("**")
        exporter.save_source_string("kinds", MANY_KINDS)
    package = manager.load_package(path)
    with package.acquire_session() as session:
        made = session.global_("kinds", "Kinds")()
        movable = session.create_movable(made)
        expected = made.attr("facts")().value()
    with movable.acquire_session() as session:
        again = session.create_movable(session.self)
        assert session.self.attr("facts")().value() == expected
    with again.acquire_session() as session:
        assert session.self.attr("facts")().value() == expected


def test_tensors_of_a_moved_object_are_shared(tmp_path: Path) -> None:
    """Neither the archive's weights nor a session's exist twice."""
    num_floats = 4 << 20
    with InterpreterManager(2) as manager:
        package = manager.load_package(archive(tmp_path / "w.pt", Weighted(num_floats)))
        with package.acquire_session() as session:
            model = session.self.attr("load_pickle")("model", "model.pkl")
            moved = session.create_movable(model)
            doubled = model.attr("state_dict")().attr("get")("weight").attr("mul")(2.0)
            fresh = session.create_movable(doubled)
        barrier = threading.Barrier(2)

        def private_bytes(_: int) -> int:
            with moved.acquire_session() as session:
                session.self.attr("total")(torch.zeros(1)).value()
                pid = session.global_("os", "getpid")().value()
                barrier.wait(PATIENCE_S)  # both interpreters at once
            with fresh.acquire_session() as session:
                session.self.attr("sum")().value()
                barrier.wait(PATIENCE_S)
            total = 0
            for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
                if line.startswith("Private_Dirty:"):
                    total += int(line.split()[1]) << 10
            return total

        with ThreadPoolExecutor(2) as pool:
            privates = list(pool.map(private_bytes, range(2), timeout=PATIENCE_S))
        # One of the two computed ``doubled``, and may keep that memory.
        assert min(privates) < num_floats * 4


def test_a_limit_on_memory_is_for_what_sessions_add(tmp_path: Path) -> None:
    """Weights that are mapped move it, as those of versions do."""
    limited = ProcessOptions(worker=WorkerOptions(memory_limit_bytes=96 << 20))
    with InterpreterManager(1, options=limited) as manager:
        package = manager.load_package(archive(tmp_path / "w.pt", Weighted(40 << 20)))
        model = package.load_pickle("model", "model.pkl")  # 160 MB
        assert model(torch.ones(1)) is not None
        with package.acquire_session() as session:
            other = session.self.attr("load_pickle")("model", "model.pkl")
            moved = session.create_movable(other)
            fill = session.global_("builtins", "bytearray")
            fill(64 << 20)
            with pytest.raises(Internal, match="MemoryError"):
                fill(256 << 20)
        assert moved(torch.ones(1)) is not None


def test_a_crash_ends_the_session_and_no_more(tmp_path: Path) -> None:
    """The next use materialises everything in a new process."""
    with InterpreterManager(1) as manager:
        package = manager.load_package(archive(tmp_path / "scale.pt", Scale()))
        model = package.load_pickle("model", "model.pkl")
        x = torch.ones(1, 1)
        assert torch.equal(model(x), x * 2)  # type: ignore[arg-type]
        with model.acquire_session() as session:
            with pytest.raises(ServingError, match="SEGV"):
                session.self.attr("crash")(-x)
            with pytest.raises(Internal, match="begin anew"):
                session.self(x)
            with pytest.raises(Internal, match="begin anew"):
                session.global_("math", "pi")
        assert torch.equal(model(x), x * 2)  # type: ignore[arg-type]
        with manager.acquire_session() as session:
            pid = session.global_("os", "getpid")().value()
            assert isinstance(pid, int)
            os.kill(pid, signal.SIGKILL)
            until(lambda: not Path(f"/proc/{pid}/fd/0").exists(), "the death")
        assert torch.equal(model(x), x * 2)  # type: ignore[arg-type]


def test_a_closed_manager_refuses(tmp_path: Path) -> None:
    """Closing is the end, and twice is harmless."""
    manager = InterpreterManager(1)
    package = manager.load_package(archive(tmp_path / "scale.pt", Scale()))
    manager.close()
    manager.close()
    with pytest.raises(Unavailable):
        package.acquire_session()
    with pytest.raises(Unavailable):
        manager.load_package(tmp_path / "scale.pt")
    with pytest.raises(ValueError, match="num_interpreters"):
        InterpreterManager(0)


def test_what_is_no_package_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A program learns at once what it should have passed."""
    (tmp_path / "notes.txt").write_text("nothing of the kind")
    torch.save(torch.ones(2), tmp_path / "tensor.pt")
    with InterpreterManager(1) as manager:
        for name in ("notes.txt", "tensor.pt"):
            with pytest.raises(
                InvalidArgument, match=f"'{name}' is no archive of torch"
            ):
                manager.load_package(tmp_path / name)
        with pytest.raises(InvalidArgument, match=r"directory; .*model\.pt"):
            manager.load_package(tmp_path)
    with pytest.raises(ValueError, match="process, dlmopen"):
        InterpreterManager(1, backend="inline")  # type: ignore[arg-type]


def test_a_fork_is_told_to_make_its_own(tmp_path: Path) -> None:
    """Nobody would answer there; neither use nor the end of a with-block hangs."""
    path = archive(tmp_path / "scale.pt", Scale())
    with InterpreterManager(1) as manager:
        model = manager.load_package(path).load_pickle("model", "model.pkl")
        x = torch.ones(1, 1)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                model(x)
            except FailedPrecondition as error:
                manager.close()
                status = 0 if "make one here" in error.message else 2
            finally:
                os._exit(status)
        until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
              is not None, "the end of the fork")  # fmt: skip
        assert os.waitpid(pid, 0)[1] == 0
        assert torch.equal(model(x), x * 2)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="load the package there"):
            pickle.dumps(model)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Has SIGINT raise KeyboardInterrupt; what a shell starts behind & ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_reaches_the_program(tmp_path: Path) -> None:
    """It ends the wait for a call at once, and the next call is answered."""
    path = archive(tmp_path / "scale.pt", Scale())
    with InterpreterManager(2) as manager:
        package = manager.load_package(path)
        model = package.load_pickle("model", "model.pkl")
        session = model.acquire_session()
        slow = session.self.attr("slow")
        main = threading.main_thread().ident
        assert main is not None
        # Whenever it comes, it comes within the block.
        soon = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
        soon.start()
        with pytest.raises(KeyboardInterrupt):
            slow(torch.full((1, 1), 5.0))
        x = torch.ones(1, 1)
        assert torch.equal(model(x), x * 2)  # type: ignore[arg-type]
