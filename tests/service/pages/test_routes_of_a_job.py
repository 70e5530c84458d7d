"""A job's page says what it saved, what a run costs, and why it needs attention."""

from __future__ import annotations

import itertools
import re
from contextlib import suppress

import pytest
from flask.testing import FlaskClient
from service.conftest import on_sqlite
from service.jobs import HARDWARE, OTHER, let_leases_expire, register, report
from service.pages.conftest import converge, text_of
from sqlalchemy import update
from zeus_service import optimizer
from zeus_service.bandit.outcomes import Outcome
from zeus_service.config import Config
from zeus_service.db.session import transaction
from zeus_service.db.tables import Job
from zeus_service.errors import ExhaustedJob


def test_a_job_says_why_it_needs_attention(client: FlaskClient) -> None:
    register()
    for number in range(1, 5):
        optimizer.start_trial("job", control=True)
        optimizer.end_trial("job", number, "errored", "KeyError: 'x'")
    text = text_of(client, "/job/job")
    assert "failing · 4 failures in a row ·" in text
    assert text.count("errored KeyError: 'x'") == 4  # not as a title alone
    with transaction() as session:
        past = {"failures": 0, "created_at": 1.78e9, "updated_at": 1.78e9 + 86400}
        session.execute(update(Job).values(past))
    assert "stale · No run since 29 May 2026 ·" in text_of(client, "/job/job")


def test_savings_are_not_shown_until_there_is_something_to_compare(client: FlaskClient) -> None:
    register(policy="zeus", mab_num_explorations=1)
    unknown = "savings are known once a run with the default 32 converges"
    assert unknown in text_of(client, "/job/job")
    converge("job", 3.6e6)
    text = text_of(client, "/job/job")
    assert "no difference from the default yet" in text
    assert "95 % interval of the energy saved" not in text
    converge("job", 1.8e6)
    text = text_of(client, "/job/job")
    assert "Saved 1.80 kWh" not in text
    assert "Saved 500 Wh 25 % less energy, 30.0 min less training than with the default 32" in text


def test_the_page_says_what_a_cost_is_and_how_far_the_limit_is_from_the_best(
    client: FlaskClient,
) -> None:
    register(eta_knob=0.25)
    converge("job", 100.0)
    for number in (2, 3, 4):
        optimizer.start_trial("job")
        optimizer.report("job", number, report(1, energy_j=1e6, time_s=1.0, metric=0.1))
    text = text_of(client, "/job/job")
    full = "what full power would use in the same time"
    assert f"A run's cost is 25 % of its energy plus 75 % of {full}" in text
    (found,) = re.findall(r"Stop limit: [\d.]+ \S+ \(([\d.]+) . best\)", text)
    on = client.get("/api/v1/jobs/job").json["hardware"][0]
    (best,) = (arm for arm in on["arms"] if arm["batch_size"] == on["best_batch_size"])
    assert float(found) == pytest.approx(on["cost_bound"] / best["mean"], abs=0.051)
    assert float(found) != 2.0  # it is doubled after stops in a row


def test_runs_beyond_those_that_a_figure_compares_are_said_to_be_left_out(
    client: FlaskClient,
) -> None:
    register()
    converge("job", *[100.0] * 7)
    address = "/job/job/figures/compare?" + "&".join(f"run={number}" for number in range(1, 8))
    assert client.get(address).json["compare"]["note"] == "Showing the latest 6 of 7 runs."


def test_runs_have_a_price_where_prices_are_set(client: FlaskClient) -> None:
    register()
    converge("job", 3.6e6)
    assert "EUR" not in text_of(client, "/job/job")
    prices = {"price_per_kwh": 0.5, "price_per_gpu_hour": 2.0}
    client.application.extensions["zeus_config"] = Config(currency="EUR", **prices)
    assert "EUR 2.50" in text_of(client, "/job/job")  # 1 kWh, and an hour of one GPU
    assert "EUR 2.50 (energy and GPU time), by nvml" in text_of(client, "/job/job/trial/1")
    client.application.extensions["zeus_config"] = Config(currency="EUR", price_per_kwh=0.5)
    assert "EUR 0.50 (energy), by nvml" in text_of(client, "/job/job/trial/1")


def test_a_job_with_one_batch_size_does_not_wait_for_another(client: FlaskClient) -> None:
    register(batch_sizes=[32])
    converge("job", 3.6e6)
    text = text_of(client, "/job/job")
    assert "savings are known once" not in text
    assert "no difference from the default" not in text


def test_a_job_that_saves_time_alone_says_so(client: FlaskClient) -> None:
    register(policy="zeus", mab_num_explorations=1)
    for number, time_s in ((1, 600.0), (2, 300.0)):
        optimizer.start_trial("job")
        amounts = {"energy_j": 3.6e6, "time_s": time_s, "metric": 0.95}
        optimizer.report("job", number, report(1, **amounts))
    text = text_of(client, "/job/job")
    assert "Saved 0 J 0 % less energy, 5.00 min less training than with the default 32" in text


def test_the_share_that_is_saved_is_the_same_on_every_page(client: FlaskClient) -> None:
    """It leaves out what was spent on hardware where it is not known what the default takes."""
    register(hardware=None)
    for number, hardware, metric in ((1, HARDWARE, 0.95), (2, HARDWARE, 0.95), (3, OTHER, 0.1)):
        optimizer.start_trial("job", hardware=hardware)
        optimizer.report("job", number, report(1, energy_j=3.6e6 / number, metric=metric))
    optimizer.end_trial("job", 3, "diverged")
    assert "Saved 500 Wh 25 % less energy" in text_of(client, "/job/job")
    assert "500 Wh 25 %" in text_of(client, "/")


@pytest.mark.parametrize(
    ("sizes", "default", "outcome", "title"),
    [
        ([32], 32, "diverged", "The only batch size failed: 1 diverged"),
        ([16, 32], 32, "out_of_memory", "All 2 batch sizes failed: 2 ran out of memory"),
        (
            *([8, 16, 32], 8, "out_of_memory"),
            "No batch size is left to try: 1 ran out of memory, 2 were not tried",
        ),
    ],
)
def test_a_job_without_a_batch_size_left_says_how_they_failed(
    client: FlaskClient, sizes: list[int], default: int, outcome: Outcome, title: str
) -> None:
    register(policy="zeus", batch_sizes=sizes, default_batch_size=default)
    with suppress(ExhaustedJob):
        for number in itertools.count(1):
            optimizer.start_trial("job")
            optimizer.end_trial("job", number, outcome)
    assert f"{title} Use another job_id" in text_of(client, "/job/job")
    listed = "The only batch size failed" if len(sizes) == 1 else "No batch size is left to try"
    latest = f"{listed}; the latest run: {outcome.replace('_', ' ')} exhausted"
    assert latest in text_of(client, "/")


@on_sqlite
def test_a_run_that_has_not_been_heard_from_is_not_called_running(
    client: FlaskClient, database_url: str
) -> None:
    register()
    optimizer.start_trial("job")
    for address in ("/job/job", "/job/job/trial/1"):
        assert '<span class="outcome running">running</span>' in client.get(address).text
    let_leases_expire(database_url)
    for address in ("/job/job", "/job/job/trial/1"):
        page = client.get(address).text
        assert "probably crashed" in page
        assert '<span class="outcome running">running</span>' not in page
    assert '<span class="bad">probably crashed</span>' in client.get("/job/job").text
