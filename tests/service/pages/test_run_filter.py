"""The filter of runs takes four words, and names what it does not understand."""

from __future__ import annotations

import re
from html import escape

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from service.jobs import register, report
from zeus_service import optimizer
from zeus_service.db import queries
from zeus_service.pages.run_filter import EXAMPLE, parse


@pytest.mark.parametrize(
    "word",
    ["cost>", "cost>1e9", "cost>5kJ", "outcome:good", "batch_size:-1", "batch_size:²", "since:now",
     "since:2026-02-31", "since:٢٠٢٦-10-01", "512", "cost", ":"],
)  # fmt: skip
def test_a_word_that_makes_no_sense_is_returned(word: str) -> None:
    assert parse(f"batch_size:8 {word}") == ({"batch_size": 8}, [word])


def test_the_page_lists_the_runs_that_all_words_fit(client: FlaskClient) -> None:
    register()
    for number, energy_j in ((1, 100.0), (2, 900.0), (3, 900.0)):
        optimizer.start_trial("job")
        optimizer.report("job", number, report(metric=0.95, energy_j=energy_j))
    optimizer.start_trial("job")

    def listed(text: str) -> list[int]:
        page = client.get("/job/job", query_string={"q": text}).text
        assert f'value="{escape(text)}" placeholder="{escape(EXAMPLE)}"' in page
        return [int(number) for number in re.findall(r'aria-label="Compare run (\d+)"', page)]

    assert listed("") == [4, 3, 2, 1]
    for text in ("cost>0.1Wh", "cost>0.1", "cost>0.0000001MWh"):
        assert listed(text) == [3, 2], text
    assert listed("cost>400J outcome:running") == []
    assert listed("outcome:converged since:2020-01-01") == [3, 2, 1]
    assert listed("since:9999-01-01") == []
    assert listed(f"batch_size:{queries.get_trial('job', 4)[0].batch_size} outcome:running") == [4]
    assert "Ignored" not in client.get("/job/job", query_string={"q": EXAMPLE}).text
    page = client.get("/job/job?q=cheap").text
    assert "Ignored cheap: not a filter. Use filters such as cost&gt;2.5kWh" in page


@given(st.text() | st.lists(st.sampled_from(["cost>", "since:", "1", "J", "-", " "])).map("".join))
def test_any_text_is_parsed(text: str) -> None:
    found, unknown = parse(text)
    assert len(found) <= 4
    assert set(unknown) <= set(text.split())
