"""Measures how much faster two threads of one interpreter call a model than one.

If kernels release the interpreter's lock, the answer is near 2, and the model needs no
process of its own. If Python does the work, it is below 1.
"""

from __future__ import annotations

import threading
import time

import torch

from tfs.core.servable import Tensors
from tfs.runtime.guest.guest_model import GuestModel


def two_thread_scaling(
    model: GuestModel, signature_name: str, inputs: Tensors, duration_s: float
) -> float | None:
    """Returns calls per second of two threads over one. Blocks for about ``duration_s``.

    Nobody else may call the model meanwhile. Returns None if a call failed, or if calls
    took so long that neither phase saw three.
    """
    alone = _calls_per_s(model, signature_name, inputs, duration_s / 2, 1)
    both = _calls_per_s(model, signature_name, inputs, duration_s / 2, 2)
    return both / alone if alone and both else None


def _calls_per_s(
    model: GuestModel,
    signature_name: str,
    inputs: Tensors,
    duration_s: float,
    num_threads: int,
) -> float | None:
    barrier = threading.Barrier(num_threads)
    rates: list[float | None] = []

    def work() -> None:
        num_calls = 0
        try:
            with torch.inference_mode():
                torch.set_num_threads(1)
                barrier.wait()
                begun_s = now_s = time.perf_counter()
                while now_s - begun_s < duration_s or num_calls < 3:
                    model.call(signature_name, inputs)
                    num_calls += 1
                    now_s = time.perf_counter()
                    if now_s - begun_s > 4 * duration_s:
                        break
            rates.append(num_calls / (now_s - begun_s) if num_calls >= 3 else None)
        except BaseException:  # a model's own may be any
            barrier.abort()
            rates.append(None)

    threads = [
        threading.Thread(target=work, name=f"probe-{index}", daemon=True)
        for index in range(num_threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = 0.0
    for rate in rates:
        if rate is None:
            return None
        total += rate
    return total
