"""What a server keeps of its fleet."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tfs.core.errors import DataLoss
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.fleet_source import FILE_NAME, FleetSource, keep_told, read_told


def test_a_file_that_was_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    """What is not all that a fleet said never counts as a wish for fewer models."""
    folder = str(tmp_path)
    source = FleetSource(read_told(folder), partial(keep_told, folder))
    request = pb.AspireRequest(claim=pb.FleetClaim(fleet="f", epoch=1), num_models=2)
    for name in ("a", "b"):
        request.config.model_config_list.config.add(name=name, base_path=f"/{name}")
    source.note(request)
    assert read_told(folder) == request
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataLoss, match="remove the file"):
            read_told(folder)
