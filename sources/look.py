"""One look at a base path, whose result is always a value, never an exception."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sources.file_system_options import FileSystemSourceOptions
from sources.scan import Scan, Sighting, scan
from sources.servable_to_monitor import ServableToMonitor
from sources.storage import FileSystem, why
from tfs.core.clock import Clock
from tfs.core.servable_id import ServableId

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a look. Immutable.

    Attributes:
        servable: The servable that was looked at, as it was configured then.
        begun_s: When the look began, by the monotonic clock.
        found: What was seen; None if the base path could not be read.
        problems: Why it could not be read, if so.

    """

    servable: ServableToMonitor
    begun_s: float
    found: Scan | None = None
    problems: tuple[str, ...] = ()

    @property
    def is_blind(self) -> bool:
        """Whether events do not report every change, so that polling is necessary."""
        return self.found is None or self.found.is_blind


def take_look(
    file_system: FileSystem,
    servable: ServableToMonitor,
    seen: Mapping[str, Sighting],
    aspired: Collection[int],
    known: Collection[int] | None,
    options: FileSystemSourceOptions,
    clock: Clock,
    has_failed: Callable[[ServableId], bool] = lambda _: False,
) -> Look:
    """Looks at a servable's base path once; blocks as long as the storage does.

    Args:
        file_system: Where the base path lies.
        servable: The servable to look at.
        seen: What the look before remembered; it is not changed.
        aspired: Versions that are aspired now.
        known: Versions that the look before showed; None if there was none.
        options: How the source looks.
        clock: The monotonic time and the wall clock.
        has_failed: Whether a version could not be loaded.

    """
    name, base_path = servable.name, servable.base_path
    begun_s = clock.now()
    problem = ""
    try:
        found = scan(
            file_system,
            servable,
            seen,
            aspired=aspired,
            now_s=begun_s,
            wall_s=clock.wall_s(),
            settle_s=options.settle_s,
            self_describing=options.self_describing,
            has_other_platforms=options.has_other_platforms,
            known=known,
            has_failed=has_failed,
        )
        return Look(servable, begun_s, found)
    except FileNotFoundError:
        problem = f"base path {base_path} of {name} does not exist"
    except OSError as error:
        problem = f"cannot read base path {base_path} of {name}: {why(error)}"
    except Exception as error:  # a fault of one file system must not stop the others
        log.exception("event=scan_failed servable=%s", name)
        problem = f"cannot scan {base_path} of {name}: {error}"
    return Look(servable, begun_s, None, (problem,))
