"""What a person sees: every view in a real browser, on a real service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from service.api.wires import Api, report
from service.jobs import START, spec_json
from service.pages.conftest import PHONE, Open, let_it_ask
from service_process import ServiceProcess
from sqlalchemy import NullPool, create_engine
from waiting import wait_until
from zeus_service.config import Config
from zeus_service.db.queries import POINTS
from zeus_service.units import MINUS

from benchmarks.long_job import add_history

TOKENS = {"ZEUS_BSO_TOKEN": "one-that-may-write", "ZEUS_BSO_READ_TOKEN": "one-that-may-read"}
TRIALS = 100_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with a job for each view, which these tests share."""
    with ServiceProcess(tmp_path_factory.mktemp("pages")) as service:
        fill(Api(service.url))
        yield service


def fill(api: Api) -> None:
    for job_id, changes in JOBS.items():
        body = spec_json(job_id=job_id, beta_knob=None, **changes)
        assert api("POST", "/jobs", body).status_code == 201
    for number in range(1, 4):
        run(api, "some-runs", number, converges=number != 2)
    run(api, "in-flight", 1, converges=True)
    run(api, "in-flight", 2, converges=False)
    for number in (1, 2):
        start(api, "exhausted")
        assert end(api, f"/jobs/exhausted/trials/{number}", "diverged")
    run(api, "long", 1, converges=True)
    for number in range(1, 5):
        run(api, "moved", number, converges=number < 4, more=MOVED if number % 2 else {})
    for number, energy_j in ((1, 1e-9), (2, 1e12), (3, 1.0)):
        start(api, ODD)
        body = report(1, metric=-1e30 if number == 3 else 0.95, energy_j=energy_j, time_s=1e-9)
        assert api("POST", f"/jobs/{ODD}/trials/{number}/reports", body).ok


ODD = 200 * "a"
JOBS: dict[str, dict[str, Any]] = {
    "no-run": {},
    "some-runs": {"monitor": "val_<b>acc"},
    "in-flight": {},
    "exhausted": {"batch_sizes": [32]},
    "moved": {},
    "long": {},
    ODD: {"monitor": 255 * "m"},
}
HARDWARE = {
    ODD: {"device_model": 255 * "d", "meter": 255 * "m"},
}


MOVED = {"device_model": "Newer <b>GPU 80GB HBM3e", "num_devices": 4, "max_power_w": 2800.0}


def start(api: Api, job_id: str, more: dict[str, Any] | None = None) -> None:
    body = {"hardware": START["hardware"] | HARDWARE.get(job_id, {}) | (more or {})}
    assert api("POST", f"/jobs/{job_id}/trials", body).status_code == 201


def end(api: Api, trial: str, outcome: str) -> bool:
    return api("PATCH", trial, {"outcome": outcome}).ok


def run(
    api: Api, job_id: str, number: int, *, converges: bool, more: dict[str, Any] | None = None
) -> None:
    """A trial with two reports, after which it has converged or goes on."""
    start(api, job_id, more)
    for sequence, metric in ((1, 0.5), (2, 0.95 if converges else 0.7)):
        body = report(sequence, metric=metric)
        assert api("POST", f"/jobs/{job_id}/trials/{number}/reports", body).ok


FITS = "() => document.documentElement.scrollWidth <= innerWidth"
BROKEN_NUMBERS = """() => [...document.querySelectorAll(".cards td.n")].filter((cell) => {
    const text = document.createRange();
    text.selectNodeContents(cell);
    return new Set([...text.getClientRects()].map((line) => line.top)).size > 1;
}).map((cell) => cell.innerText)"""
VIEWS = {
    "/": "some-runs",
    "/job/no-run": "No run has started yet",
    "/job/some-runs": "val_<b>acc",
    "/job/in-flight": "In flight",
    "/job/moved/trial/1": "On 4 \N{MULTIPLICATION SIGN} Newer <b>GPU 80GB HBM3e.",
    "/job/exhausted": "The only batch size failed: 1 diverged",
    "/job/some-runs/trial/1": "the target of 0.9 is reached",
    "/job/in-flight/trial/2": "last heard from",
    "/job/some-runs/delete": "Delete this job?",
    f"/job/{ODD}": "139 MWh",
    f"/job/{ODD}/trial/3": f"{MINUS}1e+30",
    "/job/some-runs?run=1&run=3": "Runs compared",
    "/sign-in": "Paste an access token",
    "/job/nobody": "Not Found",
}


