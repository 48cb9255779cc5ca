"""What a model can leave behind in its process; packaged whole, as the zoo is."""

from __future__ import annotations

import atexit
import builtins
import ctypes
import importlib
import os
import random
import signal
import sys
import threading
import warnings

import torch

SEEN = 0


class Meddler(torch.nn.Module):
    """y = x * factor, whatever else a method does."""

    def __init__(self, factor: float = 2.0, num_weights: int = 1) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor([factor]))
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

    # -- what ends a worker ---------------------------------------------------------------

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


LEAVES_NOTHING = ("count", "draw", "describe", "use_all_weights")
LEAVES_SOMETHING = tuple(
    name
    for name, value in vars(Meddler).items()
    if not name.startswith("_") and name not in (*LEAVES_NOTHING, "forward")
)
