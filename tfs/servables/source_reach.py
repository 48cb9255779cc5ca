"""Whether the code of a version reaches beyond Python: to native code, or to other processes.

The server process may run code that imports nothing but torch, numpy, modules packaged
with it and Python's library, and that reaches none of the names below. They load native
code or address memory (ctypes, mmap), start, fork or end processes, or get at a module by
a name that only shows at run time. What cannot be read off the source counts as reached:
that costs the version some speed in a process of its own, and its crash harms nobody.

torch's operators are trusted, although they can end a process, too.

Rejected: an audit hook, which sees an import only when it is too late to choose a
process.
"""

from __future__ import annotations

import ast
import os
import pickletools
import re
import sys
import zipfile
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from tfs.core.loop.pacing import yield_to_requests
from tfs.core.version_directory import payload_files

MAX_SOURCE_BYTES: Final = 256 << 10
"""Largest source file that is parsed, which holds up others for some 100 ms."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LIBRARIES: Final = frozenset({"torch", "numpy", "tfs"})

# Names that are reached whatever they are an attribute of, or are said in a string.
_NAMES: Final = _words(
    """
    ctypes _ctypes ctypeslib cffi _cffi_backend mmap memmap open_memmap stride_tricks
    __array_interface__ __array_struct__ __cuda_array_interface__
    multiprocessing _multiprocessing _posixshmem ProcessPoolExecutor
    load_library load_extension enable_load_extension cpp_extension _inductor
    load_dynamic create_dynamic exec_dynamic _testcapi _testinternalcapi
    _sigsegv raise_signal pthread_kill _exit killpg forkpty setrecursionlimit
    import_module __import__ __builtins__ __loader__ __spec__ __globals__
    __subclasses__ __getattribute__ f_globals f_builtins f_locals _getframe
    get_objects get_referrers get_referents getattr_static getmembers
    CodeType FunctionType
    """
)
# Attributes of modules that may be imported, by their full names.
_ATTRIBUTES: Final = re.compile(
    r"(os|posix)\.(_exit|abort|exec\w+|fork\w*|kill\w*|posix_spawn\w*|spawn\w+)"
    r"|sys\.(meta_path|modules|path_hooks|setprofile|settrace)"
    r"|signal\.(alarm|raise_signal|setitimer)|resource\.setrlimit|faulthandler\._\w+"
    r"|builtins\.(compile|eval|exec|globals|vars)|concurrent\.futures\.process"
    r"|importlib\.(reload|abc\.\w+|machinery\.\w+|util\.(?!find_spec\b)\w+)"
    r"|_?pickle\.(loads?|Unpickler)|marshal\.loads?|shelve\.open|pkgutil\.resolve_name"
    r"|(code|codeop|imp|_imp|runpy|zipimport|tkinter|_tkinter)\.\w+"
    r"|torch\.(hub\.(?!get_dir\b)\w+|package\.\w*Importer|utils\.benchmark\.\w+)"
    r"|torch\.(\w+\.)*from_file"
)
_BUILTINS: Final = frozenset({"exec", "eval", "compile", "globals", "breakpoint"})
_BY_NAME: Final = frozenset({"getattr", "attrgetter", "methodcaller"})
# Arguments that have files mapped or unpickled, and the value that does not.
_ARGUMENTS: Final = {
    "mmap": False,
    "mmap_mode": None,
    "allow_pickle": False,
    "weights_only": True,
}
_DOTTED: Final = re.compile(r"\w+(\.\w+)*")


def why_module(name: str, own: Collection[str] = ()) -> str:
    """Returns why a module must not be imported in the server process; "" if it may.

    Args:
        name: Its full name.
        own: Modules that came with the code.

    """
    parts = name.split(".")
    prefixes = {".".join(parts[:num]) for num in range(1, len(parts) + 1)}
    if not prefixes.isdisjoint(own):
        return ""
    if not _NAMES.isdisjoint(parts):
        return f"imports {name}"
    if parts[0] in _LIBRARIES or parts[0] in sys.stdlib_module_names:
        return ""
    return f"imports {name}, which is neither its own nor torch, numpy or Python's"


def why_words(dotted: str) -> str:
    """Returns why none of these names must be reached, whatever has them; "" if all may."""
    reached = _NAMES.intersection(dotted.split("."))
    return f"reaches {min(reached)}" if reached else ""


def why_name(dotted: str) -> str:
    """Returns why the attribute of a module must not be reached; "" if it may."""
    why = why_words(dotted)
    if why:
        return why
    parts = dotted.split(".")
    prefixes = [".".join(parts[:num]) for num in range(1, len(parts) + 1)]
    for each in prefixes:
        if _ATTRIBUTES.fullmatch(each):
            return f"reaches {each}"
    return ""


def why_source(source: str | bytes, own: Collection[str] = ()) -> str:
    """Returns why a source file must not run in the server process; "" if it may.

    Never raises: what cannot be read is a reason. Holds up other threads for as long as
    parsing takes.

    Args:
        source: The file's content.
        own: Full names of the modules that came with it.

    """
    if len(source) > MAX_SOURCE_BYTES:
        return (
            f"is longer than {MAX_SOURCE_BYTES >> 10} KB, too long to be looked through"
        )
    try:
        tree = ast.parse(source)
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"cannot be read as Python ({error})"
    for node, why in _Reader(nodes, own).reasons():
        return f"{why} (line {getattr(node, 'lineno', 1)})"
    return ""


class _Reader:
    def __init__(self, nodes: list[ast.AST], own: Collection[str]) -> None:
        self._nodes = nodes
        self._own = own
        self._bound: dict[str, str] = {}  # full names of what imports bind
        self._starred: list[str] = []
        # Functions that are called with a name that can be read.
        self._plainly_called: set[ast.AST] = set()

    def reasons(self) -> Iterator[tuple[ast.AST, str]]:
        """Yields what reaches beyond Python, imports first."""
        for node in self._nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                why = self._import(node)
                if why:
                    yield node, why
        for node in self._nodes:
            if isinstance(node, ast.Call):
                why = self._call(node)
                if why:
                    yield node, why
        for node in self._nodes:
            why = self._mention(node)
            if why:
                yield node, why

    def _import(self, node: ast.Import | ast.ImportFrom) -> str:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                self._bound[alias.asname or top] = alias.name if alias.asname else top
            found = (why_module(alias.name, self._own) for alias in node.names)
            return next(filter(None, found), "")
        if node.level:
            return ""  # of its own package
        module = node.module or ""
        why = why_module(module, self._own)
        for alias in node.names:
            full = f"{module}.{alias.name}"
            if alias.name == "*":
                self._starred.append(module)
            self._bound[alias.asname or alias.name] = full
            why = why or why_words(alias.name)
            if not self._is_own(module):
                why = why or why_name(full)
        return why

    def _call(self, node: ast.Call) -> str:
        called = node.func
        name = self._full_name(called)
        last = name.rpartition(".")[2]
        texts = [text for each in node.args if (text := _text(each)) is not None]
        if last in ("import_module", "__import__"):
            self._plainly_called.update(ast.walk(called))
            if len(node.args) != 1 or not texts:
                return "imports a module by a name that shows at run time only"
            return why_module(texts[0], self._own)
        if last in _BY_NAME:
            self._plainly_called.update(ast.walk(called))
            is_of_module = bool(node.args) and self._is_module(node.args[0])
            if is_of_module and texts:
                return why_name(f"{self._full_name(node.args[0])}.{texts[0]}")
            if not texts and (is_of_module or last != "getattr"):
                return f"reaches names by {last} that show at run time only"
        if last == "vars" and any(self._is_module(each) for each in node.args):
            return "reaches all names of a module"
        for keyword in node.keywords:
            harmless = _ARGUMENTS.get(keyword.arg or "", keyword)
            value = keyword.value
            if harmless is keyword:
                continue
            if not isinstance(value, ast.Constant) or value.value is not harmless:
                return f"reads files with {keyword.arg}="
        return ""

    def _mention(self, node: ast.AST) -> str:
        if node in self._plainly_called:
            return ""
        if isinstance(node, ast.Attribute):
            if node.attr == "__dict__" and self._is_module(node.value):
                return "reaches all names of a module"
            of_module = self._is_module(node) and why_name(self._full_name(node))
            return of_module or why_words(node.attr)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return why_words(node.name)
        if isinstance(node, ast.Name):
            full = self._bound.get(node.id, "")
            if not full and node.id in _BUILTINS | _BY_NAME:
                return f"reaches {node.id}"
            if not full and isinstance(node.ctx, ast.Load):
                starred = (why_name(f"{each}.{node.id}") for each in self._starred)
                return why_words(node.id) or next(filter(None, starred), "")
            return "" if self._is_own(full) else why_name(full)
        text = _text(node)
        return why_words(text) if text and _DOTTED.fullmatch(text) else ""

    def _full_name(self, node: ast.AST) -> str:
        """Returns the full name of a name or of its attributes; "" of anything else."""
        if isinstance(node, ast.Name):
            return self._bound.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            of = self._full_name(node.value)
            return f"{of}.{node.attr}" if of else f"?.{node.attr}"
        return ""

    def _is_module(self, node: ast.AST) -> bool:
        """Whether an expression may be a module, or a part of one, that was imported."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._bound

    def _is_own(self, name: str) -> bool:
        parts = name.split(".")
        return any(
            ".".join(parts[:num]) in self._own for num in range(1, len(parts) + 1)
        )


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


_IMPORTER: Final = "torch_package_importer"  # reads what the archive itself holds
_MACHINE_CODE: Final = (".so", ".pyd", ".dylib", ".pyc")
_PICKLED: Final = b"\x80"
_PICKLED_CALLS: Final = frozenset(
    {"__import__", "breakpoint", "compile", "eval", "exec"}
)
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
        return f"reaches {name}" if name in _PICKLED_CALLS else ""
    return why_module(module, own) or why_name(f"{module}.{name}")


def _modules(files: Iterable[str]) -> frozenset[str]:
    found = {_IMPORTER}
    for name in files:
        module = name.removesuffix(".py").replace("/", ".")
        found.add(module.removesuffix(".__init__"))
    return frozenset(found)
