"""What model authors import to turn a model into a servable version.

For an ``nn.Module``, ``save`` is all that is needed; docs/exporting.md is the guide.
"""

from tfs.export.packaging.dependency_report import (
    Action,
    DependencyReport,
    ModuleReport,
)
from tfs.export.packaging.package import PackageRules, explain
from tfs.export.reseal import reseal
from tfs.export.save import save
from tfs.export.save_python import save_python
from tfs.export.signature_options import SignatureOptions

__all__ = [
    "Action",
    "DependencyReport",
    "ModuleReport",
    "PackageRules",
    "SignatureOptions",
    "explain",
    "reseal",
    "save",
    "save_python",
]
