"""What model authors import to turn a model into a servable version.

For an ``nn.Module``, ``save`` is all that is needed; docs/exporting.md is the guide.
"""

from tfs.export.packaging.dependency_report import (
    Action,
    DependencyReport,
    ModuleReport,
)
from tfs.export.packaging.package import explain
from tfs.export.packaging.packaging import Packaging
from tfs.export.publish import reseal
from tfs.export.save import save
from tfs.export.save_python import save_python
from tfs.export.signatures.signature import Signature

__all__ = [
    "Action",
    "DependencyReport",
    "ModuleReport",
    "Packaging",
    "Signature",
    "explain",
    "reseal",
    "save",
    "save_python",
]
