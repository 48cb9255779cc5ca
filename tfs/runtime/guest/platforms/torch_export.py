"""Platform ``torch_export``: a ``.pt2`` archive of torch.export or AOTInductor.

An exported program is a graph that is run operator by operator. Its tensors are views
of the archive's bytes, which all interpreters share. An AOTInductor package is such a
graph compiled to machine code for one kind of processor, with weights of its own. Both
take positional arguments in the order of the export, so inputs are put into that order
here.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.export.pt2_archive import _package
from torch.export.pt2_archive.constants import (
    ARCHIVE_VERSION_PATH,
    ARCHIVE_VERSION_VALUE,
)
from torch.utils import _pytree as pytree

from tfs.core.errors import DataLoss, InvalidArgument, ServingError
from tfs.core.signature import Signature
from tfs.core.version.version_layout import PROGRAM
from tfs.runtime.guest.faults import one_line, what_is_missing
from tfs.runtime.guest.guest_model import GuestModel
from tfs.runtime.guest.memory_files import (
    MACHINE_CODE,
    SealedFile,
    VersionFiles,
    check_processor,
    is_compiled,
    library_path,
)
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.torch_callable import Cuttable, TorchCallable
from tfs.runtime.guest.weights import MappedReader

_reading: Final = threading.Lock()
"""Held while a graph is read: torch's reader is one per process, in a global variable."""


def load(source: ModelSource, files: VersionFiles) -> GuestModel:
    """Loads the program of a version; see :class:`GuestModel`.

    Raises:
        DataLoss: The archive is damaged, or of another version of torch.
        InvalidArgument: The program's arguments do not fit the signature.

    """
    file = files[PROGRAM]
    who = source.id.slashed
    reader: MappedReader | None = None
    try:
        with _reading, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if is_compiled(file.path):
                function, cuttable = _load_compiled(source, files), None
            else:
                reader = MappedReader(file)
                function, cuttable = _load_program(source, file, reader)
    except ServingError:
        raise
    except Exception as error:
        raise DataLoss(
            f"{who}: {PROGRAM} cannot be loaded by torch {torch.__version__}: "
            f"{what_is_missing(error)}{one_line(error)}"
        ) from error
    finally:
        if reader is not None:
            reader.release()
    return TorchCallable(
        source,
        dict.fromkeys(source.signatures, function),
        cuttable={} if cuttable is None else dict.fromkeys(source.signatures, cuttable),
    )


def _load_program(
    source: ModelSource,
    file: SealedFile,
    reader: MappedReader,
) -> tuple[Callable[..., object], Cuttable]:
    program = _read_mapped(file, reader)
    if program is None:
        with open(file.path, "rb") as opened:
            program = torch.export.load(opened)
    if source.device != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, source.device)
    call_signature = program.module_call_graph[0].signature
    names = list(call_signature.forward_arg_names or ()) if call_signature else []
    in_spec = program.call_spec.in_spec
    module = program.module()
    function, positional = _by_name(source, module, in_spec, names)
    return function, Cuttable(module, positional)


def _read_mapped(
    file: SealedFile, reader: MappedReader
) -> torch.export.ExportedProgram | None:
    """Reads a program whose tensors are views of the file.

    It does what torch.export.load does; that offers no way to say where the tensors
    should be. Returns None if this torch, or the one that wrote the file, works
    differently.
    """
    try:
        archive = _package.PT2ArchiveReader(file.path)
        archive.archive_file = reader
        if archive.read_string(ARCHIVE_VERSION_PATH) != ARCHIVE_VERSION_VALUE:
            return None
        read = _package._load_exported_programs
    except (AttributeError, RuntimeError):
        return None
    reader.remap()
    return read(archive, archive.get_file_names(), None).get("model")


def _load_compiled(source: ModelSource, files: VersionFiles) -> Callable[..., object]:
    path = files[PROGRAM].path
    library = files.files.get(MACHINE_CODE)
    if source.device != "cpu" or library is None:
        return _load_in_folder(source, path)
    check_processor(path, source.id.slashed)
    # What torch's own loader makes of the unpacked library. Where a version of torch
    # lacks this private class, such versions do not load.
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(library_path(library), 1)
    in_spec, out_spec = map(pytree.treespec_loads, runner.get_call_spec())
    names = tuple(in_spec.child(1).context or ())

    def run(*args: torch.Tensor, **keywords: torch.Tensor) -> object:
        outputs = runner.run([*args, *(keywords[name] for name in names)])
        return pytree.tree_unflatten(outputs, out_spec)

    return _by_name(source, run, in_spec, [])[0]


