"""A job's page says what it saved, what a run costs, and why it needs attention."""

from __future__ import annotations

import re
from html import unescape

import pytest
from flask.testing import FlaskClient
from service.jobs import HARDWARE, OTHER, register, report
from sqlalchemy import update
from zeus_service import optimizer
from zeus_service.config import Config
from zeus_service.db.session import transaction
from zeus_service.db.tables import Job


def text_of(client: FlaskClient, address: str) -> str:
    """The text of a page, without its markup."""
    page = re.sub(r"<[^>]*>", "", client.get(address).text.split("<main", 1)[1])
    return " ".join(unescape(page).split())


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


def converge(*energies_j: float) -> None:
    """Runs of the job `job` that converge, of 3.6 s for each kJ."""
    for energy_j in energies_j:
        number = optimizer.start_trial("job")[1].trial_number
        amounts = {"energy_j": energy_j, "time_s": energy_j / 1000, "metric": 0.95}
        optimizer.report("job", number, report(1, **amounts))


def test_savings_are_not_shown_until_there_is_something_to_compare(client: FlaskClient) -> None:
    register(policy="zeus", mab_num_explorations=1)
    converge(3.6e6)
    text = text_of(client, "/job/job")
    assert "savings are known once another batch size has run" in text
    assert "95 % interval of the energy saved" not in text
    converge(1.8e6)
    text = text_of(client, "/job/job")
    assert "Saved 1.80 kWh" not in text
    assert "Saved 500 Wh 25 % less energy, 30.0 min less training than with the default 32" in text


def test_a_job_that_spends_more_than_its_default_says_so(client: FlaskClient) -> None:
    register(policy="zeus", mab_num_explorations=1)
    converge(3.6e6, 5.4e6)
    text = text_of(client, "/job/job")
    assert "Spent more than the default 500 Wh 25 % more energy, 30.0 min more training" in text


def test_the_page_says_what_a_cost_is_and_how_far_the_limit_is_from_the_best(
    client: FlaskClient,
) -> None:
    register(eta_knob=0.25)
    converge(100.0)
    for number in (2, 3, 4):
        optimizer.start_trial("job")
        optimizer.report("job", number, report(1, energy_j=1e6, time_s=1.0, metric=0.1))
    text = text_of(client, "/job/job")
    assert (
        "A cost is 25 % of the energy plus 75 % of what full power would use in that time" in text
    )
    (found,) = re.findall(r"Stop limit: [\d.]+ \S+ \(([\d.]+) . best\)", text)
    on = client.get("/api/v1/jobs/job").json["hardware"][0]
    (best,) = (arm for arm in on["arms"] if arm["batch_size"] == on["best_batch_size"])
    assert float(found) == pytest.approx(on["cost_bound"] / best["mean"], abs=0.051)
    assert float(found) != 2.0  # it is doubled after stops in a row


def test_runs_have_a_price_where_prices_are_set(client: FlaskClient) -> None:
    register()
    converge(3.6e6)
    assert "EUR" not in text_of(client, "/job/job")
    prices = {"price_per_kwh": 0.5, "price_per_gpu_hour": 2.0}
    client.application.extensions["zeus_config"] = Config(currency="EUR", **prices)
    assert "EUR 2.50" in text_of(client, "/job/job")  # 1 kWh, and an hour of one GPU
    assert "EUR 2.50 (energy and GPU time), by nvml" in text_of(client, "/job/job/trial/1")
    client.application.extensions["zeus_config"] = Config(currency="EUR", price_per_kwh=0.5)
    assert "EUR 0.50 (energy), by nvml" in text_of(client, "/job/job/trial/1")


def test_a_job_with_one_batch_size_does_not_wait_for_another(client: FlaskClient) -> None:
    register(batch_sizes=[32])
    converge(3.6e6)
    assert "savings are known once" not in text_of(client, "/job/job")


def test_the_share_that_is_saved_is_the_same_on_every_page(client: FlaskClient) -> None:
    """It leaves out what was spent on hardware where it is not known what the default takes."""
    register(hardware=None)
    for number, hardware, metric in ((1, HARDWARE, 0.95), (2, HARDWARE, 0.95), (3, OTHER, 0.1)):
        optimizer.start_trial("job", hardware=hardware)
        optimizer.report("job", number, report(1, energy_j=3.6e6 / number, metric=metric))
    optimizer.end_trial("job", 3, "diverged")
    assert "Saved 500 Wh 25 % less energy" in text_of(client, "/job/job")
    assert "500 Wh 25 %" in text_of(client, "/")


def test_a_job_without_a_batch_size_left_says_how_many_were_not_tried(client: FlaskClient) -> None:
    register(policy="zeus", batch_sizes=[8, 16, 32], default_batch_size=8)
    optimizer.start_trial("job")
    optimizer.end_trial("job", 1, "out_of_memory")
    text = text_of(client, "/job/job")
    assert "No batch size is left to try: 1 ran out of memory, 2 were not triedUse another" in text
    assert "All 3 batch sizes failed" not in text
    assert "No batch size is left to try; the latest run: out of memory" in text_of(client, "/")


def test_a_job_whose_batch_sizes_were_all_tried_says_that_all_failed(client: FlaskClient) -> None:
    register(policy="zeus", batch_sizes=[16, 32])
    for number in (1, 2):
        optimizer.start_trial("job")
        optimizer.end_trial("job", number, "out_of_memory")
    assert "All 2 batch sizes failed: 2 ran out of memoryUse another" in text_of(client, "/job/job")