@pytest.mark.parametrize("path", VIEWS)
def test_each_view_is_complete_accessible_and_fits_a_phone(
    filled: ServiceProcess, open_page: Open, path: str
) -> None:
    scheme = "dark" if len(path) % 2 else "light"
    page = open_page(f"{filled.url}{path}", allowed="404 (NOT FOUND)", color_scheme=scheme)
    expect(page.locator("main")).to_contain_text(VIEWS[path])
    for viewport in (None, PHONE):
        if viewport is not None:
            page.set_viewport_size(viewport)  # type: ignore[arg-type]
        wait_until(lambda: page.evaluate(FITS), lambda: page.viewport_size)
    if "/trial/" in path:  # on the phone
        expect(page.locator('[data-figure="compare"]')).to_be_visible()
    assert page.evaluate(BROKEN_NUMBERS) == []
    found = Axe().run(page).response["violations"]
    assert [each for each in found if each["impact"] in ("serious", "critical")] == []


def test_a_run_that_reports_appears_without_a_reload(
    filled: ServiceProcess, open_page: Open
) -> None:
    api = Api(filled.url)
    page = open_page(f"{filled.url}/job/some-runs")
    page.evaluate("() => { window.sameDocument = true; }")
    number = api("GET", "/jobs/some-runs").json()["trials"] + 1
    start(api, "some-runs")
    let_it_ask(page)
    card = page.locator(".run", has_text=f"Run {number}")
    expect(card).to_be_visible()
    assert api("POST", f"/jobs/some-runs/trials/{number}/reports", report(1, metric=0.31)).ok
    let_it_ask(page)
    expect(card).to_contain_text("0.31, target 0.9")
    expect(card.locator("progress").first).to_have_attribute("value", "0.1000")
    assert api("POST", f"/jobs/some-runs/trials/{number}/reports", report(2, metric=0.93)).ok
    let_it_ask(page)
    expect(card).to_have_count(0)
    row = page.locator("#trials tr", has=page.get_by_role("link", name=str(number), exact=True))
    expect(row).to_contain_text("converged")
    assert page.evaluate("() => window.sameDocument")


def test_a_job_on_two_kinds_of_hardware_shows_them_side_by_side(
    filled: ServiceProcess, open_page: Open
) -> None:
    page = open_page(f"{filled.url}/job/moved")
    known = Api(filled.url)("GET", "/jobs/moved").json()["hardware"]
    assert [each["device_model"] for each in known] == [MOVED["device_model"], "Fake GPU"]
    rows = page.get_by_role("region", name="Hardware").locator("tbody tr")
    expect(rows).to_have_count(2)
    for row, name, on in zip(
        rows.all(),
        ("1 \N{MULTIPLICATION SIGN} Fake GPU", "4 \N{MULTIPLICATION SIGN} Newer <b>GPU 80GB HBM3e"),
        reversed(known),
        strict=True,
    ):
        expect(row.get_by_role("rowheader")).to_have_text(name)
        expect(row).to_contain_text(str(on["best_batch_size"]))
    for width in (1440, 1280, 1024):
        page.set_viewport_size({"width": width, "height": 900})
        cut = "each => each.scrollWidth > each.clientWidth + 1"
        assert not page.get_by_role("region", name="Runs").evaluate(cut), width
    expect(page.locator("#running .run")).to_contain_text("1 \N{MULTIPLICATION SIGN} Fake GPU")
    expect(page.get_by_text("The next run gets")).to_contain_text(
        "on 1 \N{MULTIPLICATION SIGN} Fake GPU"
    )
    expect(page.locator(".figure", has_text="of a run").first).to_contain_text(
        "Shows only the latest hardware, 1 \N{MULTIPLICATION SIGN} Fake GPU."
    )


