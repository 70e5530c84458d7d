"""The filter of runs takes four words, and names what it does not understand."""

from __future__ import annotations

import re
from html import escape
from typing import Any

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st
from service.jobs import register, report
from zeus_service import optimizer
from zeus_service.pages.run_filter import EXAMPLE, parse


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("cost>100", {"above_cost": 360e3}),
        ("cost>1.5MWh", {"above_cost": 5.4e9}),
        ("cost>40J", {"above_cost": 40.0}),
        ("outcome:running", {"outcome": "running"}),
        (
            EXAMPLE,
            {
                "above_cost": 9e6,
                "outcome": "converged",
                "batch_size": 512,
                "since": 1_790_812_800.0,  # 2026-10-01T00:00:00Z
            },
        ),
    ],
)
def test_words_are_arguments_of_a_query(text: str, found: dict[str, Any]) -> None:
    assert parse(text) == (found, [])


@pytest.mark.parametrize(
    "word",
    ["cost>", "cost>1e9", "cost>5kJ", "outcome:good", "batch_size:-1", "batch_size:²", "since:now",
     "since:2026-02-31", "since:٢٠٢٦-10-01", "512", "cost", ":"],
)  # fmt: skip
def test_a_word_that_makes_no_sense_is_returned(word: str) -> None:
    assert parse(f"batch_size:8 {word}") == ({"batch_size": 8}, [word])


def test_the_page_lists_the_runs_that_all_words_fit(app: Flask) -> None:
    register()
    for number, energy_j in ((1, 100.0), (2, 900.0), (3, 900.0)):
        optimizer.start_trial("job")
        optimizer.report("job", number, report(metric=0.95, energy_j=energy_j))
    optimizer.start_trial("job")
    client = app.test_client()

    def listed(text: str) -> list[int]:
        page = client.get("/job/job", query_string={"q": text}).text
        assert f'value="{escape(text)}" placeholder="{escape(EXAMPLE)}"' in page
        return [int(number) for number in re.findall(r'aria-label="Compare run (\d+)"', page)]

    assert listed("") == [4, 3, 2, 1]
    assert listed("cost>0.1Wh") == [3, 2]
    assert listed("cost>400J outcome:running") == []
    assert listed("outcome:converged since:2020-01-01") == [3, 2, 1]
    assert listed("since:9999-01-01") == []
    assert listed(f"batch_size:{optimizer.get_trial('job', 4).batch_size} outcome:running") == [4]
    page = client.get("/job/job?q=cheap").text
    assert "Ignored cheap: not a filter. Use filters such as cost&gt;2.5kWh" in page


@given(st.text() | st.lists(st.sampled_from(["cost>", "since:", "1", "J", "-", " "])).map("".join))
def test_any_text_is_parsed(text: str) -> None:
    found, unknown = parse(text)
    assert len(found) <= 4
    assert set(unknown) <= set(text.split())
