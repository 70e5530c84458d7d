"""The pages answer, whatever is asked for, and show text as text."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st
from service.db.test_power_profiles import profile
from service.jobs import HARDWARE, register, report
from sqlalchemy import event, update
from werkzeug.datastructures import MultiDict
from zeus_service import maintenance, optimizer
from zeus_service.bandit.registry import POLICIES
from zeus_service.db.queries import JOB_STATES, OUTCOMES, RUNNING, SORTS
from zeus_service.db.session import transaction
from zeus_service.db.tables import Job, db
from zeus_service.pages import routes
from zeus_service.pages.routes import CSV_COLUMNS


def add_job(job_id: str = "job", *, runs: int = 2, **changes: Any) -> None:
    """A job with some runs that converged, one that failed, and one in flight, if it has any."""
    register(job_id=job_id, **changes)
    for number in range(1, runs + 1):
        optimizer.start_trial(job_id, None)
        for epoch in (1, 2):
            figures = {"time_s": 10.0 * epoch, "energy_j": 900.0 * epoch, "metric": 0.46 * epoch}
            optimizer.report(job_id, number, report(epoch, **figures))
    if runs:
        optimizer.start_trial(job_id, None)
        optimizer.end_trial(job_id, runs + 1, "diverged", "<b>nan</b>")
        optimizer.start_trial(job_id, None)


def every_address(job_id: str = "job", runs: int = 2) -> list[str]:
    path = f"/job/{quote(job_id, safe='')}"
    found = ["/", path, f"{path}/delete", f"{path}/trials.csv"]
    found += [f"{path}/figures", f"{path}/figures/compare"]
    found += [f"{path}/trial/{number}" for number in range(1, runs + 3) if runs]
    return found


@pytest.mark.parametrize("runs", [0, 2])
def test_every_page_and_figure_answers(app: Flask, runs: int) -> None:
    add_job(runs=runs)
    client = app.test_client()
    queries = ("/?q=J&state=learning&sort=saved", "/job/job?q=outcome:converged&run=1&run=2")
    compared = [f"/job/job/figures/compare?run={number}" for number in (1, 3)]
    for address in (*every_address(runs=runs), *queries, *compared, "/savings", "/savings.csv"):
        answer = client.get(address)
        assert answer.status_code == 200, (address, answer.text)
        for figure in answer.json.values() if "/figures" in address else ():
            assert {"data", "layout", "note"} == figure.keys() - {"title"}
            if not runs:
                assert figure["data"] == []
                assert figure["note"]


MARKUP = "<script>alert('1')</script>&amp; \"quoted\" ü"


def test_ids_and_names_with_markup_are_shown_as_text(client: FlaskClient) -> None:
    job_id = MARKUP.replace("/", "|")
    add_job(job_id, monitor=MARKUP, device_model=MARKUP)
    for address in every_address(job_id):
        answer = client.get(address)
        assert answer.status_code == 200, address
        if answer.mimetype == "text/html":
            assert "<script>alert" not in answer.text
            assert "&lt;script&gt;alert" in answer.text
            assert "<b>nan" not in answer.text
        elif answer.mimetype == "application/json":  # plotly takes some markup in texts
            assert "<script" not in answer.text


def test_an_id_with_a_slash_is_listed_without_a_page(client: FlaskClient) -> None:
    add_job("a/b")
    text = client.get("/").text
    assert "a/b" in text
    assert 'href="/job/a' not in text


def every_page_route(client: FlaskClient) -> list[str]:
    """An address, at least one, of each route of the pages that is read."""
    found = [
        *every_address(),
        "/savings",
        "/savings.csv",
        "/sign-in",
        "/assets/page.css",
    ]
    routes = client.application.url_map
    matched = {routes.bind("localhost").match(address)[0] for address in found}
    every = [rule for rule in routes.iter_rules() if rule.endpoint.startswith("pages.")]
    assert matched == {rule.endpoint for rule in every if "GET" in (rule.methods or ())}
    return found


NAMES = ["run", "state", "sort", "order", "page", "upto", "outcome", "batch_size"]
SENSIBLE = ["asc", *JOB_STATES, *SORTS, *OUTCOMES, RUNNING]
VALUES = st.text(max_size=8) | st.sampled_from(["-1", "1e9", "²", "\0", "%", "../..", "é" * 400])


def test_no_query_is_an_error_of_the_service(client: FlaskClient) -> None:
    add_job()
    values = VALUES | st.integers().map(str) | st.sampled_from(["9" * 30, *SENSIBLE])
    query = st.lists(st.tuples(st.sampled_from([*NAMES, "q", "next"]) | st.text(), values))

    @settings(max_examples=60, derandomize=True)
    @given(st.sampled_from(every_page_route(client)), query)
    def check(path: str, query: list[tuple[str, str]]) -> None:
        assert client.get(path, query_string=MultiDict(query)).status_code == 200

    check()


@pytest.mark.parametrize("address", ["/", "/savings", "/job/job", *every_address()[4:]])
def test_what_has_not_changed_is_not_sent_again(client: FlaskClient, address: str) -> None:
    add_job()
    answer = client.get(address)
    read: list[str] = []
    event.listen(db.engine, "before_cursor_execute", lambda *given: read.append(given[2]))
    again = client.get(address, headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    assert 1 <= len([statement for statement in read if "SELECT" in statement]) <= 4
    assert not [statement for statement in read if "jobs.spec" in statement]  # nothing is rendered
    optimizer.start_trial("job", None)
    optimizer.report("job", 4, report())
    changed = client.get(address, headers={"If-None-Match": answer.headers["ETag"]})
    assert changed.status_code == 200


def test_the_file_of_trials_has_a_line_for_each(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "PORTION", 3)
    add_job("ü 😀")
    answer = client.get(f"/job/{quote('ü 😀')}/trials.csv")
    assert answer.mimetype == "text/csv"
    name = answer.headers["Content-Disposition"]
    assert name == "attachment; filename*=UTF-8''%C3%BC%20%F0%9F%98%80-trials.csv"
    rows = list(csv.DictReader(answer.text.splitlines()))
    assert list(rows[0]) == list(CSV_COLUMNS)
    assert [row["outcome"] for row in rows] == ["converged", "converged", "diverged", ""]
    assert float(rows[0]["energy_j"]) == 1800.0


def test_the_next_run_gets_what_the_job_page_says(client: FlaskClient) -> None:
    add_job()
    page = client.get("/job/job").text
    _, started, _ = optimizer.start_trial("job", None)
    assert f"The next run gets {started.batch_size}: {started.start_reason}." in unescape(page)
    (row,) = re.findall(r'<tr class="next">.*?</tr>', page)
    assert f"</svg>{started.batch_size}<" in row


def test_control_trials_are_counted_and_marked(client: FlaskClient) -> None:
    add_job()
    assert "as control" not in client.get("/job/job").text
    optimizer.start_trial("job", control=True)
    page = client.get("/job/job").text
    assert "5 runs (control trials and baselines: 1)" in page
    assert '<td class="minor">control</td>' in page
    assert "never stopped early: a control trial" in client.get("/job/job").text
    assert "control: a control trial" in client.get("/job/job/trial/5").text
    assert "control" in client.get("/job/job/trials.csv").text.splitlines()[-1]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_learns_its_target_says_how_far_it_is(client: FlaskClient, policy: str) -> None:
    register(target_metric=None, policy=policy)
    for number in (1, 2, 3):
        optimizer.start_trial("job")
        optimizer.report("job", number, report(1, metric=0.7))
        optimizer.end_trial("job", number, "diverged" if number < 3 else "completed")
    optimizer.start_trial("job")
    page = client.get("/job/job").text
    assert "1 of 3 baselines completed; the target for val_acc will be learned from them" in page
    assert "runs to completion; 3 baselines set the target" in unescape(page)
    assert "batch size failed" not in page
    assert "<p>val_acc has no value yet</p>" in page
    assert "<td>not learned yet</td>" in page
    assert "None" not in page
    assert "never stopped early: a baseline" in page
    assert "target not learned yet" in client.get("/job/job/trial/4").text
    assert "4 runs (control trials and baselines: 4)" in page
    assert 'class="state learning"' in page
    for address in every_address(runs=2):
        assert client.get(address).status_code == 200, address

    def lines() -> list[object]:
        drawn = client.get("/job/job/figures/compare?run=3").json["compare"]
        return drawn["layout"]["shapes"]

    assert lines() == []
    for number in (4, 5):
        if number == 5:
            optimizer.start_trial("job")
        optimizer.report("job", number, report(1, metric=0.7))
        optimizer.end_trial("job", number, "completed")
    page = client.get("/job/job").text
    learned = "as learned from runs with the default batch size"
    assert f"val_acc to 0.7, {learned}, in at most 10 epochs" in page
    assert "target 0.7" in client.get("/job/job/trial/3").text
    assert len(lines()) == 1


def test_a_run_without_reports_says_why(client: FlaskClient) -> None:
    add_job()
    maintenance.prune(older_than_s=-1)
    pruned = "The reports of this run were deleted by <code>zeus-service prune</code>."
    whys = [pruned, pruned, "This run has not reported.", "This run has not reported yet."]
    for number, why in enumerate(whys, 1):
        assert why in client.get(f"/job/job/trial/{number}").text


def test_estimates_are_marked(client: FlaskClient) -> None:
    add_job(hardware=replace(HARDWARE, estimated=True))
    for address in ("/", "/job/job", "/job/job/trial/1"):
        assert "estimated" in client.get(address).text


def test_figures_change_with_a_power_profile(client: FlaskClient) -> None:
    add_job()
    points = [{"limit_w": w, "energy_j": 1.0 + w, "time_s": 1.0} for w in (50, 60)]
    measured = profile(device_model="Fake <b>GPU</b>", points=points, chosen_w=50)
    path = "/api/v1/jobs/job/power-profiles/32"
    assert client.put(path, json=measured).status_code == 201
    answer = client.get("/job/job/figures")
    assert [trace["x"] for trace in answer.json["power"]["data"]] == 2 * [[50, 60]]
    unchanged = {"If-None-Match": answer.headers["ETag"]}
    assert client.get("/job/job/figures", headers=unchanged).status_code == 304
    client.put(path, json={**measured, "chosen_w": 60})
    assert client.get("/job/job/figures", headers=unchanged).status_code == 200


def test_a_broken_job_is_logged_by_its_page(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    add_job()
    with transaction() as session:
        session.execute(update(Job).values(spec={}))
    assert client.get("/job/job").status_code == 500
    assert "job 'job' cannot be used" in caplog.text


def test_the_file_of_trials_has_no_formula(client: FlaskClient) -> None:
    add_job(runs=0)
    formulas = ["=HYPERLINK(1)", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", "\t1", "\r\n=1"]
    for number, reason in enumerate([*formulas, "nan", "a\t=1"], start=1):
        optimizer.start_trial("job", None)
        optimizer.end_trial("job", number, "errored", reason)
    text = client.get("/job/job/trials.csv").text
    rows = csv.DictReader(io.StringIO(text, newline=""))
    expected = [*(f"'{formula}" for formula in formulas), "nan", "a\t=1"]
    assert [row["reason"] for row in rows] == expected


def test_no_script_and_no_style_stand_in_a_page(client: FlaskClient) -> None:
    add_job()
    for address in ("/", "/job/job", "/job/job/trial/1", "/job/job/delete", "/job/nobody"):
        answer = client.get(address)
        policy = answer.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=", answer.text)
        assert set(re.findall(r'(?:src|href)="(\w+:)?//', answer.text)) == set()


def test_a_job_is_deleted_after_its_id_was_typed(client: FlaskClient) -> None:
    add_job()

    def delete(**form: str) -> int:
        return client.post("/job/job/delete", data=form).status_code

    assert "Runs are in flight" in client.get("/job/job/delete").text
    assert delete(confirm="another") == 422
    assert delete(confirm="job") == 409  # one is in flight
    assert client.get("/job/job").status_code == 200
    assert delete(confirm="job", force="on") == 303
    assert client.get("/job/job").status_code == 404
