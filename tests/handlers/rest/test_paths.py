"""Paths of the REST API (http_rest_api_handler_test.cc)."""

from __future__ import annotations

import pytest

from tfs.codec.model_spec import ModelSpec
from tfs.core.errors import InvalidArgument
from tfs.core.http_call import HttpError
from tfs.handlers.rest.forms import Form, wanted_form
from tfs.handlers.rest.paths import Action, Routes, parse_path


@pytest.mark.parametrize(
    ("verb", "path", "action", "model"),
    [
        ("POST", "/v1/models/m:predict", Action.PREDICT, ModelSpec("m")),
        ("POST", "/V1/Models/M:Classify", Action.CLASSIFY, ModelSpec("M")),
        ("POST", "/v1/models/m/versions/7:regress", Action.REGRESS, ModelSpec("m", 7)),
        (
            "POST",
            "/v1/models/a%2Fb/labels/c%20d:predict",
            Action.PREDICT,
            ModelSpec("a/b", None, "c d"),
        ),
        ("GET", "/v1/models/m", Action.STATUS, ModelSpec("m")),
        ("HEAD", "/v1/models/m/versions/0", Action.STATUS, ModelSpec("m", 0)),
        ("GET", "/v1/models/m/labels/l", Action.STATUS, ModelSpec("m", None, "l")),
        ("GET", "/v1/models/m/metadata", Action.METADATA, ModelSpec("m")),
        (
            "GET",
            "/v1/models/m/versions/9223372036854775807/metadata",
            Action.METADATA,
            ModelSpec("m", (1 << 63) - 1),
        ),
    ],
)
def test_paths_name_a_model_and_what_is_asked_of_it(
    verb: str, path: str, action: Action, model: ModelSpec
) -> None:
    """In any case, URL-encoded (TestParseModelInfoForGet, TestParseModelInfoForPost)."""
    assert parse_path(verb, path) == (action, model)


@pytest.mark.parametrize(
    ("verb", "path", "message"),
    [
        ("GET", "/v1/models", "Missing model name in request."),
        ("POST", "/v1/models", "Malformed request: POST /v1/models"),
        ("POST", "/v1/models/m/metadata", "Malformed request: POST"),
        ("POST", "/v1/models/m/version/50:regress", "Malformed request: POST"),
        ("POST", "/v1/models/m/versions/5/labels/l:regress", "Malformed request: POST"),
        ("GET", "/v1/models/m:predict", "Malformed request: GET /v1/models/m:predict"),
        ("POST", "/v1/models/m", "Malformed request: POST /v1/models/m"),
        ("POST", "/v1/models/m:explain", "Malformed request: POST"),
        ("POST", "/v1/models/m/versions/x:predict", "Malformed request: POST"),
        ("PUT", "/v1/models/m", "Malformed request: PUT"),
        ("GET", "/v1/other", "Malformed request: GET /v1/other"),
        (
            "GET",
            f"/v1/models/m/versions/{1 << 63}",
            f"Failed to convert version: {1 << 63} to numeric.",
        ),
        ("GET", f"/v1/models/m/versions/{'9' * 5000}", "Failed to convert version"),
    ],
)
def test_other_paths_are_refused_in_tensorflow_servings_words(
    verb: str, path: str, message: str
) -> None:
    """The code is INVALID_ARGUMENT, which is 400 (UnsupportedApiCalls)."""
    with pytest.raises(InvalidArgument) as caught:
        parse_path(verb, path)
    assert message in caught.value.message


@pytest.mark.parametrize(("verb", "taken"), [("PUT", "GET, HEAD, POST"), ("GET", "")])
def test_a_path_says_which_verbs_it_takes(verb: str, taken: str) -> None:
    """HEAD is taken where GET is."""
    routes = Routes([("GET", "/a/{b}", 1), ("POST", "/{a}/b", 2)], "two")
    if not taken:
        assert routes.find(verb, "/a/b%20c") == (1, {"b": "b c"})
        return
    with pytest.raises(HttpError) as refused:
        routes.find(verb, "/a/b")
    assert refused.value.headers == [("Allow", taken)]


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Form.NPY),
        ("text/html, application/msgpack, application/json", Form.MSGPACK),
        ("application/x-npy;q=0", Form.JSON),
        ("*/*", Form.NPY),
    ],
)
def test_an_answer_has_the_form_that_is_accepted(accept: str, form: Form) -> None:
    """The first of ours; else that of the request, unless just that is refused."""
    assert wanted_form(accept, Form.NPY) is form
