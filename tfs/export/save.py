"""``save``: from an ``nn.Module`` and example inputs to a version a server can load."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from torch import nn
from torch.package.importer import Importer
from torch.package.package_importer import PackageImporter

from tfs.core.errors import DataLoss, FailedPrecondition, InvalidArgument
from tfs.core.signature import (
    DEFAULT_SIGNATURE,
    ExampleSlot,
    FeatureSpec,
    Signature,
)
from tfs.core.version_directory import (
    BATCHING_PARAMETERS,
    EXAMPLES,
    Producer,
    commit,
    new_version,
)
from tfs.export.calling import evaluation, name_outputs, run, same
from tfs.export.dependency_report import DependencyReport
from tfs.export.derive import Derived, derive
from tfs.export.package import PACKAGE, RESOURCE, PackageRules, write_package
from tfs.export.signature_options import ExampleInputs, SignatureOptions
from tfs.export.tensor_bytes import tensor_bytes
from tfs.export.version_number import next_version

log = logging.getLogger(__name__)

_ALIGNMENT_BYTES: Final = 64


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
) -> str:
    """Writes a new version of a model: code, weights, signature and examples.

    The version appears under ``base_path`` by one rename, complete, after its
    archive was loaded back and gave the same outputs as ``module``; a server that
    watches the directory can never see a part of it. The module is called a few
    times on its example inputs, in evaluation mode and without gradients; its
    training flags are put back. Blocks.

    Args:
        module: What to serve. It is saved with the weights it has now.
        example_inputs: Real inputs of ``forward``: a tensor, tensors in order, or by
            name. Their parameter names become the signature's input names.
        base_path: The model's directory; created if absent.
        version: The version's number; None takes the next free one.
        method: What ``serving_default`` is for. "classify" needs an output
            ``scores``, float [batch, classes], served as the module returns it: end
            it in a softmax to serve probabilities. "regress" needs an output
            ``outputs``, float [batch] or [batch, 1]. A module that returns a single
            tensor has it named so.
        labels: See :class:`SignatureOptions`, as for the following.
        features: tf.Example features.
        output_names: Names of the outputs.
        batched: Whether dimension 0 is the batch everywhere.
        dynamic: Further dimensions that callers may size.
        pad: Values for free inner dimensions.
        mask: Inputs that receive masks.
        defaults: Inputs that callers may leave out.
        signatures: Further signatures by key, each possibly of another method of the
            module.
        intern: Modules whose source goes into the archive (names or globs). Your own
            code does so by itself.
        extern: Modules that the server imports from its own environment. Python's,
            torch and numpy are so by themselves.
        mock: Modules to replace by stubs that fail when used.
        include: Modules to put in although nothing imports them visibly.
        sources: Files or folders to take the code of a module from.
        resources: Text or bytes to put into the archive, by path.
        importers: Where classes come from, for objects that were loaded from other
            packages; see :class:`PackageRules`.
        assets: A folder to copy to the version's ``assets/``.
        batching_parameters: Text of a BatchingParameters message for this version.
        report: Called with the tree of packaged modules before anything is committed.

    Returns:
        The new version's directory.

    Raises:
        InvalidArgument: The module cannot be called, described or packaged so; says
            what to change. Nothing was written.
        DataLoss: The archive does not give the same outputs as the module. Nothing
            was written.
        FailedPrecondition: The version exists already. It was not touched.

    """
    base = os.fspath(base_path)
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
    with evaluation(module):
        derived = {key: derive(module, each) for key, each in options.items()}
        number = next_version(base) if version is None else version
        while True:
            try:
                with new_version(base, number) as folder:
                    _fill(
                        folder, module, options, derived, rules, report,
                        assets, batching_parameters,
                    )  # fmt: skip
                break
            except FailedPrecondition:
                # Somebody else took the number between the listing and the rename.
                if version is not None:
                    raise
                number = max(number + 1, next_version(base))
    final = os.path.join(base, str(number))
    log.info("event=version_exported path=%s platform=torch_package", final)
    return final


def _fill(
    folder: str,
    module: nn.Module,
    options: Mapping[str, SignatureOptions],
    derived: Mapping[str, Derived],
    rules: PackageRules,
    report: Callable[[DependencyReport], object] | None,
    assets: str | os.PathLike[str] | None,
    batching_parameters: str | None,
) -> None:
    archive = os.path.join(folder, "model.pt")
    found = write_package(module, archive, rules)
    log.debug("event=packaged modules=\n%s", found)
    if report is not None:
        report(found)
    verify_package(archive, module, options, derived)
    signatures, examples = place_examples(derived)
    Path(folder, EXAMPLES).write_bytes(examples)
    if assets is not None:
        shutil.copytree(assets, os.path.join(folder, "assets"))
    if batching_parameters is not None:
        Path(folder, BATCHING_PARAMETERS).write_text(
            batching_parameters, encoding="utf-8"
        )
    entry: dict[str, object] = {"package": PACKAGE, "resource": RESOURCE}
    methods = {k: o.call for k, o in options.items() if o.call != "forward"}
    if methods:
        entry["methods"] = methods
    commit(folder, "torch_package", signatures, entry, producer())


def producer() -> Producer:
    """Returns who writes versions here and now."""
    try:
        own = importlib.metadata.version("tfs")
    except importlib.metadata.PackageNotFoundError:
        own = ""
    now = dt.datetime.now(dt.UTC)
    return Producer(own, str(torch.__version__), now.isoformat(timespec="seconds"))


def place_examples(
    derived: Mapping[str, Derived],
) -> tuple[dict[str, Signature], bytes]:
    """Returns the signatures with their examples' places, and the examples' bytes."""
    signatures = {}
    blob = bytearray()
    for key, each in derived.items():
        slots = {}
        for name, tensor in each.example.items():
            blob += bytes(-len(blob) % _ALIGNMENT_BYTES)
            slots[name] = ExampleSlot(tuple(tensor.shape), len(blob))
            blob += tensor_bytes(tensor)
        signatures[key] = replace(each.signature, examples=slots)
    return signatures, bytes(blob)


def verify_package(
    archive: str,
    module: nn.Module,
    options: Mapping[str, SignatureOptions],
    derived: Mapping[str, Derived],
) -> None:
    """Loads the archive hermetically and compares its outputs with the module's.

    Raises:
        InvalidArgument: It does not load or run.
        DataLoss: An output differs, though the module itself repeats its own.

    """
    name = type(module).__name__
    try:
        loaded = PackageImporter(archive).load_pickle(PACKAGE, RESOURCE)
    except Exception as error:
        raise InvalidArgument(
            f"{name} was packaged but cannot be loaded back: {type(error).__name__}: "
            f"{error}. If a mocked module is needed after all, intern or extern it"
        ) from error
    for key, each in derived.items():
        option = options[key]
        where = f"{name}.{option.call}"
        call = loaded if option.call == "forward" else getattr(loaded, option.call)
        try:
            result = run(call, each.example)
        except Exception as error:
            raise InvalidArgument(
                f"{where} works here but not from its package: "
                f"{type(error).__name__}: {error}. If a mocked module is needed after "
                "all, intern or extern it; if one is missing, include it"
            ) from error
        names = list(each.outputs)
        outputs = name_outputs(result, names, names[0], where)
        different = [n for n, o in each.outputs.items() if not same(o, outputs[n])]
        if not different:
            continue
        own = module if option.call == "forward" else getattr(module, option.call)
        again = name_outputs(run(own, each.example), names, names[0], where)
        if all(same(each.outputs[n], again[n]) for n in different):
            raise DataLoss(
                f"{where} gives other values for {', '.join(map(repr, different))} "
                "when loaded from its package; does it depend on something outside "
                "the module, such as a global variable?"
            )
        log.warning(
            "event=outputs_not_repeatable module=%s outputs=%s differ from call to "
            "call, so the package could not be compared",
            name,
            ",".join(different),
        )
