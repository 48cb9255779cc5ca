"""The page of a server with ten thousand models."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable

import pytest

from tests.server.environment import Environment, config, model
from tfs.core.stats import Stats
from tfs.server.admin.server_reports import ProcessFacts, ServerReports
from tfs.server.config.server_config import read_config_text
from tfs.server.page.handler import render
from tfs.server.page.views import Views
from tfs.server.ports.openapi_pages import OpenApiPages

NUM_MODELS = 10_000
NUM_THAT_ANSWER = 150
PAINT_S = 0.5
UPDATE_BYTES = 50_000


@pytest.fixture(scope="module")
def env() -> Environment:
    env = Environment()
    names = [f"model{index:05}" for index in range(NUM_MODELS)]
    for name in names[:NUM_THAT_ANSWER]:
        env.add_version(name, 1)
    env.core.start(read_config_text(config(*map(model, names)), "test"))
    env.settle()
    return env


@pytest.fixture(scope="module")
def views(env: Environment) -> Views:
    facts = ProcessFacts(1.0, "0.1", "2.0", tuple, lambda: False, Stats())
    reports = ServerReports(env.core, env.clock, facts)
    return Views(env.core, reports, lambda *_: {}, deque(), env.clock)


def taking(show: Callable[[], str]) -> tuple[str, float]:
    """Returns a page, and how many seconds of processor time it took."""
    begun_s = time.thread_time()
    text = show()
    return text, time.thread_time() - begun_s


@pytest.mark.parametrize("page", [1, NUM_MODELS // 100])
def test_a_page_of_ten_thousand_models_is_quick_and_small(
    views: Views, page: int
) -> None:
    """Its first paint takes half a second at most, and an update has 50 KB at most."""

    def show(*, is_live: bool) -> Callable[[], str]:
        return lambda: render(
            "overview",
            views.head(is_operator=True) | views.overview("", page, ""),
            is_live=is_live,
        )

    text, taken_s = taking(show(is_live=False))
    assert text.count('id="m-model') == 100
    assert taken_s <= PAINT_S
    update, taken_s = taking(show(is_live=True))
    assert len(update.encode()) <= UPDATE_BYTES
    assert taken_s <= PAINT_S


def test_models_are_listed_a_hundred_a_page(views: Views) -> None:
    """What is looked for stays in the links to the pages before and behind."""
    head = views.head(is_operator=True)
    text = render("overview", head | views.overview("del0", 3, "silent"))
    assert "201\N{EN DASH}300 of 9850" in text
    for page in (2, 4):
        assert f'href="/?q=del0&show=silent&page={page}"' in text.replace("&amp;", "&")
    text = render("docs", head | views.docs("", 100, "http://h:1"))
    assert text.count("?model=model") == 100
    assert 'href="/docs?page=99"' in text
    assert "page=101" not in text


def test_openapi_describes_a_thousand_models_a_page_in_small_pieces(
    env: Environment,
) -> None:
    """The whole stopped the server's other threads for a tenth of a second."""
    write = OpenApiPages(env.core, lambda _: None).document
    parts = write("").body
    assert max(map(len, parts)) < 10_000
    document = json.loads(b"".join(parts))
    assert "page 1 of 10; ?page=2 is another" in document["info"]["description"]
    predicts = [path for path in document["paths"] if path.endswith(":predict")]
    assert len(predicts) == NUM_THAT_ANSWER
    assert json.loads(b"".join(write("page=2").body))["paths"] == {}
