"""What an open page asks the service for: how often, and how much."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Request, Response
from service.api.wires import Api, report
from service.jobs import START, spec_json
from service.pages.conftest import DRAWN
from service_process import ServiceProcess
from waiting import LIMIT_S, wait_until

PER_MINUTE = 20
AT_FIRST = 500 * 1024
"""Bytes."""
PATHS = ("/", "/job/job?run=1&run=2", "/job/job/trial/2")


@pytest.fixture(scope="module")
def reporting(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The address of a service with a job whose second run is in flight, and its next report."""
    with ServiceProcess(tmp_path_factory.mktemp("service")) as service:
        api = Api(service.url)
        api("POST", "/jobs", spec_json(beta_knob=None, max_epochs=1000))
        sequence = itertools.count(1)

        def report_next(number: int = 2, metric: float = 0.1) -> None:
            body = report(next(sequence), metric=metric)
            answer = api("POST", f"/jobs/job/trials/{number}/reports", body)
            assert answer.ok, answer.text

        for number in (1, 2):
            assert api("POST", "/jobs/job/trials", START).ok
            report_next(number, 0.95 if number == 1 else 0.1)
        yield service.url, report_next


@pytest.mark.parametrize("path", PATHS)
def test_a_page_weighs_little_and_asks_at_most_20_times_a_minute_for_a_run_in_flight(
    reporting: tuple[str, Callable[[], None]], browser: Browser, path: str
) -> None:
    url, report_next = reporting
    page = browser.new_page()
    page.set_default_timeout(1000 * LIMIT_S)
    page.clock.install()
    sizes: list[int] = []

    def weigh(answer: Response) -> None:
        sizes.append(int(answer.headers["content-length"]))

    page.on("response", weigh)
    page.goto(f"{url}{path}")
    page.clock.run_for(1000)
    wait_until(lambda: page.evaluate(DRAWN), page.content)
    page.remove_listener("response", weigh)
    assert 5000 < sum(sizes) <= AT_FIRST
    asked: list[Request] = []
    answered: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    page.on("response", lambda response: answered.append(response.request))
    for second in range(60):
        if second % 2:
            report_next()
        page.clock.run_for(1000)
        wait_until(lambda: page.evaluate(DRAWN) and set(asked) <= set(answered), page.content)
    page.close()
    assert 5 <= len(asked) <= PER_MINUTE
