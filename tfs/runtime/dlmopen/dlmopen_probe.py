"""Tries whether private CPythons work here, in a process where a crash hurts nobody.

    python -P -m tfs.runtime.dlmopen.dlmopen_probe NUM_INTERPRETERS

starts that many, with torch, calls them from threads that begin and end, and exits. Its
last line says what it found. What works there also works in the process that asked,
which has the same libraries, Python and environment. Rejected: starting one and only
loading libpython for the others. That is quicker but finds room for more than there is,
because torch takes static thread-local storage too.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import threading
from typing import Final

from tfs.core.errors import FailedPrecondition, ServingError
from tfs.runtime.dlmopen import dlmopen_namespace
from tfs.runtime.dlmopen.dlmopen_namespace import Namespace, find_libpython
from tfs.runtime.process.zygote_process import import_path

_MIN_GLIBC: Final = (2, 34)  # from here on libc.so.6 holds dlmopen and the threads
_MOST: Final = 15  # glibc has 16 namespaces, one of them the process's own
_MOST_BY_DEFAULT: Final = 6  # with the static thread-local storage it takes by itself
_TIMEOUT_S: Final = 60.0  # for torch in the process itself; a busy host is slow
_TIMEOUT_EACH_S: Final = 30.0  # for each interpreter
_NUM_THREADS: Final = 4
_ANSWER: Final = "dlmopen-probe: "

# Guards no field: held while it is tried, because nobody who asks can go on before that.
# A leaf.
_trying = threading.Lock()


def most_interpreters() -> int:
    """Returns how many are likely to have room, given how the process was started.

    This is the default number. If a number was asked for, the probe tells whether it
    works.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    for setting in tunables.split(":"):
        name, _, value = setting.partition("=")
        if name == "glibc.rtld.nns" and value.isdigit():
            return max(1, min(int(value) - 1, _MOST))
    return _MOST_BY_DEFAULT


def require(num_interpreters: int) -> None:
    """Makes sure that so many private CPythons can run here. Blocks for seconds, once.

    Raises:
        FailedPrecondition: They cannot; says why, and what to do.

    """
    reason = refusal(num_interpreters)
    if reason:
        raise FailedPrecondition(
            f"interpreter backend 'dlmopen' does not work here: {reason}"
        )


def refusal(num_interpreters: int) -> str:
    """Returns why so many private CPythons cannot run here; "" if they can.

    Of several threads that ask at once, the first tries, and the others wait for it.
    """
    with _trying:
        return _refusal(num_interpreters)


@functools.lru_cache
def _refusal(num_interpreters: int) -> str:
    return lacking() or _tried(num_interpreters)


def lacking() -> str:
    """Returns what is known to be missing without trying; "" if nothing is."""
    libc, version = platform.libc_ver()
    if libc != "glibc":
        return f"it needs glibc, this C library is {libc or 'another'}; use process"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < _MIN_GLIBC:
        return f"it needs glibc 2.34, this is {version}; use process"
    if preloaded := os.environ.get("LD_PRELOAD"):
        return (
            f"LD_PRELOAD is set ({preloaded}), and private Pythons do not have what it "
            "preloads: memory that one allocator gave would be returned to another; start "
            "without it, or use process"
        )
    if find_libpython() is None:
        return (
            f"this Python ({sys.executable}) has no shared libpython to load again; "
            "use a Python built with --enable-shared (Debian: install "
            f"libpython{sys.version_info[0]}.{sys.version_info[1]}), or use process"
        )
    return ""


def _tried(num_interpreters: int) -> str:
    command = [
        sys.executable,
        "-P",
        "-m",
        "tfs.runtime.dlmopen.dlmopen_probe",
        str(num_interpreters),
    ]
    timeout_s = _TIMEOUT_S + _TIMEOUT_EACH_S * num_interpreters
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(import_path())}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a test in another process hung for {timeout_s:.0f} s; use process"
    except OSError as error:
        return f"a test in another process cannot be started: {error}; use process"
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_ANSWER):
            reason: str = json.loads(line.removeprefix(_ANSWER))
            if reason or not done.returncode:
                return reason
            break
    if done.returncode < 0:
        how = f"was ended by {signal.Signals(-done.returncode).name}"
    else:
        how = f"exited with {done.returncode}"
    last = done.stderr.strip().splitlines()[-1:] or ["no message"]
    return f"a test in another process {how} ({last[0][:200]}); use process"


def main(num_interpreters: int) -> None:
    """Tries; prints the answer for :func:`refusal`."""
    reason = ""
    try:
        # As much thread-local storage is taken then as in the process that asks.
        importlib.import_module("torch")
        namespaces = [dlmopen_namespace.take() for _ in range(num_interpreters)]
        faults: list[str] = []
        for _ in range(_NUM_THREADS):
            thread = threading.Thread(
                target=_check, args=(namespaces, faults), name="dlmopen-probe"
            )
            thread.start()
            thread.join()
        reason = faults[0] if faults else ""
    except ServingError as error:
        reason = error.message
    print(_ANSWER + json.dumps(reason), flush=True)


def _check(namespaces: list[Namespace], faults: list[str]) -> None:
    try:
        for namespace in namespaces:
            namespace.call(("check",))
    except ServingError as error:
        faults.append(error.message)


if __name__ == "__main__":
    main(int(sys.argv[1]))
