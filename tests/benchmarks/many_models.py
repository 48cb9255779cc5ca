"""A thousand tiny models: 900 lookup tables and 100 networks of one layer, on disk.

The networks differ in their weights only, as models that one program trained do.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import tfs.export
from tests.benchmarks.models.one_layer import OneLayer
from tests.benchmarks.server_process import ServerProcess
from tfs.core.version.manifest import Producer
from tfs.core.version_directory import commit
from tfs.servables.platforms.hashmap import read_table, table_signatures

_AVAILABLE = re.compile(r"^tfs: (\S+)/(\d+) is available\b", re.MULTILINE)
_ENDED = re.compile(r"event=servable_end servable=(\S+)/(\d+) ")
_POLL_S = 0.05


class ManyModels:
    """Base paths of tiny models, and versions that wait to be renamed into them.

    Args:
        folder: Where everything lies.
        num_tables: How many lookup tables.
        num_networks: How many networks.

    """

    def __init__(self, folder: Path, num_tables: int, num_networks: int) -> None:
        self.folder = folder
        self._tables = [f"table{index}" for index in range(num_tables)]
        self._networks = [f"network{index}" for index in range(num_networks)]

    @property
    def names(self) -> Sequence[str]:
        """Of all models."""
        return (*self._tables, *self._networks)

    def stage(self, version: int) -> None:
        """Writes a version of every model, not in its base path yet."""
        for index, name in enumerate(self._tables):
            path = self._staged(name, version)
            path.mkdir(parents=True)
            (path / "table.csv").write_text(f"key,value\na,{index}\nb,{version}\n")
            signatures = table_signatures(read_table(str(path / "table.csv")))
            commit(str(path), "hashmap", signatures, {}, Producer("bench", "", ""))
        example = torch.arange(8, dtype=torch.float32).reshape(2, 4)
        for index, name in enumerate(self._networks):
            torch.manual_seed(1000 * version + index)
            target = self._staged(name, version)
            tfs.export.save(OneLayer().eval(), example, target.parent, version)

    def publish(self, version: int) -> None:
        """Renames that version of every model into its base path."""
        for name in self.names:
            target = self.folder / "models" / name / str(version)
            target.parent.mkdir(parents=True, exist_ok=True)
            self._staged(name, version).rename(target)

    def write_config(self, extra: str = "") -> Path:
        """Writes the config file, with further fields for each model; returns its path."""
        path = self.folder / "models.config"
        models = "\n".join(
            f'config {{ name: "{name}" base_path: "{self.folder}/models/{name}" {extra} }}'
            for name in self.names
        )
        path.write_text(f"model_config_list {{ {models} }}\n")
        return path

    def _staged(self, name: str, version: int) -> Path:
        return self.folder / "staged" / name / str(version)


def wait_for_all(
    server: ServerProcess,
    names: Sequence[str],
    version: int,
    *,
    ended: bool = False,
    timeout_s: float = 120.0,
) -> None:
    """Blocks until that version of every model is available, or has ended.

    Raises:
        TimeoutError: Some are not; says how many and ends with the server's words.

    """
    pattern = _ENDED if ended else _AVAILABLE
    missing = set(names)
    deadline_s = time.monotonic() + timeout_s
    seen_bytes = 0
    while True:
        # Only what is new: reading it all each time would keep a processor busy that
        # the server is to have.
        output = server.output(seen_bytes)
        whole = output[: output.rfind("\n") + 1]
        seen_bytes += len(whole.encode())
        missing -= {name for name, v in pattern.findall(whole) if int(v) == version}
        if not missing:
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(
                f"{len(missing)} of {len(names)} are missing: {server.output()[-1000:]}"
            )
        time.sleep(_POLL_S)
