"""Writes upstream_descriptors.binpb: what other packages' generated code declares.

Run by hand when an upstream release is to be followed, never by the suite, in an
environment that holds the packages (tests/clients/requirements.txt lists them):

    python tests/data/extract_upstream_descriptors.py

The result is a FileDescriptorSet: the proto files of tensorflow-serving-api, gRPC's
health and reflection, google.rpc's status and its details, and every file that one of
these imports, except google/protobuf, which protobuf itself brings. Dependencies come
first, so the files can be added to a pool in order; each is as the package registers
it, byte for byte.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor

TARGET = Path(__file__).resolve().with_name("upstream_descriptors.binpb")
RELEASE = ("tensorflow-serving-api", "2.21.0")
PACKAGES = ("tensorflow_serving.apis", "tensorflow_serving.config")
MODULES = (
    "tensorflow.tsl.profiler.protobuf.profiler_options_pb2",
    "grpc_health.v1.health_pb2",
    "grpc_reflection.v1alpha.reflection_pb2",
    "google.rpc.status_pb2",
    "google.rpc.error_details_pb2",
)


def generated_modules() -> list[str]:
    """Returns the names of the modules whose files are wanted."""
    names = list(MODULES)
    for package in PACKAGES:
        folder = importlib.import_module(package).__path__
        names += [
            f"{package}.{module.name}"
            for module in pkgutil.iter_modules(folder)
            if module.name.endswith("_pb2")
        ]
    return sorted(names)


def main() -> int:
    package, wanted = RELEASE
    if (found := importlib.metadata.version(package)) != wanted:
        print(f"{package} {found} is here, {wanted} is wanted", file=sys.stderr)
        return 1
    result = descriptor_pb2.FileDescriptorSet()
    done: set[str] = set()

    def add(file: FileDescriptor) -> None:
        if file.name in done or file.name.startswith("google/protobuf/"):
            return
        done.add(file.name)
        for dependency in file.dependencies:
            add(dependency)
        result.file.add().ParseFromString(file.serialized_pb)

    for name in generated_modules():
        add(importlib.import_module(name).DESCRIPTOR)
    TARGET.write_bytes(result.SerializeToString(deterministic=True))
    print(f"{TARGET.name}: {len(result.file)} files, {TARGET.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
