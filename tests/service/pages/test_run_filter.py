"""The filter of runs takes four words, and names what it does not understand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zeus_service.pages.run_filter import EXAMPLE, parse


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("cost>100", {"above_cost": 100.0}),
        ("cost>1.5MJ", {"above_cost": 1.5e6}),
        ("outcome:running", {"outcome": "running"}),
        (
            EXAMPLE,
            {
                "above_cost": 100e3,
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
    ["cost>", "cost>1e9", "cost>5Wh", "outcome:good", "batch_size:-1", "batch_size:²", "since:now",
     "since:2026-02-31", "since:٢٠٢٦-10-01", "512", "cost", ":"],
)  # fmt: skip
def test_a_word_that_makes_no_sense_is_returned(word: str) -> None:
    assert parse(f"batch_size:8 {word}") == ({"batch_size": 8}, [word])


@given(st.text() | st.lists(st.sampled_from(["cost>", "since:", "1", "J", "-", " "])).map("".join))
def test_any_text_is_parsed(text: str) -> None:
    found, unknown = parse(text)
    assert len(found) <= 4
    assert set(unknown) <= set(text.split())
