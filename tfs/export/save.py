"""``save``: from an ``nn.Module`` and example inputs to a version a server can load."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from torch import nn

from tfs.core.errors import DataLoss, InvalidArgument
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.version.version_layout import ARCHIVE, LAYOUTS
from tfs.core.version_directory import EXAMPLES, commit
from tfs.export.checking.export_check import (
    check_version,
    prepare_checks,
    unlike_servers,
)
from tfs.export.packaging.package import RESOURCE, package_of, write_archive
from tfs.export.packaging.packaging import Packaging, readable
from tfs.export.publish import place_examples, producer, publish, write_beside
from tfs.export.signatures.derive import derive
from tfs.export.signatures.module_calls import OF_PROGRAMS, evaluation, outputs_of
from tfs.export.signatures.signature import Derived, ExampleInputs, Signature
from tfs.export.values import close, same, view_of
from tfs.export.wrappers import (
    has_wrappers,
    run_as_written,
    unwrapped,
    without_compiled_parts,
    without_parallelism,
)
from tfs.export.writers.described_module import DescribedModule
from tfs.export.writers.program_writer import write_compiled, write_program
from tfs.export.writers.script_writer import write_script
from tfs.runtime.guest.model_source import concurrency_of
from tfs.runtime.guest.torch_tensor import to_torch

log = logging.getLogger(__name__)


def _write_package(folder: str, module: DescribedModule) -> dict[str, object]:
    """Writes the archive; returns the manifest's entry.

    Raises:
        InvalidArgument: It cannot be stored in this form; says why, with the tree of
            modules.

    """
    packaging = module.packaging
    threads: dict[str, object] = {}
    if packaging.concurrency != 1:
        threads["concurrency"] = packaging.concurrency
        concurrency_of(threads, module.name)
    report = write_archive(
        module.module,
        os.path.join(folder, ARCHIVE),
        packaging,
        module.argument_classes,
    )
    if packaging.report is not None:
        packaging.report(report)
    package = package_of(module.module, packaging)
    return {"package": package, "resource": RESOURCE, **module.entry, **threads}


_WRITERS: Final[Mapping[str, Callable[[str, DescribedModule], dict[str, object]]]] = {
    "torch_package": _write_package,
    "torch_export": write_program,
    "aotinductor": write_compiled,
    "torchscript": write_script,
}

_IN_GRAPHS: Final = (
    " Some parts of torch also compute otherwise in graphs: a TransformerEncoder with a "
    "padding mask has no fast path there, which makes what is masked zero. Saved as "
    "torch_package it answers as it does here"
)


def save(
    module: nn.Module,
    example_inputs: ExampleInputs | Signature,
    base_path: str | os.PathLike[str],
    version: int | None = None,
    *,
    method: str = "predict",
    labels: Sequence[str] = (),
    output_names: Sequence[str] | None = None,
    batched: bool = True,
    dynamic: Mapping[str, Collection[int]] = MappingProxyType({}),
    signatures: Mapping[str, Signature] = MappingProxyType({}),
    platform: str = "torch_package",
    intern: Sequence[str] = (),
    extern: Sequence[str] = (),
    mock: Sequence[str] = (),
    include: Sequence[str] = (),
    packaging: Packaging | None = None,
    assets: str | os.PathLike[str] | None = None,
) -> str:
    """Writes a new version of a model: code, weights, signature and examples.

    The version appears under ``base_path`` by one rename, complete, after it was loaded
    in a process of its own, as a server's worker loads it, and gave the same outputs as
    ``module``; a server that watches the directory can never see a part of it. Copies of
    the module are called a few times on the example inputs, in evaluation mode and
    without gradients. Blocks.

    Args:
        module: The module to serve. It is saved with its present weights, without a
            wrapper of torch.compile, data parallelism or averaging; compiled parts are
            saved as they were written.
        example_inputs: Real inputs of ``forward``: a tensor, tensors in order, or by
            name. Their parameter names become the signature's input names. Or a
            :class:`Signature`, which says more.
        base_path: The model's directory; created if absent.
        version: The version's number; None takes the next free one.
        method: What ``serving_default`` is for. "classify" needs an output
            ``scores``, float32 [batch, classes], served as the module returns it: end
            it in a softmax to serve probabilities. "regress" needs an output
            ``outputs``, float32 [batch] or [batch, 1]. If a module returns a single
            tensor, it gets that name.
        labels: Classify only: class names in score order.
        output_names: Names of the outputs.
        batched: Whether dimension 0 is the batch everywhere.
        dynamic: Further dimensions that callers may size, or the model may.
        signatures: Further signatures by key, each possibly of another method of the
            module.
        platform: The form: "torch_package" (any Python, the default), "torch_export"
            (one graph), "aotinductor" (that graph compiled for this processor, served
            by torch_export) or "torchscript". A graph may round differently; its
            outputs are compared with a tolerance.
        intern: Modules whose source goes into the archive; see :class:`Packaging`, also
            for the next three. Added to those of ``packaging``.
        extern: Modules that the server imports from its own environment.
        mock: Modules to replace by stubs that fail when used.
        include: Modules to put in although nothing imports them visibly.
        packaging: More about what goes into the version.
        assets: A folder to copy to the version's ``assets/``.

    Returns:
        The new version's directory.

    Raises:
        InvalidArgument: The module cannot be called, described, packaged or served in
            this way; says what to change. Nothing was written.
        DataLoss: The version does not give the same outputs as the module. Nothing
            was written.
        FailedPrecondition: The version exists already. It was not touched.
        OSError: The version cannot be written there. Nothing was written.

    """
    _check_is_module(module)
    default = _described(example_inputs, method, labels, output_names, batched, dynamic)
    rules = Packaging(intern, extern, mock, include)
    packaging = rules if packaging is None else packaging.with_rules(rules)
    options = {DEFAULT_SIGNATURE: default, **signatures}
    return _saved(
        module, options, os.fspath(base_path), version, platform, packaging, assets
    )


def _described(
    example_inputs: ExampleInputs | Signature,
    method: str,
    labels: Sequence[str],
    output_names: Sequence[str] | None,
    batched: bool,
    dynamic: Mapping[str, Collection[int]],
) -> Signature:
    if not isinstance(example_inputs, Signature):
        return Signature(
            example_inputs,
            method=method,
            labels=labels,
            output_names=output_names,
            batched=batched,
            dynamic=dynamic,
        )
    keywords = (method, tuple(labels), output_names, batched, dict(dynamic))
    if keywords != ("predict", (), None, True, {}):
        raise InvalidArgument(
            "method, labels, output_names, batched and dynamic belong into the Signature"
        )
    return example_inputs


def _check_is_module(value: object) -> None:
    """Refuses anything that is not a module, and says what to pass instead."""
    if isinstance(value, torch.export.ExportedProgram):
        raise InvalidArgument(f"an ExportedProgram {OF_PROGRAMS}")
    if isinstance(value, type) and issubclass(value, nn.Module):
        name = value.__name__
        raise InvalidArgument(f"{name} is a class: pass a module of it, {name}(...)")
    if isinstance(value, Mapping):
        raise InvalidArgument(
            "weights alone cannot be called: pass the module, with "
            "load_state_dict(weights) done, or name them weights= of save_python"
        )
    if not isinstance(value, nn.Module):
        raise InvalidArgument(
            f"{type(value).__name__} is no nn.Module; tfs.export.save_python takes a "
            "class in a file"
        )


def _saved(
    module: nn.Module,
    options: Mapping[str, Signature],
    base_path: str,
    version: int | None,
    platform: str,
    packaging: Packaging,
    assets: str | os.PathLike[str] | None,
) -> str:
    if platform not in _WRITERS:
        raise InvalidArgument(
            f"a module cannot be saved as {platform!r}; use one of "
            f"{', '.join(_WRITERS)}"
        )
    if packaging.concurrency != 1 and platform != "torch_package":
        raise InvalidArgument(f"a {platform} runs one request at a time")
    prepare_checks()
    with (
        evaluation(without_parallelism(module)) as given,
        readable(packaging.resources),
    ):
        inner = unwrapped(given)
        derived = _derived(given, inner, options)
        with without_compiled_parts(inner):
            described = DescribedModule(inner, options, derived, packaging)
            final = publish(
                base_path,
                version,
                lambda folder: _fill(folder, described, platform, assets),
            )
    log.info("event=version_exported path=%s platform=%s", final, platform)
    return final


def _derived(
    given: nn.Module, inner: nn.Module, options: Mapping[str, Signature]
) -> dict[str, Derived]:
    """Returns the signatures; their outputs are those of the module that was given."""
    with without_compiled_parts(inner):
        derived = {key: derive(inner, each) for key, each in options.items()}
    if not has_wrappers(given):
        return derived
    with run_as_written():
        return {
            key: dataclasses.replace(
                each,
                outputs=outputs_of(
                    given, options[key], each.forms, each.example
                ).outputs,
            )
            if options[key].call == "forward"
            else each
            for key, each in derived.items()
        }


def _fill(
    folder: str,
    described: DescribedModule,
    platform: str,
    assets: str | os.PathLike[str] | None,
) -> None:
    write_beside(folder, assets, described.packaging)
    entry = _WRITERS[platform](folder, described)
    signatures, examples = place_examples(described.derived)
    Path(folder, EXAMPLES).write_bytes(examples)
    served_by = next(name for name, of in LAYOUTS.items() if platform in of.saved_as)
    commit(folder, served_by, signatures, entry, producer())
    is_exact = platform == "torch_package"  # the same kernels run
    differing = _differing_outputs(
        folder, served_by, described.derived, is_exact=is_exact
    )
    if differing:
        _judge(described, differing, is_exact=is_exact)


def _judge(
    described: DescribedModule,
    differing: Mapping[str, list[str]],
    *,
    is_exact: bool,
) -> None:
    """Raises, unless the module itself gives other values for the outputs that differ."""
    for key, names in differing.items():
        each, options = described.derived[key], described.options[key]
        one, other = (
            outputs_of(described.module, options, each.forms, each.example).outputs
            for _ in range(2)
        )
        if all(same(one[name], other[name]) for name in names):
            raise DataLoss(
                f"{described.name}.{options.call} gives other values for "
                f"{', '.join(map(repr, names))} when it is loaded in a process of its "
                "own; does it depend on something outside of the module (a global "
                "variable, the command line, hooks of a wrapper), or on earlier calls (a "
                "list or counter that it adds to)?"
                + ("" if is_exact else _IN_GRAPHS)
                + unlike_servers()
            )
        log.warning(
            "event=outputs_not_repeatable module=%s outputs=%s differ from call to "
            "call, so the archive could not be compared",
            described.name,
            ",".join(names),
        )


def _differing_outputs(
    folder: str, platform: str, derived: Mapping[str, Derived], *, is_exact: bool
) -> dict[str, list[str]]:
    """Tries a version; returns the outputs that differ from the module's, by signature.

    Raises:
        InvalidArgument: The version cannot be served; says what to do.

    """
    outputs = check_version(folder, platform, _device(derived))
    differing = {
        key: [
            name
            for name, value in each.outputs.items()
            if view_of(value) != outputs[key][name]
            and (is_exact or not close(value, to_torch(outputs[key][name])))
        ]
        for key, each in derived.items()
    }
    return {key: names for key, names in differing.items() if names}


def _device(derived: Mapping[str, Derived]) -> str:
    """Returns the device of the author's example, so that the same kernels run."""
    for each in derived.values():
        for value in each.example.values():
            if isinstance(value, torch.Tensor):
                return str(value.device)
    return "cpu"
