"""The lifecycle: harnesses, policies, managers, the serving map. Plain Python.

docs/managers.md shows how they are used without a server.
"""

from managers.aspired_versions_manager import (
    AspiredVersionsManager,
    AspiredVersionsManagerOptions,
)
from managers.caching_manager import (
    CachingManager,
    LoaderFactory,
    PathPrefixLoaderFactory,
)
from managers.loading.load_admission import ResourceTracker
from managers.state_monitor import ServableStateMonitor, StateMonitorOptions
from managers.static_manager import StaticManager, StaticManagerBuilder
from managers.transition_policy import availability_preserving, resource_preserving
from managers.versions.version import RetryOptions

__all__ = [
    "AspiredVersionsManager",
    "AspiredVersionsManagerOptions",
    "CachingManager",
    "LoaderFactory",
    "PathPrefixLoaderFactory",
    "ResourceTracker",
    "RetryOptions",
    "ServableStateMonitor",
    "StateMonitorOptions",
    "StaticManager",
    "StaticManagerBuilder",
    "availability_preserving",
    "resource_preserving",
]
