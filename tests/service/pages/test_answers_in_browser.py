"""What an open page asks the service for: how often, and how much."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Request
from service.api.wires import Api, report
from service.jobs import START, spec_json
from service.pages.conftest import DRAWN
from service_process import ServiceProcess
from waiting import LIMIT_S, wait_until

PER_MINUTE = 20
AT_FIRST = 500 * 1024
"""Bytes."""
PATHS = ("/", "/job/job", "/job/job?run=1&run=2", "/job/job/trial/2")


@pytest.fixture
def reporting(tmp_path: Path) -> Iterator[tuple[str, Api]]:
    """The address of a service with a job whose second run is in flight, and never stopped."""
    with ServiceProcess(tmp_path) as service:
        api = Api(service.url)
        api("POST", "/jobs", spec_json(beta_knob=None, max_epochs=1000))
        for number in (1, 2):
            assert api("POST", "/jobs/job/trials", START).ok
            metric = 0.95 if number == 1 else 0.1
            api("POST", f"/jobs/job/trials/{number}/reports", report(1, metric=metric))
        yield service.url, api


@pytest.mark.parametrize("path", PATHS)
def test_an_open_page_asks_at_most_20_times_a_minute_for_a_run_in_flight(
    reporting: tuple[str, Api], browser: Browser, path: str
) -> None:
    url, api = reporting
    page = browser.new_page()
    page.clock.install()
    page.goto(f"{url}{path}")
    page.clock.run_for(1000)
    wait_until(lambda: page.evaluate(DRAWN), page.content)
    asked: list[Request] = []
    answered: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    page.on("response", lambda response: answered.append(response.request))
    for second in range(60):
        if second % 2:
            body = report(2 + second // 2, metric=0.1)
            answer = api("POST", "/jobs/job/trials/2/reports", body)
            assert answer.ok, answer.text
        page.clock.run_for(1000)
        wait_until(lambda: page.evaluate(DRAWN) and set(asked) <= set(answered), page.content)
    page.close()
    assert 5 <= len(asked) <= PER_MINUTE


@pytest.mark.parametrize("path", PATHS)
def test_a_page_and_its_figures_weigh_little_at_first(
    reporting: tuple[str, Api], browser: Browser, path: str
) -> None:
    url, _ = reporting
    page = browser.new_page()
    page.set_default_timeout(1000 * LIMIT_S)
    sizes: list[int] = []

    page.on("response", lambda answer: sizes.append(int(answer.headers["content-length"])))
    page.goto(f"{url}{path}")
    wait_until(lambda: page.evaluate(DRAWN), page.content)
    page.close()
    assert 5000 < sum(sizes) <= AT_FIRST
