"""The list of jobs and `/savings`, as a person sees them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from service.api.wires import Api, report
from service.jobs import START, spec_json
from service.pages.conftest import PHONE, Open
from service_process import ServiceProcess

SETTINGS = {
    "ZEUS_BSO_CURRENCY": "EUR",
    "ZEUS_BSO_PRICE_PER_KWH": "0.30",
    "ZEUS_BSO_PRICE_PER_GPU_HOUR": "2.50",
    "ZEUS_BSO_CARBON_INTENSITY": "380",
}
SAVES = "saves-and-has-a-long-name-as-well"
WIDTHS = (1440, 1024, 390, PHONE["width"])
CUT = """() => [...document.querySelectorAll(".scroll")].filter((each) =>
    each.scrollWidth > each.clientWidth + 1).map((each) => each.getAttribute("aria-label"))"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with jobs in several states, some of which have saved something."""
    with ServiceProcess(tmp_path_factory.mktemp("overview"), **SETTINGS) as service:
        api = Api(service.url)
        for job_id in ("a-failing-job-with-quite-a-long-name", SAVES, "new"):
            body = spec_json(job_id=job_id, policy="zeus", mab_num_explorations=1)
            assert api("POST", "/jobs", body).ok
        for number, energy_j in enumerate((14.4e6, 3.6e6, 4.0e6), start=1):
            assert api("POST", f"/jobs/{SAVES}/trials", START).ok
            body = report(1, metric=0.95, energy_j=energy_j, time_s=energy_j / 1000)
            assert api("POST", f"/jobs/{SAVES}/trials/{number}/reports", body).ok
        failing = "/jobs/a-failing-job-with-quite-a-long-name/trials"
        for number in range(1, 15):
            assert api("POST", failing, {**START, "control": True}).ok
            assert api("PATCH", f"{failing}/{number}", {"outcome": "errored"}).ok
        yield service


@pytest.mark.parametrize(("path", "scheme"), [("/", "light"), ("/savings", "dark")])
def test_no_column_is_cut_at_any_width(
    filled: ServiceProcess, open_page: Open, path: str, scheme: str
) -> None:
    page = open_page(f"{filled.url}{path}", color_scheme=scheme)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CUT) == [], width
        if width in (1440, 390):
            found = Axe().run(page).response["violations"]
            assert [each for each in found if each["impact"] in ("serious", "critical")] == []


@pytest.mark.parametrize("path", ["/", "/savings"])
def test_it_prints_on_one_page_in_the_colours_of_a_light_page(
    filled: ServiceProcess, open_page: Open, path: str
) -> None:
    page = open_page(f"{filled.url}{path}", color_scheme="dark")
    assert page.pdf(format="A4").count(b"/Type /Page\n") == 1
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 within its margins
    page.emulate_media(media="print")
    assert page.evaluate(CUT) == []
    fill = page.locator(".bar rect").first.evaluate("(each) => getComputedStyle(each).fill")
    assert fill == "rgb(43, 154, 102)"
    ground = page.locator("body").evaluate("(each) => getComputedStyle(each).colorScheme")
    assert ground == "light"


def test_the_headline_leads_to_the_weeks_and_their_file(
    filled: ServiceProcess, open_page: Open
) -> None:
    page = open_page(filled.url)
    expect(page.locator(".headline")).to_contain_text("EUR")
    page.get_by_role("link", name="by week and job").click()
    expect(page.get_by_role("region", name="By week").locator("tbody tr")).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV, one year").click()
    assert download.value.suggested_filename == "savings.csv"
