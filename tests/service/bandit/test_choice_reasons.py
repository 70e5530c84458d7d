"""A reason says with numbers why a run gets its batch size."""

from __future__ import annotations

import pytest
from service.jobs import HARDWARE, spec
from zeus_service.bandit import choice_reasons
from zeus_service.bandit.policy import ArmEstimate, Choice
from zeus_service.bandit.registry import policy_of

COSTLY = ArmEstimate(64, 2, 200.0, 10.0, "alive")
CHEAP = ArmEstimate(32, 41, 100.0, 1.0, "alive")
UNTRIED = ArmEstimate(16, 0, 120.0, 30.0, "alive")


@pytest.mark.parametrize(
    ("arms", "choice", "text"),
    [
        (
            [CHEAP, COSTLY, UNTRIED],
            Choice(32, "exploit"),
            "expected cost to the target 100 J (98.1 to 102 J) from 41 runs; "
            "next best: 16, 20 % more",
        ),
        (
            [CHEAP, ArmEstimate(8, 0, 99.8, 1.0, "alive"), ArmEstimate(4, 1, 1.0, 1.0, "diverged")],
            Choice(32, "exploit"),
            "expected cost to the target 100 J (98.1 to 102 J) from 41 runs; "
            "next best: 8, about the same",
        ),
        (  # Thompson sampling draws from what is known of each
            [CHEAP, ArmEstimate(8, 2, 60.0, 30.0, "alive")],
            Choice(32, "exploit"),
            "expected cost to the target 100 J (98.1 to 102 J) from 41 runs; "
            "8 looks 40 % cheaper, but that is uncertain",
        ),
        (
            [ArmEstimate(32, 0, None, None, "alive")],
            Choice(32, "exploit"),
            "it looks cheapest after the runs so far",
        ),
        (
            [ArmEstimate(32, 0, 100.0, 1.0, "alive")],
            Choice(32, "exploit"),
            "expected cost to the target 100 J (98.1 to 102 J), judging by other batch sizes",
        ),
        (
            [CHEAP, UNTRIED],
            Choice(16, "explore"),
            "not measured yet, may cost 0.72 to 1.9 times as much as batch size 32",
        ),
        (
            [CHEAP, COSTLY],
            Choice(64, "explore"),
            "measured in 2 runs; another run will show how the cost depends on the batch size",
        ),
        (
            [CHEAP],
            Choice(32, "explore"),
            "measured in 41 runs; the best so far, to be measured again",
        ),
        (
            [COSTLY],
            Choice(64, "explore"),
            "measured in 2 runs; no batch size has reached the target so far",
        ),
    ],
)
def test_a_choice_is_explained_by_what_is_known_of_its_batch_size(
    monkeypatch: pytest.MonkeyPatch, arms: list[ArmEstimate], choice: Choice, text: str
) -> None:
    policy = policy_of(spec())
    best = 32 if CHEAP in arms else None
    monkeypatch.setattr(type(policy), "describe", lambda *_: arms)
    monkeypatch.setattr(type(policy), "best_batch_size", lambda *_: best)
    assert choice_reasons.reason(spec(), {}, HARDWARE, choice, {}) == text
