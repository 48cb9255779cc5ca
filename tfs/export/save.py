"""``save``: from an ``nn.Module`` and example inputs to a version a server can load."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from torch import nn
from torch.package.importer import Importer

from tfs.core.errors import DataLoss, InvalidArgument
from tfs.core.signature import DEFAULT_SIGNATURE, FeatureSpec
from tfs.core.version_directory import EXAMPLES, commit
from tfs.export.calling import OF_PROGRAMS, evaluation
from tfs.export.derive import derive
from tfs.export.derived import Derived
from tfs.export.examples import place_examples
from tfs.export.kept_state import KeptState
from tfs.export.module_calls import outputs_of
from tfs.export.packaging.dependency_report import DependencyReport
from tfs.export.packaging.package import PackageRules
from tfs.export.packaging.package_resources import readable
from tfs.export.payload import (
    DescribedModule,
    PackageWriter,
    PayloadWriter,
)
from tfs.export.program_writer import ProgramWriter
from tfs.export.publish import Extras, producer, publish
from tfs.export.script_writer import ScriptWriter
from tfs.export.signature_options import ExampleInputs, SignatureOptions
from tfs.export.values import same
from tfs.export.verify import differing_outputs
from tfs.export.wrappers import (
    unwrapped,
    without_compiled_parts,
    without_parallelism,
)
from tfs.runtime.guest.model_source import concurrency_of

log = logging.getLogger(__name__)

_IN_GRAPHS: Final = (
    " Some parts of torch also compute otherwise in graphs: a TransformerEncoder with a "
    "padding mask has no fast path there, which makes what is masked zero. Saved as "
    "torch_package it answers as it does here"
)


def save(
    module: nn.Module,
    example_inputs: ExampleInputs,
    base_path: str | os.PathLike[str],
    version: int | None = None,
    *,
    method: str = "predict",
    labels: Sequence[str] = (),
    features: Mapping[str, FeatureSpec] | None = None,
    output_names: Sequence[str] | None = None,
    batched: bool = True,
    dynamic: Mapping[str, Collection[int]] = MappingProxyType({}),
    pad: Mapping[str, float] = MappingProxyType({}),
    mask: Mapping[str, str] = MappingProxyType({}),
    defaults: Mapping[str, torch.Tensor] = MappingProxyType({}),
    signatures: Mapping[str, SignatureOptions] = MappingProxyType({}),
    intern: Sequence[str] = (),
    extern: Sequence[str] = (),
    mock: Sequence[str] = (),
    include: Sequence[str] = (),
    sources: Mapping[str, str] = MappingProxyType({}),
    resources: Mapping[str, str | bytes] = MappingProxyType({}),
    importers: Sequence[Importer] = (),
    assets: str | os.PathLike[str] | None = None,
    batching_parameters: str | None = None,
    report: Callable[[DependencyReport], object] | None = None,
    platform: str = "torch_package",
    concurrency: int = 1,
) -> str:
    """Writes a new version of a model: code, weights, signature and examples.

    The version appears under ``base_path`` by one rename, complete, after its
    archive was loaded back and gave the same outputs as ``module``; a server that
    watches the directory can never see a part of it. The module is called a few
    times on its example inputs, in evaluation mode and without gradients; its
    training flags and state (parameters, buffers, attributes) are put back. Blocks.

    Args:
        module: The module to serve. It is saved with its present weights, without a
            wrapper of torch.compile, data parallelism or averaging; compiled parts are
            saved as they were written.
        example_inputs: Real inputs of ``forward``: a tensor, tensors in order, or by
            name. Their parameter names become the signature's input names.
        base_path: The model's directory; created if absent.
        version: The version's number; None takes the next free one.
        method: What ``serving_default`` is for. "classify" needs an output
            ``scores``, float32 [batch, classes], served as the module returns it: end
            it in a softmax to serve probabilities. "regress" needs an output
            ``outputs``, float32 [batch] or [batch, 1]. If a module returns a single
            tensor, it gets that name.
        labels: See :class:`SignatureOptions`, also for the next seven.
        features: tf.Example features.
        output_names: Names of the outputs.
        batched: Whether dimension 0 is the batch everywhere.
        dynamic: Further dimensions that callers may size, or the model may.
        pad: Values for free inner dimensions.
        mask: Inputs that receive masks.
        defaults: Inputs that callers may leave out.
        signatures: Further signatures by key, each possibly of another method of the
            module.
        intern: Modules whose source goes into the archive (names or globs). Your own
            code is always among them.
        extern: Modules that the server imports from its own environment. Python's
            modules, torch and numpy are always among them.
        mock: Modules to replace by stubs that fail when used.
        include: Modules to put in although nothing imports them visibly.
        sources: Files or folders to take the code of a module from.
        resources: Text or bytes to put into the archive, by path.
        importers: Where classes come from, for objects that were loaded from other
            packages; see :class:`PackageRules`.
        assets: A folder to copy to the version's ``assets/``.
        batching_parameters: Text of a BatchingParameters message for this version.
        report: Called with the tree of packaged modules before anything is committed.
        platform: The form: "torch_package" (any Python, the default), "torch_export"
            (one graph), "aotinductor" (that graph compiled for this processor, served
            by torch_export) or "torchscript". The rules about modules matter for
            torch_package only. A graph may round differently; its outputs are
            compared with a tolerance.
        concurrency: How many requests the module takes at once, to batch parts of
            itself with :mod:`tfs.runtime.batched`. Only for a "torch_package".

    Returns:
        The new version's directory.

    Raises:
        InvalidArgument: The module cannot be called, described or packaged in this way;
            says what to change. Nothing was written.
        DataLoss: The archive does not give the same outputs as the module. Nothing
            was written.
        FailedPrecondition: The version exists already. It was not touched.
        OSError: The version cannot be written there. Nothing was written.

    """
    base = os.fspath(base_path)
    _check_is_module(module)
    module = unwrapped(without_parallelism(module))
    options = {
        DEFAULT_SIGNATURE: SignatureOptions(
            example_inputs,
            method=method,
            labels=labels,
            features=features,
            output_names=output_names,
            batched=batched,
            dynamic=dynamic,
            pad=pad,
            mask=mask,
            defaults=defaults,
        ),
        **signatures,
    }
    rules = PackageRules(intern, extern, mock, include, sources, resources, importers)
    writer = _writer(platform, rules, report)
    extras = Extras(assets, batching_parameters)
    threads: dict[str, object] = {}
    if concurrency != 1:
        if platform != "torch_package":
            raise InvalidArgument(f"a {platform} runs one request at a time")
        threads["concurrency"] = concurrency
        concurrency_of(threads, type(module).__name__)
    with without_compiled_parts(module), evaluation(module), readable(resources):
        derived = _derived(module, options)
        final = publish(
            base,
            version,
            lambda folder: _fill(
                folder, module, options, derived, writer, extras, threads
            ),
        )
    log.info("event=version_exported path=%s platform=%s", final, platform)
    return final


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


def _derived(
    module: nn.Module, options: Mapping[str, SignatureOptions]
) -> dict[str, Derived]:
    """Returns the signatures; the module's state is as before, and no copy of it is left."""
    kept = KeptState(module)
    return {key: derive(module, each, kept) for key, each in options.items()}


