"""The first page says what was saved and which jobs need attention; `/savings` says when."""

from __future__ import annotations

import csv
import re
from typing import Any

from flask.testing import FlaskClient
from service.jobs import register
from service.pages.conftest import converge, text_of
from sqlalchemy import update
from zeus_service import optimizer
from zeus_service.config import Config
from zeus_service.db.session import transaction
from zeus_service.db.tables import Job
from zeus_service.pages.overview import QUANTITIES, bars
from zeus_service.savings.report import Estimate
from zeus_service.units import MINUS


def set_config(client: FlaskClient, **settings: Any) -> None:
    client.application.extensions["zeus_config"] = Config(**settings)


def test_the_headline_has_the_share_the_hours_the_energy_and_what_they_are_worth(
    client: FlaskClient,
) -> None:
    register(policy="zeus", mab_num_explorations=1)
    register(job_id="unknown")
    converge("job", 14.4e6, 3.6e6)
    set_config(client, currency="EUR", price_per_kwh=0.5, carbon_intensity=400.0)
    for address in ("/", "/savings"):
        text = text_of(client, address)
        assert "38 % less energy 3.00 h less training 3.00 kWh saved" in text
        assert "EUR 1.50 saved (energy) · 1.20 kg CO₂e saved · 95 % interval of the energy" in text
        assert re.search(
            rf"energy saved {MINUS}?[\d.]+ to [\d.]+ kWh · known for 1 of 2 jobs", text
        )
        assert re.search(r"Compared with the default batch sizes, since \d+ \w{3} 20\d\d", text)
    set_config(client)
    assert "EUR" not in text_of(client, "/savings")


def test_the_first_page_of_a_new_service_says_what_to_do(client: FlaskClient) -> None:
    text = text_of(client, "/")
    for part in ("No jobs yet", 'ZeusBSOCallback("http://localhost")', "import ZeusBSOCallback"):
        assert part in text


def test_a_job_that_spends_more_than_its_default_is_not_said_to_save(client: FlaskClient) -> None:
    register(policy="zeus", mab_num_explorations=1)
    converge("job", 3.6e6, 5.4e6)
    assert "25 % more energy 30.0 min more training 500 Wh extra" in text_of(client, "/")
    assert "Jobs that saved the most" not in text_of(client, "/savings")
    assert "\N{MINUS SIGN}500 Wh \N{MINUS SIGN}25 %" in text_of(client, "/")
    assert "-25 %" not in text_of(client, "/")
    spent = "Spent more than the default 500 Wh 25 % more energy, 30.0 min more training"
    assert spent in text_of(client, "/job/job")


def test_the_list_says_what_its_columns_are(client: FlaskClient) -> None:
    register()
    page = client.get("/").text
    assert re.search(r'title="share of the default&#39;s energy" href="[^"]*">saved<', page)
    assert "converged</span> <span" in page  # a text without a gap reads as one word


def test_savings_are_unknown_until_a_run_with_the_default_has_converged(
    client: FlaskClient,
) -> None:
    for address in ("/", "/savings"):
        assert "Not known yet" in text_of(client, address)
    register()
    assert "Not known yet" in text_of(client, "/")
    assert "not known yet" in text_of(client, "/")


def test_jobs_that_need_attention_come_first_with_the_reason(client: FlaskClient) -> None:
    register(job_id="well")
    register(job_id="failing")
    register(job_id="stale")
    register(job_id="exhausted", batch_sizes=[32])
    for number in range(1, 15):
        optimizer.start_trial("failing", control=True)
        optimizer.end_trial("failing", number, "errored" if number % 2 else "out_of_memory")
    for number in (1, 2):
        optimizer.start_trial("exhausted")
        optimizer.end_trial("exhausted", number, "diverged")
    converge("stale", 100.0)
    with transaction() as session:
        past = {"created_at": 1.78e9, "updated_at": 1.78e9 + 86400}
        session.execute(update(Job).where(Job.job_id == "stale").values(past))
    text = text_of(client, "/")
    order = [
        "Needs attention",
        "exhausted The only batch size failed; the latest run: diverged exhausted",
        "failing 14 failures in a row; the latest run: out of memory failing",
        "stale No run since 29 May 2026 stale",
        "Others",
        "well learning",
    ]
    places = [text.index(each) for each in order]
    assert places == sorted(places)
    assert "Needs attention" not in text_of(client, "/?sort=job")
    assert "well" not in text_of(client, "/?state=failing")


def test_a_week_has_a_row_on_the_page_and_in_the_file(client: FlaskClient) -> None:
    register(policy="zeus", mab_num_explorations=1)
    assert len(client.get("/savings.csv").text.splitlines()) == 1
    converge("job", 14.4e6, 3.6e6)
    set_config(client, currency="EUR", price_per_kwh=0.5)
    page = client.get("/savings").text
    assert page.count('<table class="weeks">') == 1
    assert page.count('class="bar"') == 3  # energy, time and money
    answer = client.get("/savings.csv")
    assert answer.mimetype == "text/csv"
    (row,) = csv.DictReader(answer.text.splitlines())
    assert (float(row["energy_kwh_estimate"]), float(row["money_estimate"])) == (3.0, 1.5)
    assert row["co2e_kg_estimate"] == ""
    assert row["currency"] == "EUR"
    assert {f"{name}_low" for name in QUANTITIES} < row.keys()


def test_a_wide_interval_says_why(client: FlaskClient) -> None:
    register(policy="zeus", mab_num_explorations=1)
    converge("job", 14.4e6, 3.6e6)
    assert "1 , so the interval is wide" in text_of(client, "/savings")
    assert "recur --compare" in text_of(client, "/savings")


def test_bars_share_a_scale_with_zero() -> None:
    values = [
        Estimate(estimate=10.0, low=5.0, high=15.0),
        Estimate(estimate=-5.0, low=-5.0, high=-5.0),
    ]
    assert bars(values) == [
        {"zero": 25.0, "estimate": 75.0, "low": 50.0, "high": 100.0},
        {"zero": 25.0, "estimate": 0.0, "low": 0.0, "high": 0.0},
    ]
    assert bars([]) == []
    nothing = Estimate(estimate=0.0, low=0.0, high=0.0)
    assert bars([nothing]) == [dict.fromkeys(("zero", "estimate", "low", "high"), 0.0)]
