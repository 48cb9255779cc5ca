"""Finds operators that a graph calls and that only the author's program has.

A graph names its operators, and torch looks them up when it loads the graph. Operators
that Python code or an extension registered here are missing on a server, which runs
none of the author's code before it loads a graph.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from typing import Final

import torch
from torch.export import ExportedProgram

from tfs.core.errors import InvalidArgument
from tfs.runtime.process.zygote_process import import_path

_TORCHS_OWN: Final = frozenset({"aten", "prim", "prims"})
"""Namespaces of operators that torch itself defines."""

_TIMEOUT_S: Final = 120.0

_PROGRAM: Final = """\
import json, sys
import torch, torch.export
missing = []
for name in json.loads(sys.argv[1]):
    namespace, _, rest = name.partition("::")
    if not hasattr(getattr(torch.ops, namespace), rest.partition(".")[0]):
        missing.append(name)
print(json.dumps(missing))
"""


def operators_of(program: ExportedProgram) -> set[str]:
    """Returns the operators that a graph and the graphs in it call: ``aten::linear``."""
    return {
        str(node.target._schema.name)
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    }


def refuse_foreign(operators: Collection[str], name: str, form: str) -> None:
    """Raises if a server would not find one of ``operators``.

    If there is an operator that is not torch's own by name, this starts another Python,
    which takes 2 s.

    Raises:
        InvalidArgument: Names the model and the operators, and what to do.

    """
    doubtful = sorted(_outside_of_torch(operators))
    if not doubtful:
        return
    missing = _missing_elsewhere(doubtful)
    if missing:
        raise InvalidArgument(
            f"{name} calls {', '.join(missing)}, registered by this program and not by "
            f"torch: a server runs no code before it loads a {form}, and would not "
            "find it. Save the model as torch_package, which takes the code along, or "
            "write that part with torch's operators"
        )


def _outside_of_torch(operators: Collection[str]) -> Iterator[str]:
    for each in operators:
        if each.partition("::")[0] not in _TORCHS_OWN:
            yield each


def _missing_elsewhere(operators: Collection[str]) -> list[str]:
    """Returns which of ``operators`` are missing in another Python with only torch."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, json.dumps(list(operators))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    missing: list[str] = json.loads(done.stdout.splitlines()[-1])
    return missing
