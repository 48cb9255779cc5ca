"""Where versions come from: sources, routers and adapters. Plain Python.

docs/managers.md shows one in front of a manager.
"""

from sources.adapter import (
    ErrorInjectingSourceAdapter,
    IdentitySourceAdapter,
    LoaderSourceAdapter,
    PrefixStoragePathAdapter,
    UnarySourceAdapter,
)
from sources.chain import SourceChain, StaticSource, static_storage_path_source
from sources.file_system import FileSystemSource
from sources.router import DynamicSourceRouter, StaticSourceRouter
from sources.servable_to_monitor import (
    FileSystemSourceOptions,
    ServableToMonitor,
    StoragePath,
)
from sources.version_policy import All, Latest, Specific

__all__ = [
    "All",
    "DynamicSourceRouter",
    "ErrorInjectingSourceAdapter",
    "FileSystemSource",
    "FileSystemSourceOptions",
    "IdentitySourceAdapter",
    "Latest",
    "LoaderSourceAdapter",
    "PrefixStoragePathAdapter",
    "ServableToMonitor",
    "SourceChain",
    "Specific",
    "StaticSource",
    "StaticSourceRouter",
    "StoragePath",
    "UnarySourceAdapter",
    "static_storage_path_source",
]
