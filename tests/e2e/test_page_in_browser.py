"""The page of a real server, looked at and operated with Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.browser import chromium
from tests.e2e.page_key import page_url
from tests.e2e.serving import Serving, export_scale, free_port, run_command
from tfs.testing.patience import PATIENCE_S

PATIENCE_MS = PATIENCE_S * 1000


class Site:
    """A server with a page, and the models behind it."""

    def __init__(self, serving: Serving, base_path: Path) -> None:
        self.url, _, key = page_url(serving.address).partition("/#")
        self.with_key = f"{self.url}/#{key}"
        self.base_path = base_path
        self.tried = base_path.parent / "tried"
        self._address = serving.address

    def try_out(self, version: int) -> None:
        """Starts the trial of a version of "tried"."""
        export_scale(self.tried.parent / "staged", version)
        words = "canary", "tried", str(version), "--tee=1"
        status, output = run_command(*words, f"--address={self._address}")
        assert status == 0, output
        (self.tried.parent / "staged" / str(version)).rename(self.tried / str(version))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def site(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("page")
    export_scale(folder / "scale", 1)
    export_scale(folder / "tried", 1)
    config = folder / "models"
    entries = [
        f'config {{ name: "{name}" base_path: "{folder}/{name}" }}'
        for name in ("scale", "tried", "missing")
    ]
    config.write_text(f"model_config_list {{ {' '.join(entries)} }}")
    flags = f"--model_config_file={config}", f"--rest_api_port={free_port()}"
    with Serving(*flags) as serving:
        serving.wait_for("scale/1 is available")
        yield Site(serving, folder / "scale")
        assert serving.stop() == 0


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A tab that fails its test for whatever the console says."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    yield tab
    context.close()
    assert complaints == []


def shows(page: Any, place: str, pattern: str) -> None:
    """Waits until an element has such a text, without loading the page again."""
    page.locator(place, has_text=re.compile(pattern)).first.wait_for()


def test_anybody_sees_models_without_paths_and_buttons(site: Site, page: Any) -> None:
    """What is first painted has all of it; no script is needed for that."""
    answer = page.goto(site.url)
    text = answer.text()
    assert "scale" in text
    assert "1 available" in text
    assert "base path … of missing does not exist" in text
    page.goto(f"{site.url}/models/scale")
    for hidden in (str(site.base_path.parent), "Roll back", "Configuration"):
        assert hidden not in text + page.content()


def test_models_are_found_by_name(site: Site, page: Any) -> None:
    """By the keyboard alone, and the address keeps what is looked for."""
    page.goto(site.url)
    page.keyboard.press("/")
    page.keyboard.type("miss")
    page.locator("#models tbody tr", has_text="scale").wait_for(state="detached")
    assert page.locator("#models tbody tr").count() == 1
    assert page.url.endswith("?q=miss")


def test_the_form_sends_the_example_and_shows_the_answer(site: Site, page: Any) -> None:
    """The version's own example is answered as it stands."""
    page.goto(f"{site.url}/models/scale")
    page.get_by_role("button", name="Send").click()
    shows(page, "pre.shown", r"\{\"predictions\":\[\[")


def test_the_key_brings_buttons_and_a_swap_shows_itself(site: Site, page: Any) -> None:
    """A new version appears on the open page; a roll back and its end do, too."""
    page.goto(site.with_key)
    page.get_by_role("link", name="Configuration").wait_for()
    assert "key" not in page.url
    page.goto(f"{site.url}/models/scale")
    page.on("dialog", lambda dialog: dialog.accept())
    shows(page, "#answer", "Version 1 answers")
    export_scale(site.base_path, 2)
    shows(page, "#answer", "Version 2 answers: it is the newest")
    shows(page, "#events", "scale 2 available")
    page.get_by_role("button", name="Roll back").click()
    shows(page, "#said", "Version 1 of scale answers from now on")
    shows(page, "#answer", "Version 1 answers: it was rolled back to")
    page.get_by_role("button", name="Drop the override").click()
    shows(page, "#answer", "Version 2 answers: it is the newest")
    page.goto(f"{site.url}/config")
    shows(page, "pre", "base_path: ")
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("link", name="Configuration").wait_for(state="detached")


def test_the_buttons_try_again_promote_and_end_a_trial(site: Site, page: Any) -> None:
    """Each says what came of it, and the open page shows it."""
    page.goto(site.with_key)
    page.get_by_role("link", name="Configuration").wait_for()
    page.goto(f"{site.url}/models/tried")
    page.on("dialog", lambda dialog: dialog.accept())
    broken = export_scale(site.base_path.parent / "staged", 2)
    for each in broken.glob("*.pt*"):
        each.write_bytes(b"")
    broken.rename(site.tried / "2")
    page.get_by_role("button", name="Try again").click()
    shows(page, "#said", "Version 2 of tried: ")
    site.try_out(3)
    shows(page, "#canary", "Trial of version 3")
    shows(page, "#canary", "running")
    page.get_by_role("button", name="End the trial").click()
    shows(page, "#said", "The trial of tried has ended")
    page.locator("#canary h2").wait_for(state="detached")
    site.try_out(4)
    shows(page, "#canary", "Trial of version 4")
    shows(page, "#canary", "running")
    page.get_by_role("button", name="Promote 4").click()
    shows(page, "#said", "Version 4 of tried answers from now on")
    shows(page, "#answer", "Version 4 answers: it was promoted")


@pytest.mark.parametrize("path", ["/", "/models/scale"])
def test_a_narrow_viewport_needs_no_scrolling_sideways(
    site: Site, page: Any, path: str
) -> None:
    """On a phone of 360 pixels, in the dark."""
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(color_scheme="dark")
    page.goto(site.url + path)
    wide, height = page.evaluate(
        "[document.documentElement.scrollWidth, document.body.scrollHeight]"
    )
    assert wide <= 360
    assert height > 300
