"""What a model can leave behind in its process; packaged whole, as the zoo is."""

from __future__ import annotations

import atexit
import builtins
import collections.abc
import ctypes
import importlib
import io
import json
import logging
import os
import random
import re
import signal
import socket
import sys
import threading
import typing
import warnings

import torch

SEEN = 0


class Meddler(torch.nn.Module):
    """y = x * factor, whatever else a method does."""

    def __init__(self, factor: float = 2.0, num_weights: int = 1) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor([factor]))
        self.table = torch.nn.EmbeddingBag(2, 2)
        self.weights = torch.nn.Parameter(torch.ones(num_weights))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    # -- nothing that the next one could see ------------------------------------------

    def count(self, x: torch.Tensor) -> torch.Tensor:
        """How often it was called, by a global of its module; the module's name."""
        global SEEN
        SEEN += 1
        return torch.full_like(x, SEEN + 1000 * len(__name__))

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        """Two random numbers, by torch and by Python; then seeds both."""
        drawn = [float(torch.rand(())), random.random()]
        torch.manual_seed(1)
        random.seed(1)
        return torch.tensor([drawn] * x.shape[0])

    def use_all_weights(self, x: torch.Tensor) -> torch.Tensor:
        """Reads the weights, and takes as much memory again meanwhile."""
        return x * (self.weights * 2).sum()

    def describe(self, x: torch.Tensor) -> torch.Tensor:
        """Under which conditions it runs."""
        row = [
            float(torch.is_grad_enabled()),
            float(torch.relu(torch.tensor(-1.0)) == 0),
        ]
        return torch.tensor([row] * x.shape[0])

    def name_a_logger(self, x: torch.Tensor) -> torch.Tensor:
        """How many handlers a logger of its own has, with the one that it adds."""
        logger = logging.getLogger("meddlers")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(logging.NullHandler())
        return torch.full_like(x, len(logger.handlers))

    def use_what_remembers(self, x: torch.Tensor) -> torch.Tensor:
        """Calls what has a cache: of patterns, of types, of classes asked for, of keys."""
        name = f"a{id(x)}"
        assert re.match(name, name)
        assert typing.Annotated[type(name, (), {}), name]
        assert json.loads(json.dumps({name: 1}))
        assert not isinstance(type(name, (), {})(), collections.abc.Mapping)
        torch.nn.LSTM(2, 2)(x)
        self.table(torch.zeros(x.shape, dtype=torch.int64))
        return x

    # -- what ends a worker ---------------------------------------------------------------

    def log_everything(self, x: torch.Tensor) -> torch.Tensor:
        logging.getLogger().setLevel(logging.DEBUG)
        return x

    def print_with_few_digits(self, x: torch.Tensor) -> torch.Tensor:
        torch._tensor_str.PRINT_OPTS.precision = 2
        return x

    def change_a_variable_of_a_closure(self, x: torch.Tensor) -> torch.Tensor:
        cells = vars(torch.nn.modules.utils)["_single"].__closure__
        cells[0].cell_contents = 7
        return x

    def give_a_function_an_attribute(self, x: torch.Tensor) -> torch.Tensor:
        vars(torch.nn.functional.relu)["meddled"] = True
        return x

    def mark_an_instance(self, x: torch.Tensor) -> torch.Tensor:
        vars(sys.stderr)["meddled"] = True
        return x

    def join_an_abstract_class(self, x: torch.Tensor) -> torch.Tensor:
        collections.abc.Sequence.register(torch.Tensor)
        return x

    def listen_to_audits(self, x: torch.Tensor) -> torch.Tensor:
        sys.addaudithook(lambda *_: None)
        return x

    def read_long_numbers(self, x: torch.Tensor) -> torch.Tensor:
        sys.set_int_max_str_digits(0)
        return x

    def replace_bad_letters(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(errors="replace")
        return x

    def give_sockets_a_timeout(self, x: torch.Tensor) -> torch.Tensor:
        socket.setdefaulttimeout(1.0)
        return x

    def compute_casts_otherwise(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_autocast_dtype("cpu", torch.float16)
        return x

    def fuse_on_the_processor(self, x: torch.Tensor) -> torch.Tensor:
        torch._C._jit_override_can_fuse_on_cpu(True)
        return x

    def script_without_profiles(self, x: torch.Tensor) -> torch.Tensor:
        torch._C._jit_set_profiling_executor(False)
        return x

    def set_an_alarm(self, x: torch.Tensor) -> torch.Tensor:
        signal.alarm(3600)
        return x

    def outlive_its_server(self, x: torch.Tensor) -> torch.Tensor:
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG
        return x

    def stay_on_one_core(self, x: torch.Tensor) -> torch.Tensor:
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
        return x

    def set_the_environment_of_programs(self, x: torch.Tensor) -> torch.Tensor:
        os.putenv("MEDDLED", "yes")
        return x

    def start_a_thread(self, x: torch.Tensor) -> torch.Tensor:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return x

    def change_the_default_dtype(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        return x

    def patch_a_function(self, x: torch.Tensor) -> torch.Tensor:
        vars(torch)["relu"] = vars(torch.nn.functional)["relu"] = torch.sigmoid
        return x

    def patch_a_class(self, x: torch.Tensor) -> torch.Tensor:
        name = "forward"
        setattr(torch.nn.Linear, name, torch.nn.Identity.forward)
        return x

    def patch_a_functions_code(self, x: torch.Tensor) -> torch.Tensor:
        relu = torch.nn.functional.relu
        relu.__code__ = torch.nn.functional.silu.__code__
        return x

    def patch_a_builtin(self, x: torch.Tensor) -> torch.Tensor:
        vars(builtins)["sorted"] = list
        return x

    def add_a_hook_for_all_modules(self, x: torch.Tensor) -> torch.Tensor:
        torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
        return x

    def extend_the_path(self, x: torch.Tensor) -> torch.Tensor:
        sys.path.append("/nowhere")
        return x

    def import_something(self, x: torch.Tensor) -> torch.Tensor:
        importlib.import_module("this_is_not_there" if not x.numel() else "antigravity")
        return x

    def ignore_warnings(self, x: torch.Tensor) -> torch.Tensor:
        warnings.simplefilter("ignore")
        return x

    def set_the_environment(self, x: torch.Tensor) -> torch.Tensor:
        os.environ["MEDDLED"] = "yes"
        return x

    def change_the_folder(self, x: torch.Tensor) -> torch.Tensor:
        os.chdir("/")
        return x

    def handle_a_signal(self, x: torch.Tensor) -> torch.Tensor:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        return x

    def run_at_the_end(self, x: torch.Tensor) -> torch.Tensor:
        atexit.register(print)
        return x

    def want_gradients(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(True)
        torch.set_num_threads(2)
        return x

    def open_a_file(self, x: torch.Tensor) -> torch.Tensor:
        os.open("/dev/null", os.O_RDONLY)
        return x

    def leak_memory(self, x: torch.Tensor) -> torch.Tensor:
        size_bytes = 50 << 20
        malloc = ctypes.CDLL(None).malloc
        malloc.restype = ctypes.c_void_p
        ctypes.memset(malloc(ctypes.c_size_t(size_bytes)), 1, size_bytes)
        return x

    def leak_a_weight(self, x: torch.Tensor) -> torch.Tensor:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.factor.untyped_storage()))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.factor))
        return x

    def fork(self, x: torch.Tensor) -> torch.Tensor:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return x


LEAVES_NOTHING = (
    "count",
    "draw",
    "describe",
    "name_a_logger",
    "use_all_weights",
    "use_what_remembers",
)
LEAVES_SOMETHING = tuple(
    name
    for name, value in vars(Meddler).items()
    if not name.startswith("_") and name not in (*LEAVES_NOTHING, "forward")
)
