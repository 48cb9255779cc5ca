"""An author's decisions about what goes into a version beside the module itself."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from numpy.typing import ArrayLike
from torch.package.importer import Importer

from tfs.core.errors import InvalidArgument
from tfs.export.packaging.dependency_report import DependencyReport
from tfs.export.packaging.module_origin import WITH_PYTHON_AND_TORCH


@dataclass(frozen=True, slots=True)
class Packaging:
    """Rules for modules of Python, as names or globs (``lib.*``, ``lib.**``), and files.

    The first rule that matches a module counts, in the order mock, extern, intern. All
    of it but the last three is about a "torch_package". Immutable.

    Attributes:
        intern: Modules whose source goes into the archive. Your own code is always
            among them.
        extern: Modules that are imported from the server's environment. Python's, torch
            and numpy are always among them.
        mock: Modules that are replaced by stubs that fail when used.
        include: Modules that scanning for imports does not find; interned as a whole.
        sources: By module name, a file or folder with the code to use for it.
        resources: Text or bytes by path in the archive ("model/words.txt"; without a
            folder it goes into "model"). Packaged code reads them with
            ``import torch_package_importer``, whose ``load_text("model",
            "words.txt")`` and ``load_binary`` give them.
        importers: Importers of classes, asked in order, before the running Python. To
            export an object again, pass the PackageImporter with which it was loaded.
            For the module's own classes, the importer is found automatically.
        report: Called with the tree of packaged modules before anything is committed.
        concurrency: How many requests the module takes at once, to batch parts of
            itself with :mod:`tfs.runtime.batched`.
        batching_parameters: Text of a BatchingParameters message for the version.
        statistics: By input, an array of the values it was trained on, or a sample of
            them: their figures go into the version, for ``validation { skew { … } }``.

    """

    intern: Sequence[str] = ()
    extern: Sequence[str] = ()
    mock: Sequence[str] = ()
    include: Sequence[str] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str | bytes] = field(default_factory=dict)
    importers: Sequence[Importer] = ()
    report: Callable[[DependencyReport], object] | None = None
    concurrency: int = 1
    batching_parameters: str | None = None
    statistics: Mapping[str, ArrayLike] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rule in ("intern", "extern", "mock", "include"):
            if isinstance(getattr(self, rule), str):
                raise InvalidArgument(f"{rule} is a sequence of names, not one string")
        for rule in ("intern", "mock"):
            for glob in getattr(self, rule):
                _refuse_always_extern(rule, glob)
        if self.batching_parameters is not None:
            _check_batching_parameters(self.batching_parameters)

    def with_rules(self, more: Packaging) -> Packaging:
        """Returns these decisions with the rules for modules of ``more`` as well."""
        return replace(
            self,
            intern=(*self.intern, *more.intern),
            extern=(*self.extern, *more.extern),
            mock=(*self.mock, *more.mock),
            include=(*self.include, *more.include),
        )


def _refuse_always_extern(rule: str, glob: str) -> None:
    """Refuses a rule about Python's or torch's modules, which torch.package ignores."""
    if glob.partition(".")[0] in WITH_PYTHON_AND_TORCH:
        raise InvalidArgument(
            f"{rule} {glob!r} has no effect: modules of Python and torch are extern "
            "always, because a server runs on them itself. Leave the rule out; what "
            "only training needs of them can be imported where it is used"
        )


def _check_batching_parameters(text: str) -> None:
    # Imported here and not above, because interpreters import the exporter and must not
    # depend on RPC messages.
    from tfs.proto._text_form import ParseError, read_text
    from tfs.proto.tensorflow_serving.servables.tensorflow import (
        session_bundle_config_pb2,
    )

    try:
        read_text(text, session_bundle_config_pb2.BatchingParameters())
    except ParseError as error:
        raise InvalidArgument(
            f"batching_parameters are no BatchingParameters message: {error}"
        ) from error


NAME = "torch_package_importer"
"""The module that packaged code imports to reach its archive; it exists only there."""


@contextlib.contextmanager
def readable(resources: Mapping[str, str | bytes]) -> Iterator[None]:
    """Makes ``import torch_package_importer`` work for the block.

    Its ``load_text`` and ``load_binary`` return what the archive will contain. Code
    that comes from another package keeps that package's own. Not thread-safe.

    Args:
        resources: Text or bytes by path; without a folder they are in package "model".

    """
    if NAME in sys.modules or not resources:
        yield
        return
    contents = {
        (name if "/" in name else f"model/{name}"): (
            content.encode() if isinstance(content, str) else content
        )
        for name, content in resources.items()
    }

    def load_binary(package: str, resource: str) -> bytes:
        path = f"{package.replace('.', '/')}/{resource}"
        try:
            return contents[path]
        except KeyError:
            raise FileNotFoundError(
                f"no {path!r} among the resources: {', '.join(contents)}"
            ) from None

    def load_text(
        package: str, resource: str, encoding: str = "utf-8", errors: str = "strict"
    ) -> str:
        return load_binary(package, resource).decode(encoding, errors)

    module = types.ModuleType(NAME)
    vars(module).update(load_binary=load_binary, load_text=load_text)
    sys.modules[NAME] = module
    try:
        yield
    finally:
        del sys.modules[NAME]