def _fill(
    folder: str,
    module: nn.Module,
    options: Mapping[str, SignatureOptions],
    derived: Mapping[str, Derived],
    writer: PayloadWriter,
    extras: Extras,
    more: Mapping[str, object],
) -> None:
    entry = {**writer.write(folder, DescribedModule(module, options, derived)), **more}
    signatures, examples = place_examples(derived)
    Path(folder, EXAMPLES).write_bytes(examples)
    extras.write(folder)
    differing = differing_outputs(
        folder, writer.platform, entry, signatures, derived, is_exact=writer.is_exact
    )
    if differing:
        _judge(module, options, derived, differing, is_exact=writer.is_exact)
    commit(folder, writer.platform, signatures, entry, producer())


def _judge(
    module: nn.Module,
    options: Mapping[str, SignatureOptions],
    derived: Mapping[str, Derived],
    differing: Mapping[str, list[str]],
    *,
    is_exact: bool,
) -> None:
    """Raises, unless the module itself gives other values for the outputs that differ."""
    kept = KeptState(module)
    for key, names in differing.items():
        where = f"{type(module).__name__}.{options[key].call}"
        expected = derived[key].outputs
        again = outputs_of(
            module, options[key], derived[key].forms, derived[key].example, kept
        ).outputs
        if all(same(expected[name], again[name]) for name in names):
            raise DataLoss(
                f"{where} gives other values for {', '.join(map(repr, names))} "
                "when loaded from its archive; does it depend on something outside "
                "of the module (a global variable), or on earlier calls (a list or "
                "counter that it adds to)?" + ("" if is_exact else _IN_GRAPHS)
            )
        log.warning(
            "event=outputs_not_repeatable module=%s outputs=%s differ from call to "
            "call, so the archive could not be compared",
            type(module).__name__,
            ",".join(names),
        )


def _writer(
    platform: str,
    rules: PackageRules,
    report: Callable[[DependencyReport], object] | None,
) -> PayloadWriter:
    writers: dict[str, PayloadWriter] = {
        "torch_package": PackageWriter(rules, report),
        "torch_export": ProgramWriter(),
        "aotinductor": ProgramWriter(is_compiled=True),
        "torchscript": ScriptWriter(),
    }
    if platform not in writers:
        raise InvalidArgument(
            f"a module cannot be saved as {platform!r}; use one of {', '.join(writers)}"
        )
    return writers[platform]
