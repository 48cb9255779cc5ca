"""The runtime for KServe: what it says is what KServe and the server take."""

from __future__ import annotations

import json
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.architecture.tree import ROOT
from tfs.cli.main import make_parser
from tfs.cli.serving.serve_arguments import read_flags


def manifest() -> Any:
    text = (ROOT / "deploy/kserve-runtime.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def test_it_fits_the_part_of_kserves_crd_that_it_uses() -> None:
    """With no field that the CRD does not have, and each of its type."""
    schema = json.loads((ROOT / "tests/data/kserve_serving_runtime.json").read_text())
    Draft202012Validator.check_schema(schema)
    problems = list(Draft202012Validator(schema).iter_errors(manifest()))
    assert [each.message for each in problems] == []


def test_its_arguments_are_the_servers() -> None:
    """KServe fills in the model's name; probes and port are those of HTTP."""
    (container,) = manifest()["spec"]["containers"]
    words = [each.replace("{{.Name}}", "digits") for each in container["args"]]
    arguments, unknown = make_parser().parse_known_args(["serve", *words])
    assert unknown == []
    options = read_flags(arguments)
    assert options.model_name == "digits"
    assert options.model_base_path == "/mnt/models"
    grace_s = 30  # of a pod that names none, as the CRD has no field for it
    unloading_s = 5
    assert options.drain_wait_s + options.drain_timeout_s + unloading_s <= grace_s
    assert container["ports"][0]["containerPort"] == options.rest_api_port
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == options.rest_api_port
