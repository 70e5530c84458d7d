"""A browser, and pages in it that may not log an error or ask another origin for anything."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from databases import migrated_database
from flask.testing import FlaskClient
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Error,
    Page,
    Request,
    expect,
    sync_playwright,
)
from service.conftest import application
from service.jobs import report
from waiting import LIMIT_S, wait_until
from zeus_service import optimizer

expect.set_options(timeout=1000 * LIMIT_S)
CHROMIUM = shutil.which("chromium")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"),
    *("--disable-component-update", "--no-first-run"),
)
VIEWPORT = {"width": 1280, "height": 720}
PHONE = {"width": 320, "height": 740}
POLL_MS = 10_000
"""How long a page waits between two requests."""
DRAWN = """() => [...document.querySelectorAll("[data-figure]")].every((place) =>
    place.classList.contains("js-plotly-plot") || place.closest(".empty, details:not([open])"))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; Playwright's event loop must end before another module runs one."""
    if CHROMIUM is None:
        pytest.skip("no Chromium: install Debian's package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Page]:
    """A page for all tests of a module, whose scripts need not be compiled for each."""
    with browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(1000 * LIMIT_S)
        yield page


Open = Callable[..., Page]


@pytest.fixture
def open_page(tab: Page) -> Iterator[Open]:
    """Open an address as in a new browser, and wait until its figures are drawn.

    At the end, no page may have logged an error or asked another origin for anything, but for what
    `allowed` is part of.
    """
    origin, problems, allow = "", [], []

    def open_(
        address: str,
        *,
        allowed: str = "",
        viewport: Any = VIEWPORT,
        color_scheme: Any = "light",
    ) -> Page:
        nonlocal origin
        if allowed:
            allow.append(allowed)
        origin = "/".join(address.split("/")[:3])
        tab.clock.install()  # now, and it goes on by itself
        tab.set_viewport_size(viewport)
        tab.emulate_media(media="null", color_scheme=color_scheme)
        tab.mouse.move(0, 0)
        tab.goto(address)
        wait_until(lambda: tab.evaluate(DRAWN), tab.content)
        return tab

    def note_message(said: ConsoleMessage) -> None:
        if said.type == "error":
            problems.append(said.text)

    def note_error(error: Error) -> None:
        problems.append(str(error))

    def note_request(asked: Request) -> None:
        if not asked.url.startswith((f"{origin}/", "data:")):
            problems.append(f"another origin: {asked.url}")

    tab.context.clear_cookies()
    listeners = {"console": note_message, "pageerror": note_error, "request": note_request}
    for event, listener in listeners.items():
        tab.on(event, listener)
    yield open_
    tab.goto("about:blank")  # the next test must not hear what this page still does
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    assert [each for each in problems if not any(part in each for part in allow)] == []


def let_it_ask(page: Page) -> None:
    """Have a page ask for what has changed, in place of waiting until it does."""
    page.wait_for_load_state("networkidle")  # until then it does not wait yet
    page.clock.fast_forward(POLL_MS)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FlaskClient]:
    """A client of an application on SQLite, within its context."""
    with migrated_database("sqlite", tmp_path) as url, application(url) as app:
        yield app.test_client()


def text_of(client: FlaskClient, address: str) -> str:
    """The text of a page, without its markup."""
    page = re.sub(r"<[^>]*>", " ", client.get(address).text.split("<main", 1)[1])
    return " ".join(unescape(page).split())


def converge(job_id: str, *energies_j: float) -> None:
    """Runs that converge, of a second for each kJ."""
    for energy_j in energies_j:
        number = optimizer.start_trial(job_id)[1].trial_number
        amounts = {"energy_j": energy_j, "time_s": energy_j / 1000, "metric": 0.95}
        optimizer.report(job_id, number, report(1, **amounts))
