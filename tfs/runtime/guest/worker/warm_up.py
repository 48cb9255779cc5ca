"""Does in advance what the first load and the first call in a new fork cost.

A fork shares its parent's memory until it writes to it. Loading any package and calling
any model writes to much the same thousands of pages (reference counts, dictionaries,
the allocators' free lists), and that takes as long as loading a small model. Loading a
small package beforehand is enough to avoid this.
"""

from __future__ import annotations

import gc
import io

import torch
from torch.package.package_exporter import PackageExporter

from tfs.runtime.guest.platforms.torch_package import close_package, open_package
from tfs.runtime.guest.sealed_file import SealedFile, new_memfd

_CODE = "tfs.runtime.guest.sessions.value_codec"
"""The module in the package that a spare loads. It has about the usual size, because
importing compiles it."""


class _Kernels(torch.nn.Module):
    """The operators that most models begin with."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.batch_norm = torch.nn.BatchNorm2d(8)
        self.layer_norm = torch.nn.LayerNorm(8)
        self.linear = torch.nn.Linear(8, 8)
        self.embedding = torch.nn.Embedding(16, 8)
        self.bag = torch.nn.EmbeddingBag(16, 8, mode="sum")

    def forward(self, image: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        pooled = torch.relu(self.batch_norm(self.convolution(image))).mean((2, 3))
        dense = torch.sigmoid(self.linear(self.layer_norm(pooled)))
        sparse = self.bag(ids) + self.embedding(ids).sum(1)
        mixed = torch.softmax(dense @ sparse.transpose(0, 1), -1) @ sparse
        return torch.cat([dense, mixed], 1)


def _archive() -> bytes:
    """Returns a package of one module and one layer."""
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        exporter.intern(_CODE)
        exporter.extern("**")
        exporter.save_module(_CODE)
        exporter.save_pickle("model", "model.pkl", torch.nn.Linear(2, 2))
    return buffer.getvalue()


def warm_up() -> None:
    """Loads a package, calls a model, and drops both. Leaves nothing but warm pages.

    The state of torch's random numbers stays as it was.
    """
    state = torch.get_rng_state()
    try:
        _load(_archive())
        with torch.inference_mode():
            _Kernels().eval()(
                torch.zeros(2, 3, 8, 8), torch.zeros(2, 4, dtype=torch.int64)
            )
    finally:
        torch.set_rng_state(state)
        gc.collect()  # modules refer to each other, and the package to its file


def _load(archive: bytes) -> None:
    fd = new_memfd("warm-up")
    with open(fd, "wb", closefd=False) as file:
        file.write(archive)
    sealed = SealedFile.seal(fd)
    try:
        importer = open_package(sealed, "warm-up")
        try:
            importer.load_pickle("model", "model.pkl")
            importer.import_module(_CODE)
        finally:
            close_package(importer)
    finally:
        sealed.close()
