"""Versions whose import takes long, in the three ways that an import can.

Each is the digits network in a `servable.py` that first spends its time:

    python     in bytecode: the GIL changes hands every 5 ms
    module     in the compiler, over 5,000 lines of source: one call that keeps the GIL
    extension  in the initialisation of a C extension: one call that keeps the GIL
"""

from __future__ import annotations

import subprocess
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import torch

import tfs.export
from tfs.core.dtype import FLOAT32
from tfs.core.signature import FREE, Method, Signature, TensorSpec

Form = Literal["python", "module", "extension"]
FORMS: tuple[Form, ...] = get_args(Form)

NUM_LINES = 5000
NUM_CORRECTIONS = 2

SIGNATURES = {
    "serving_default": Signature(
        Method.PREDICT,
        {"images": TensorSpec(FLOAT32, (FREE, 64))},
        {"scores": TensorSpec(FLOAT32, (FREE, 10))},
    )
}

_SERVABLE = """

class Servable:
    def load(self, version):
        self.net = DigitsNet().eval()
        self.net.load_state_dict(dict(version.weights))

    def predict(self, images):
        return self.net(images)
"""

_PYTHON = """
import time as _time
_end_s = _time.perf_counter() + {import_s}
while _time.perf_counter() < _end_s:
    pass
"""

_EXTENSION = """
import importlib.machinery as _machinery
import importlib.util as _util
import os as _os
_path = _os.path.join(_os.path.dirname(__file__), "assets", "tfs_slow_import.so")
_loader = _machinery.ExtensionFileLoader("tfs_slow_import", _path)
_spec = _util.spec_from_file_location("tfs_slow_import", _path, loader=_loader)
_util.module_from_spec(_spec)
"""

_C_SOURCE = """
#include <Python.h>
#include <time.h>

static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "tfs_slow_import"}};

static double now_s(void) {{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}}

PyMODINIT_FUNC PyInit_tfs_slow_import(void) {{
    double end_s = now_s() + {import_s};
    while (now_s() < end_s) {{ }}
    return PyModule_Create(&module);
}}
"""


def export_slow_import(
    form: Form,
    net_source: str,
    weights: Mapping[str, torch.Tensor],
    images: torch.Tensor,
    version_path: Path,
    *,
    import_s: float,
) -> Path:
    """Writes a version that takes `import_s` to import; imports it once, too.

    Args:
        form: in which way.
        net_source: Python source that defines `DigitsNet`.
        weights: of that network.
        images: float32 [batch, 64], example inputs.
        version_path: the directory to write; its name is the version's number.
        import_s: seconds; for "module" of processor time, here and now.

    Raises:
        RuntimeError: no C compiler, or no Python headers.
    """
    # Laid out as a version is: saving runs the file where it lies, too.
    folder = version_path.parent / f"source-{version_path.name}"
    folder.mkdir(parents=True)
    assets = None
    match form:
        case "python":
            delay = _PYTHON.format(import_s=import_s)
        case "module":
            delay = slow_source(import_s)
        case "extension":
            delay = _EXTENSION
            assets = folder / "assets"
            assets.mkdir()
            build_extension(assets / "tfs_slow_import.so", import_s)
    source = folder / "servable.py"
    # The network's source comes first for its __future__ imports.
    source.write_text(net_source + delay + _SERVABLE)
    return Path(
        tfs.export.save_python(
            source,
            version_path.parent,
            int(version_path.name),
            signatures=SIGNATURES,
            weights=weights,
            class_name="Servable",
            example_inputs={"images": images},
            assets=assets,
        )
    )


def slow_source(import_s: float, num_lines: int = NUM_LINES) -> str:
    """Returns that many lines of functions, as wide as importing them has to be.

    What a line costs grows faster than its width, and the compiler slows down as the
    module grows; so the whole of it is imported, corrected, and imported again.

    Args:
        import_s: Seconds of processor time that importing it takes here and now.
        num_lines: How many lines.

    """

    def lines(num: int, width: int) -> str:
        body = ", ".join(["a + b"] * width)
        return "".join(f"def row_{n}(a, b): return ({body},)\n" for n in range(num))

    width = max(1, round(import_s / import_time_s(lines(100, 100)) * 1e4 / num_lines))
    for _ in range(NUM_CORRECTIONS):
        width = max(1, round(width * import_s / import_time_s(lines(num_lines, width))))
    return lines(num_lines, width)


def import_time_s(source: str) -> float:
    """Returns the processor time that compiling and running a source takes."""
    started_s = time.process_time()
    exec(compile(source, "sample", "exec"), {})
    return max(1e-6, time.process_time() - started_s)


def build_extension(path: Path, import_s: float) -> None:
    """Compiles a module that keeps the GIL for `import_s` while it is imported.

    Raises:
        RuntimeError: no C compiler, or no Python headers; says what was printed.
    """
    source = path.with_suffix(".c")
    source.write_text(_C_SOURCE.format(import_s=import_s))
    include = sysconfig.get_paths()["include"]
    command = ["cc", "-O1", "-shared", "-fPIC", f"-I{include}"]
    try:
        built = subprocess.run(
            [*command, str(source), "-o", str(path)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    except FileNotFoundError:
        raise RuntimeError("no C compiler (cc)") from None
    finally:
        source.unlink()
    if built.returncode:
        raise RuntimeError(f"cannot build the extension: {built.stderr[-500:]}")
