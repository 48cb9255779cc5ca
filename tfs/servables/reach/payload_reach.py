"""Whether the code of a version reaches beyond Python, read off its files.

See ``tfs.servables.reach.source_reach`` for the rule. Nothing of the version runs here.
"""

from __future__ import annotations

import os
import pickletools
import zipfile
from collections.abc import Collection, Iterable
from typing import Final

from tfs.core.loop.pacing import yield_to_requests
from tfs.core.version_directory import payload_files
from tfs.servables.reach.source_reach import why_module, why_name, why_source, why_words

_IMPORTER: Final = "torch_package_importer"  # reads what the archive itself holds
_MACHINE_CODE: Final = (".so", ".pyd", ".dylib", ".pyc")
_PICKLED: Final = b"\x80"
_BUILTINS: Final = frozenset({"__import__", "breakpoint", "compile", "eval", "exec"})
_UNREADABLE: Final = frozenset({"STACK_GLOBAL", "OBJ", "EXT1", "EXT2", "EXT4"})


def why_package(archive_path: str) -> str:
    """Returns why a torch.package archive must not run in the server process; "" if it may.

    Raises:
        OSError: It cannot be read.
        zipfile.BadZipFile: It is damaged.

    """
    with zipfile.ZipFile(archive_path) as archive:
        return _why_archive(archive)


def why_folder(path: str) -> str:
    """Returns why Python files of a version must not run in the server process.

    "" if they may.

    Raises:
        OSError: They cannot be read.

    """
    names = payload_files(path)
    for name in names:
        if name.endswith(_MACHINE_CODE):
            return f"{name} is machine code"
    sources = [name for name in names if name.endswith(".py")]
    own = _modules(sources)
    for name in sources:
        yield_to_requests()
        with open(os.path.join(path, name), "rb") as file:
            why = why_source(file.read(), own)
        if why:
            return f"{name} {why}"
    return ""


def _why_archive(archive: zipfile.ZipFile) -> str:
    names = {
        info.filename.partition("/")[2] or info.filename: info
        for info in archive.infolist()
        if not info.is_dir()
    }
    own = _modules(name for name in names if name.endswith(".py"))
    extern = names.get(".data/extern_modules")
    listed = archive.read(extern).decode().split() if extern is not None else ()
    for module in listed:
        if why := why_module(module, own):
            return f"its code {why}"
    for name, info in names.items():
        if name.startswith(".data/"):
            continue
        yield_to_requests()
        why = ""
        if name.endswith(".py"):
            why = why_source(archive.read(info), own)
        elif _is_pickle(archive, info):
            why = _why_pickle(archive.read(info), own)
        if why:
            return f"{name} {why}"
    return ""


def _is_pickle(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bool:
    with archive.open(info) as file:
        return info.filename.endswith(".pkl") or file.read(1) == _PICKLED


def _why_pickle(pickled: bytes, own: Collection[str]) -> str:
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name in _UNREADABLE:
                return f"names classes by {opcode.name}"
            why = ""
            if opcode.name in ("GLOBAL", "INST"):
                module, _, name = str(argument).partition(" ")
                why = _why_global(module, name, own)
            elif isinstance(argument, str):
                why = why_words(argument)
            if why:
                return why
    except ValueError as error:
        return f"cannot be read as a pickle ({error})"
    return ""


def _why_global(module: str, name: str, own: Collection[str]) -> str:
    if module in own:
        return ""
    if module == "builtins":
        return f"reaches {name}" if name in _BUILTINS else ""
    return why_module(module, own) or why_name(f"{module}.{name}")


def _modules(files: Iterable[str]) -> frozenset[str]:
    """Returns the full names of the modules that files are."""
    found = {_IMPORTER}
    for name in files:
        module = name.removesuffix(".py").replace("/", ".")
        found.add(module.removesuffix(".__init__"))
    return frozenset(found)
