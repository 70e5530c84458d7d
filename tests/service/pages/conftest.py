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
from playwright.sync_api import Browser, Page, expect, sync_playwright
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


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open an address in a context of its own, and wait until its figures are drawn.

    At the end, no page may have logged an error or asked another origin for anything, but for what
    `allowed` is part of.
    """
    contexts, problems, allow = [], [], []

    def open_(address: str, *, allowed: str = "", **settings: Any) -> Page:
        contexts.append(browser.new_context(**settings))
        if allowed:
            allow.append(allowed)
        page = contexts[-1].new_page()
        page.clock.install()  # it goes on by itself, too
        page.set_default_timeout(1000 * LIMIT_S)
        origin = "/".join(address.split("/")[:3])
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else 0)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda asked: note(origin, asked.url))
        page.goto(address)
        wait_until(lambda: page.evaluate(DRAWN), page.content)
        return page

    def note(origin: str, address: str) -> None:
        if not address.startswith((f"{origin}/", "data:")):
            problems.append(f"another origin: {address}")

    yield open_
    for context in contexts:
        context.close()
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
