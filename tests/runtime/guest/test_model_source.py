"""tfs.runtime.guest.model_source."""

from __future__ import annotations

import pytest

from tests.core.signatures import SIGNATURE
from tfs.core.errors import InvalidArgument
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.model_source import ModelSource


def source(entry: dict[str, object]) -> ModelSource:
    signatures = {"serving_default": SIGNATURE, "embed": SIGNATURE}
    return ModelSource(ServableId("m", 1), "/m/1", "torch_package", entry, signatures)


def test_methods_of_signatures_are_kept() -> None:
    """Not every signature needs one."""
    assert source({"methods": {"embed": "f"}}).texts("methods") == {"embed": "f"}


def test_a_method_of_no_signature_is_refused_by_name() -> None:
    """A misspelt key would have the signature that was meant answer with forward."""
    words = "m/1: methods names 'embd', which is no signature; there are embed, serv"
    with pytest.raises(InvalidArgument, match=words):
        source({"methods": {"embd": "f", "serving_default": "g"}})


@pytest.mark.parametrize("methods", [["f"], {"embed": 1}, "f"])
def test_methods_that_are_no_names_are_refused(methods: object) -> None:
    """The manifest is written by people, too."""
    with pytest.raises(InvalidArgument, match="'methods' of the manifest must map"):
        source({"methods": methods})


def test_a_key_of_the_entry_that_no_platform_reads_is_refused() -> None:
    """A misspelt ``methods`` would have every signature answer with forward."""
    with pytest.raises(
        InvalidArgument, match=r"unknown keys 'methds'; .* methods, pack"
    ):
        source({"methds": {"embed": "f"}, "resource": "model.pkl"})
    with pytest.raises(InvalidArgument, match="unknown keys 'args'"):
        source({"args": ["x"]})
