"""What a reader does with a job's page lasts while the page follows the job."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from service.api.wires import Api, report
from service.jobs import START, spec_json
from service.pages.conftest import Open, let_it_ask
from service_process import ServiceProcess
from waiting import wait_until

PATH = "/job/followed"


@pytest.fixture(scope="module")
def service(service: ServiceProcess) -> ServiceProcess:
    """A service with a job of three runs."""
    api = Api(service.url)
    assert api("POST", "/jobs", spec_json(job_id="followed")).status_code == 201
    for _ in range(3):
        add_run(api)
    return service


@pytest.fixture(scope="module")
def failed_first(service: ServiceProcess) -> str:
    """The address of a job whose first run failed, and whose second one did not."""
    api = Api(service.url)
    body = spec_json(job_id="failed-first", batch_sizes=[32])
    assert api("POST", "/jobs", body).status_code == 201
    path = "/jobs/failed-first/trials"
    assert api("POST", path, START).ok
    assert api("POST", f"{path}/1/reports", report(1, metric=0.1)).ok
    assert api("PATCH", f"{path}/1", {"outcome": "diverged"}).ok
    assert api("POST", path, START).ok
    assert api("POST", f"{path}/2/reports", report(1, metric=0.95)).ok
    return f"{service.url}/job/failed-first"


def add_run(api: Api) -> int:
    """A run that converges; return its number."""
    trial = api("POST", "/jobs/followed/trials", START).json()
    number, is_default = trial["trial_number"], trial["batch_size"] == 32
    body = report(1, metric=0.95, energy_j=500.0 * is_default + number)
    assert api("POST", f"/jobs/followed/trials/{number}/reports", body).ok
    return int(number)


def figure(page: Page, name: str) -> Any:
    return page.locator(f'[data-figure="{name}"]')


def test_a_zoom_lasts_when_the_figure_is_drawn_again(
    service: ServiceProcess, open_page: Open
) -> None:
    page = open_page(f"{service.url}{PATH}")
    plot = figure(page, "costs")
    plot.scroll_into_view_if_needed()
    box = plot.locator(".nsewdrag").bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + box["height"] - 10, steps=5)
    page.mouse.up()
    shown = "plot => [plot._fullLayout.xaxis.range, plot._fullLayout.xaxis.autorange]"
    wait_until(lambda: plot.evaluate(shown)[1] is False)
    zoomed = plot.evaluate(shown)
    number = add_run(Api(service.url))
    let_it_ask(page)
    wait_until(lambda: plot.evaluate("(plot, n) => plot.data.some((t) => t.x.includes(n))", number))
    assert plot.evaluate(shown) == zoomed


def test_a_selection_of_text_lasts_until_it_is_given_up(
    service: ServiceProcess, open_page: Open
) -> None:
    page = open_page(f"{service.url}{PATH}")
    page.evaluate("() => getSelection().selectAllChildren(document.querySelector('#rows'))")
    selected = page.evaluate("() => getSelection().toString()")
    assert "converged" in selected
    number = add_run(Api(service.url))
    let_it_ask(page)
    expect(page.locator("#job")).to_contain_text(f"{number} runs")
    assert page.evaluate("() => getSelection().toString()") == selected
    page.evaluate("() => getSelection().removeAllRanges()")
    let_it_ask(page)
    expect(page.locator("#rows tbody tr").first).to_contain_text(str(number))


def test_a_time_is_rounded_not_cut(service: ServiceProcess, open_page: Open) -> None:
    page = open_page(f"{service.url}/job/nobody", allowed="404 (NOT FOUND)")
    shown = page.evaluate(
        """() => [47, 59 * 24, 25, 0.6].map((hours) => {
            const time = document.querySelector("main").appendChild(document.createElement("time"));
            time.dataset.time = Date.now() / 1000 - hours * 3600;
            showTimes(document);
            return time.textContent;
        })"""
    )
    assert shown == ["2 days ago", "2 months ago", "1 day ago", "36 minutes ago"]


def test_a_printed_figure_is_as_wide_as_its_card(service: ServiceProcess, open_page: Open) -> None:
    page = open_page(f"{service.url}{PATH}", viewport={"width": 1440, "height": 900})
    page.emulate_media(media="print")
    page.evaluate("() => { document.body.style.width = '640px'; }")  # paper: without a resize
    cut = """() => [...document.querySelectorAll(".figure")].filter((card) =>
        [...card.querySelectorAll(".main-svg")].some((drawing) => {
            const box = drawing.getBoundingClientRect(), matrix = drawing.getScreenCTM();
            const width = matrix.a * drawing.getAttribute("width");
            return Math.max(box.right, box.left + width) > card.getBoundingClientRect().right + 1;
        })).length"""
    assert page.evaluate(cut) == 0


@pytest.mark.parametrize("path", [PATH, f"{PATH}/trial/1"])
def test_no_table_is_cut_on_a_narrow_screen(
    service: ServiceProcess, open_page: Open, path: str
) -> None:
    page = open_page(f"{service.url}{path}")
    cut = """() => [...document.querySelectorAll(".scroll")].filter((each) =>
        each.scrollWidth > each.clientWidth).map((each) => each.getAttribute("aria-label"))"""
    for width in (1280, 1180, 1024, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(cut) == [], width
        row = page.locator("main").locator("#rows tbody tr, #trial > p").first
        expect(row).to_contain_text(re.compile(r"[A-Z][a-z]{2} \d+, \d{4}"))  # when it started
        expect(page.locator("thead").last).to_be_visible(visible=width > 640)


def test_the_reason_of_a_failure_is_a_line_of_its_own_on_a_phone(
    failed_first: str, open_page: Open
) -> None:
    page = open_page(failed_first, viewport={"width": 390, "height": 800})
    row = page.locator("#rows tbody tr").last
    outcome = row.locator("td", has=page.locator(".outcome")).bounding_box()
    assert outcome["width"] > 0.9 * row.bounding_box()["width"]


def test_the_legend_shows_a_batch_size_as_a_circle_whatever_its_first_run_came_to(
    failed_first: str, open_page: Open
) -> None:
    plot = figure(open_page(failed_first), "costs")
    symbols = [each.get_attribute("d") for each in plot.locator(".legendpoints path").all()]
    drawn = [each.get_attribute("d") for each in plot.locator("path.point").all()]
    assert symbols
    assert all(symbol.count("A") == 2 for symbol in symbols)  # two arcs
    assert any("A" not in each for each in drawn)  # the run that failed


def test_what_a_single_run_has_saved_has_a_unit_ticks_and_a_band(
    failed_first: str, open_page: Open
) -> None:
    plot = figure(open_page(failed_first), "saved")
    ticks = plot.locator(".ytick text").all_text_contents()
    assert ticks
    assert all(re.fullmatch(r"[\d.\N{MINUS SIGN}]+ (J|Wh)", tick) for tick in ticks)
    expect(plot.locator(".fills path")).to_have_count(1)


def test_the_keyboard_reaches_what_a_figure_shows(service: ServiceProcess, open_page: Open) -> None:
    page = open_page(f"{service.url}{PATH}")
    box = page.locator(".figure", has=figure(page, "saved"))
    box.locator("summary").focus()
    page.keyboard.press("Enter")
    rows = box.get_by_role("region").locator("tr")
    expect(rows.first).to_have_text("curverunvalue")
    expect(rows.last).to_have_text(re.compile(r"^saved\d+.* to .*(J|Wh)$"))
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.getAttribute('role')") == "region"


def test_a_figure_keeps_to_the_height_that_its_open_table_leaves(
    service: ServiceProcess, open_page: Open
) -> None:
    page = open_page(f"{service.url}{PATH}", viewport={"width": 1440, "height": 900})
    box = page.locator(".figure", has=figure(page, "valley"))
    heights = """plot => [plot.clientHeight, plot.querySelector(".main-svg").clientHeight]"""
    before = figure(page, "valley").evaluate(heights)
    box.locator("summary").click()
    wait_until(lambda: len(set(figure(page, "valley").evaluate(heights))) == 1)
    assert figure(page, "valley").evaluate(heights) != before


def test_a_figure_may_become_empty_while_its_table_is_open(
    service: ServiceProcess, open_page: Open
) -> None:
    page = open_page(f"{service.url}{PATH}")
    plot = figure(page, "costs")
    box = page.locator(".figure", has=plot)
    box.locator("summary").click()
    nothing = {"data": [], "layout": {}, "note": "Nothing."}
    plot.evaluate("(place, nothing) => zeusFigures.draw(place, nothing)", nothing)
    expect(box).to_be_hidden()


def test_what_few_read_is_drawn_when_details_are_opened(
    service: ServiceProcess, open_page: Open
) -> None:
    page = open_page(f"{service.url}{PATH}")
    expect(figure(page, "regret")).to_be_hidden()
    page.locator("#details > summary").press("Enter")
    expect(figure(page, "regret").locator(".xtitle")).to_have_text("run")
    expect(figure(page, "power")).to_be_hidden()  # there is nothing to draw
    expect(page.get_by_role("region", name="Specification")).to_contain_text("val_acc")


def test_checked_runs_are_compared_and_stay_checked_while_the_job_goes_on(
    service: ServiceProcess, open_page: Open
) -> None:
    page = open_page(f"{service.url}{PATH}")
    for number in (1, 2):
        page.get_by_label(f"Compare run {number}", exact=True).check()
    added = add_run(Api(service.url))
    let_it_ask(page)
    expect(page.locator("#job")).to_contain_text(f"{added} runs")
    expect(page.get_by_label("Compare run 2", exact=True)).to_be_checked()
    page.get_by_role("button", name="compare").click()
    plot = page.locator('[data-figure="compare"]')
    expect(plot.locator(".legendtext")).to_have_text(["run 2 (16)", "run 1 (32)", "target"])
    expect(page.get_by_label("Compare run 1", exact=True)).to_be_checked()
