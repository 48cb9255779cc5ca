"""Where versions come from: sources, routers and adapters. Plain Python.

docs/managers.md shows one in front of a manager.
"""

from sources.adapter import (
    ErrorInjectingSourceAdapter,
    IdentitySourceAdapter,
    PrefixStoragePathAdapter,
    UnarySourceAdapter,
)
from sources.chain import SourceChain
from sources.file_system import FileSystemSource
from sources.file_system_options import FileSystemSourceOptions
from sources.loader_adapter import LoaderSourceAdapter
from sources.router import DynamicSourceRouter, StaticSourceRouter
from sources.servable_to_monitor import ServableToMonitor
from sources.static import StaticSource, static_storage_path_source
from sources.storage_path import StoragePath
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