def test_the_keyboard_is_enough(filled: ServiceProcess, open_page: Open) -> None:
    page = open_page(filled.url)
    page.get_by_label("Search job ids").focus()
    page.keyboard.type("IN-FL")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert "q=IN-FL" in page.url
    press_until(page, "in-flight")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/job/in-flight$"))
    page.wait_for_load_state()  # the address is there before the page
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # "Skip to the content"
    press_until(page, "2")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/job/in-flight/trial/2$"))


def press_until(page: Page, name: str) -> None:
    """Press Tab until the link with this text has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.textContent.trim()") == name:
            return
    raise AssertionError(f"Tab does not reach {name}")


def test_what_is_printed_of_a_dark_page_is_dark_on_white(
    filled: ServiceProcess, open_page: Open
) -> None:
    page = open_page(f"{filled.url}/job/some-runs", color_scheme="light")
    colour = "name => getComputedStyle(document.querySelector(name))"
    of_text, of_figure = f"({colour})('main').color", f"({colour})('.plot text').fill"
    light, in_figure = page.evaluate(of_text), page.evaluate(of_figure)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(of_text) != light
    expect(page.locator(".plot text").first).not_to_have_css("fill", in_figure)
    page.emulate_media(media="print")
    assert [page.evaluate(of_text), page.evaluate(of_figure)] == [light, light]


def test_of_100_000_runs_the_latest_are_drawn(filled: ServiceProcess, open_page: Open) -> None:
    engine = create_engine(
        Config(database_url=filled.database_url).database_url, poolclass=NullPool
    )
    with engine.begin() as connection:
        add_history(connection, "long", TRIALS, reports=1)
    page = open_page(f"{filled.url}/job/long")
    figure = page.locator("figure", has_text="Cost of each run")
    expect(figure.locator(".note")).to_contain_text(f"of {TRIALS:,}")
    expect(figure.locator("path.point")).to_have_count(POINTS)
    page.get_by_label("Filter the runs").fill("outcome:converged since:2020-01-01")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("link", name="older").click()
    expect(page).to_have_url(re.compile("upto=9"))
    expect(page.locator("#trials .outcome")).to_have_text(["converged"] * 50)


def test_a_database_that_is_away_comes_back_by_itself(
    own_service: ServiceProcess, open_page: Open
) -> None:
    database = Path(own_service.database_url.removeprefix("sqlite:///"))
    away = database.with_name("away")
    database.rename(away)
    page = open_page(own_service.url, allowed="503 (SERVICE UNAVAILABLE)")
    expect(page.locator("main")).to_contain_text("The database is unavailable")
    away.rename(database)
    expect(page.locator("main")).to_contain_text("No jobs yet")


def test_signing_in_and_out(tmp_path: Path, open_page: Open) -> None:
    with ServiceProcess(tmp_path, **TOKENS) as service:
        headers = {"Authorization": f"Bearer {TOKENS['ZEUS_BSO_TOKEN']}"}
        body = spec_json()
        assert requests.post(f"{service.url}/api/v1/jobs", json=body, headers=headers).ok
        page = open_page(f"{service.url}/job/job", allowed="401 (UNAUTHORIZED)")
        expect(page).to_have_url(re.compile(r"/sign-in\?next=%2Fjob%2Fjob"))
        page.get_by_label("Token").fill("not-a-token-of-this")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text(
            "This token is not valid for this service."
        )
        page.get_by_label("Token").fill(TOKENS["ZEUS_BSO_READ_TOKEN"])
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(re.compile("/job/job$"))
        expect(page.get_by_text("read only")).to_be_visible()
        assert page.evaluate("() => document.cookie") == ""
        page.context.clear_cookies()  # as when it has expired
        let_it_ask(page)
        expect(page.get_by_label("Token")).to_be_visible()
        page.get_by_label("Token").fill(TOKENS["ZEUS_BSO_TOKEN"])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="Delete this job").click()
        page.get_by_label("to confirm").fill("job")
        page.get_by_role("button", name="Delete the job").click()
        expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        assert not any(token in service.log.read_text() for token in TOKENS.values())
