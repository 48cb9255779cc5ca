"""Writes a module as code, weights and object in one archive of torch.package."""

from __future__ import annotations

import os

from tfs.export.packaging.package import RESOURCE, package_of, write_archive
from tfs.export.writers.described_module import DescribedModule
from tfs.runtime.guest.model_source import concurrency_of


def write_package(folder: str, module: DescribedModule) -> dict[str, object]:
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
        os.path.join(folder, "model.pt"),
        packaging,
        module.argument_classes,
    )
    if packaging.report is not None:
        packaging.report(report)
    package = package_of(module.module, packaging)
    return {"package": package, "resource": RESOURCE, **module.entry, **threads}
