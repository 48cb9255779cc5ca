"""Both sides in one process: our pool and the default one."""

from __future__ import annotations

import pytest

from tests.python_program import run_python


@pytest.mark.parametrize("order", ["before", "after"])
def test_upstreams_definitions_and_ours_exchange_bytes(order: str) -> None:
    """Neither side stops the other, whoever comes first, and bytes mean the same."""
    result = run_python("-W", "error", "tests/proto/exchange_bytes.py", order)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("exchanged ")


def test_importing_ours_leaves_the_default_pool_alone() -> None:
    """A later import of tensorflow finds none of its names taken."""
    result = run_python(
        "-c",
        "from google.protobuf import descriptor_pool\n"
        "from tests.proto.descriptors import our_files\n"
        "for file in our_files():\n"
        "    try:\n"
        "        descriptor_pool.Default().FindFileByName(file.name)\n"
        "    except KeyError:\n"
        "        continue\n"
        "    raise SystemExit(file.name)\n",
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_folders_named_as_other_packages_shadow_none_of_them() -> None:
    """tfs/proto holds folders grpc, google and tfs; the names keep their meaning."""
    result = run_python(
        "-c",
        "from tests.proto.descriptors import our_files; our_files()\n"
        "import google.protobuf, grpc, tfs.core\n"
        "import tfs.proto.grpc, tfs.proto.google, tfs.proto.tfs\n"
        "assert hasattr(grpc, 'insecure_channel')\n"
        "assert grpc is not tfs.proto.grpc\n"
        "assert hasattr(google.protobuf, '__version__')\n"
        "assert tfs.__name__ == 'tfs' and tfs.proto.tfs.__name__ == 'tfs.proto.tfs'\n",
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_another_protobuf_implementation_is_refused_with_the_cure() -> None:
    """Pure-Python protobuf accepts conflicting definitions and then loses fields."""
    result = run_python(
        "-c",
        "import tfs.proto._pool",
        PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python",
    )
    assert result.returncode == 1
    assert "ImportError" in result.stderr
    assert "unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION" in result.stderr
