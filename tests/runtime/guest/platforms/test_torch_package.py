"""Archives, and what they leave in a process."""

from __future__ import annotations

import linecache
import os
import sys
import types
from pathlib import Path

import pytest
from torch.package.package_exporter import PackageExporter

from tfs.runtime.guest.memory_files import SealedFile
from tfs.runtime.guest.platforms.torch_package import close_package, open_package


class _LookedAt(str):
    """A name in a table, to which others add while it is looked at."""

    __slots__ = ()

    def startswith(self, *words: object) -> bool:
        """Has Python import something and read its source, as other threads do."""
        sys.modules[f"added{len(sys.modules)}"] = types.ModuleType("added")
        linecache.cache[f"added{len(linecache.cache)}"] = (1, None, [""], "added")
        return False


def test_an_archive_is_closed_while_others_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left of an archive whatever other threads import while it is closed."""
    path = tmp_path / "model.pt"
    with PackageExporter(os.fspath(path)) as exporter:
        exporter.save_source_string("nets", "SIZE = 4\n")
        exporter.save_pickle("model", "model.pkl", [1.0])
    importer = open_package(SealedFile.copy_of(os.fspath(path)), "test")
    name = importer.import_module("nets").__name__
    monkeypatch.setattr(linecache, "cache", {_LookedAt("first"): (), name: ()})
    modules = {_LookedAt("first"): types.ModuleType("first"), **sys.modules}
    monkeypatch.setattr(sys, "modules", modules)
    close_package(importer)
    assert name not in sys.modules
    assert name not in linecache.cache
