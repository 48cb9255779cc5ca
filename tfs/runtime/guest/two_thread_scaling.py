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
from tfs.runtime.guest.side_effects import ThreadEffects


def two_thread_scaling(
    model: GuestModel,
    signature_name: str,
    inputs: Tensors,
    duration_s: float,
    changed: set[str] | None = None,
) -> float | None:
    """Returns calls per second of two threads over one. Blocks for about ``duration_s``.

    Nobody else may call the model meanwhile. Returns None if a call failed, or if calls
    took so long that neither phase saw three.

    Args:
        model: The model.
        signature_name: Key of the signature.
        inputs: The inputs by name.
        duration_s: About how long to measure.
        changed: Gets the settings of its thread that the model leaves changed; None:
            nobody looks.

    """
    alone = _calls_per_s(model, signature_name, inputs, duration_s / 2, 1, changed)
    both = _calls_per_s(model, signature_name, inputs, duration_s / 2, 2, None)
    return both / alone if alone and both else None


def _calls_per_s(
    model: GuestModel,
    signature_name: str,
    inputs: Tensors,
    duration_s: float,
    num_threads: int,
    changed: set[str] | None,
) -> float | None:
    barrier = threading.Barrier(num_threads)
    rates: list[float | None] = []

    def work() -> None:
        num_calls = 0
        try:
            with torch.inference_mode():
                torch.set_num_threads(1)
                before = ThreadEffects() if changed is not None else None
                barrier.wait()
                begun_s = now_s = time.perf_counter()
                while now_s - begun_s < duration_s or num_calls < 3:
                    model.call(signature_name, inputs)
                    num_calls += 1
                    now_s = time.perf_counter()
                    if now_s - begun_s > 4 * duration_s:
                        break
                if changed is not None and before is not None:
                    changed.update(before.changes())
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