def _load_in_folder(source: ModelSource, path: str) -> Callable[..., object]:
    """Has torch unpack the code into a temporary folder, with that of the device."""
    from torch._inductor import aoti_load_package

    # None, or "cuda" without a number, is the current device.
    index = torch.device(source.device).index
    with open(path, "rb") as file:
        compiled = aoti_load_package(file, device_index=-1 if index is None else index)
    in_spec = pytree.treespec_loads(compiled.loader.get_call_spec()[0])
    return _by_name(source, compiled, in_spec, [])[0]


def _by_name(
    source: ModelSource,
    function: Callable[..., Any],
    in_spec: pytree.TreeSpec | None,
    names: Sequence[str],
) -> tuple[Callable[..., object], tuple[str, ...]]:
    """Returns a function that calls ``function`` with keywords, however it was exported.

    Also returns the names of the inputs that ``function`` takes by position.

    The program names its positional arguments. If it does not, the manifest's entry
    ``args`` does, or else the signature's inputs in their order.
    """
    (signature, *others) = source.signatures.values()
    if others:
        raise InvalidArgument(
            f"{source.id.slashed}: a {source.platform} version has one signature"
        )
    if in_spec is None:
        raise InvalidArgument(f"{source.id.slashed}: the program takes no inputs")
    positional, keywords = (in_spec.child(0), in_spec.child(1))
    by_keyword = tuple(keywords.context or ())
    children = [*positional.children(), *keywords.children()]
    if not all(child.is_leaf() for child in children):
        raise InvalidArgument(
            f"{source.id.slashed}: the program takes tuples or dicts of tensors; "
            "export it with one parameter per tensor"
        )
    given = source.entry.get("args")
    ordered = (
        [str(name) for name in given]
        if isinstance(given, list | tuple)
        else [name for name in names if name not in by_keyword]
    )
    if not set(ordered) <= signature.inputs.keys() or not ordered:
        ordered = [name for name in signature.inputs if name not in by_keyword]
    num_positional = positional.num_children
    wanted = {*ordered, *by_keyword}
    if len(ordered) != num_positional or wanted != signature.inputs.keys():
        raise InvalidArgument(
            f"{source.id.slashed}: the program takes {num_positional} arguments and "
            f"the keywords {', '.join(by_keyword) or 'none'}; the signature's inputs "
            f"are {', '.join(signature.inputs)}"
        )

    repeated = _repeated(source, signature)

    def call(**inputs: object) -> object:
        if repeated:
            _repeat(inputs, repeated, signature)
        try:
            return function(
                *[inputs[name] for name in ordered],
                **{name: inputs[name] for name in by_keyword},
            )
        except (AssertionError, RuntimeError) as error:
            if _REFUSES_SIZES.match(str(error)):
                raise InvalidArgument(
                    f"the graph does not take inputs of these sizes, "
                    f"{_sizes_of(inputs)}: {one_line(error)}"
                ) from error
            raise

    return call, tuple(ordered)


_REFUSES_SIZES: Final = re.compile(
    r"Guard failed: .*\bsize\(\)|Expected input at .*shape"
)
"""Start of the error with which a graph refuses sizes that its author excluded.
"""


def _sizes_of(inputs: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name!r} {list(value.shape)}"
        for name, value in inputs.items()
        if isinstance(value, torch.Tensor)
    )


def _repeated(source: ModelSource, signature: Signature) -> tuple[str, ...]:
    """Returns the inputs of entry "repeated", whose default of one row is repeated.

    Raises:
        InvalidArgument: It names something that is not an input with a default.

    """
    given = source.entry.get("repeated", ())
    if not isinstance(given, list | tuple) or not set(given) <= set(signature.defaults):
        raise InvalidArgument(
            f"{source.id.slashed}: entry 'repeated' of the manifest must name inputs "
            "that have a default"
        )
    return tuple(map(str, given))


def _repeat(
    inputs: dict[str, object], repeated: Sequence[str], signature: Signature
) -> None:
    for name, value in inputs.items():
        if name not in signature.defaults and isinstance(value, torch.Tensor):
            num_rows = value.shape[0]
            break
    else:
        return
    for name in repeated:
        value = inputs[name]
        if isinstance(value, torch.Tensor) and value.shape[0] == 1 != num_rows:
            inputs[name] = value.expand(num_rows, *value.shape[1:]).contiguous()
