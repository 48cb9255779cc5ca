"""What a directory has to hold to be a version, and what to do about one that does not.

A version that was written by ``tfs.export`` has a manifest, which is complete by itself.
One that was written by hand has to hold what a server needs to know.
"""

from __future__ import annotations

from typing import Final

from sources.storage.file_system import FileSystem
from sources.version_policy import name_versions
from tfs.core.version.manifest import MANIFEST
from tfs.core.version_directory import PLATFORM_BY_FILE, SIGNATURES

SELF_DESCRIBING: Final = frozenset(
    {"model.pt2", "servable.py", "table.csv", "table.json"}
)
"""Payload files from which their platform reads the signatures itself."""

KNOWN_PLATFORMS: Final = frozenset(
    {"tensorflow", *(name for names in PLATFORM_BY_FILE.values() for name in names)}
)
"""Platforms whose payload files are known here."""

_MAX_NAMES: Final = 5  # most file names in a message


def what_is_missing(
    names: frozenset[str],
    platform: str,
    *,
    has_other_platforms: bool,
) -> str:
    """Returns what a directory without a manifest lacks to be served; "" if nothing.

    Args:
        names: The files and folders in it.
        platform: ``model_platform`` of the configuration; "" if that names none.
        has_other_platforms: Whether a directory of which nothing is known here may
            belong to another platform.

    """
    if names & SELF_DESCRIBING:
        return ""
    if names and platform and platform not in KNOWN_PLATFORMS:
        # A third party's platform, which alone can tell, when it loads the version.
        return ""
    payloads = sorted(names & PLATFORM_BY_FILE.keys())
    if payloads and SIGNATURES in names:
        return ""
    if payloads:
        return (
            f"no {MANIFEST}, and {payloads[0]} alone does not say how it is called: "
            f"wait if it is still being copied, {MANIFEST} comes last; else write the "
            f"version with tfs.export.save, or put {SIGNATURES} beside it"
        )
    if "saved_model.pb" in names or "saved_model.pbtxt" in names:
        return "it is a TensorFlow SavedModel; export the model from PyTorch"
    if names and has_other_platforms and platform in ("", "tensorflow"):
        return ""  # as above: only its contents tell the platform
    wanted = ", ".join(sorted(PLATFORM_BY_FILE))
    found = ", ".join(sorted(names)[:_MAX_NAMES])
    holds = f"no {MANIFEST} and none of {wanted}, but {found}"
    return (
        f"{holds if names else 'it is empty'}: wait if it is still being written, "
        "else write the version with tfs.export.save"
    )


def why_no_version(file_system: FileSystem, base_path: str) -> str:
    """Returns what to do about a base path in which no directory is a version."""
    folder, _, name = base_path.rpartition("/")
    is_number = bool(name_versions([name]))
    # Asking a store goes over the network, and happens every second while it shows no
    # version.
    is_cheap = is_number or "://" not in base_path
    files = (MANIFEST, *PLATFORM_BY_FILE) if is_cheap else (MANIFEST,)
    if any(file_system.is_file(f"{base_path}/{file}") for file in files):
        if is_number:
            return f"it is a version itself; name {folder}, in which it lies"
        return f"the files of a version lie in it; move them to {base_path}/1"
    return f"a version is a directory with a number for its name, such as {base_path}/1"
