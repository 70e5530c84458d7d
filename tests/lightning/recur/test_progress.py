"""Which try comes next, whatever the runs do."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zeus_lightning.recur.ending import Ending
from zeus_lightning.recur.progress import Plan, Progress, Try

DONE, FAILED = Ending(exit_code=0, run=None), Ending(exit_code=75, run=None)
INTERRUPTED = Ending(exit_code=143, run=None, cut_short="signal")
BROKEN = Ending(exit_code=1, run=None)


def begin(progress: Progress) -> Try | None:
    each = progress.next_retry() or progress.next_recurrence()
    if each is not None:
        progress.started(each)
    return each


def test_failures_beyond_the_retries_stop_the_driver_and_interruptions_do_not_count() -> None:
    progress = Progress(Plan(recurrences=2, retries=1))
    for end in (FAILED, INTERRUPTED, FAILED):
        each = begin(progress)
        assert each is not None
        assert not progress.is_over
        progress.ended(each, end)
    assert progress.is_over
    assert "failed with every one of 2 tries" in str(progress.stop)
    progress.resumed()
    each = begin(progress)
    assert each == Try(recurrence=1, attempt=4, control=False, seed=None)
    progress.ended(each, FAILED)
    assert progress.stop is None  # retries are counted from zero


def test_each_try_has_a_seed_of_its_own_and_the_same_one_in_the_same_plan() -> None:
    def seeds(seed: int) -> list[int | None]:
        progress = Progress(Plan(recurrences=2, seed=seed))
        for end in (FAILED, FAILED, DONE, DONE):
            each = begin(progress)
            assert each is not None
            progress.ended(each, end)
        return [each.seed for each in progress.tries]

    assert len({*seeds(1), *seeds(2)}) == 8
    assert seeds(1) == seeds(1)


@given(
    st.lists(st.sampled_from([DONE, FAILED, INTERRUPTED, BROKEN]), max_size=40),
    st.integers(1, 4),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_every_recurrence_is_seen_through_or_the_driver_has_stopped(
    ends: list[Ending], parallel: int, recurrences: int, random: Any
) -> None:
    progress = Progress(Plan(recurrences=recurrences, retries=3, parallel=parallel))
    while not progress.is_over:
        while begin(progress):
            assert len(progress.running) <= parallel
        each = random.choice(progress.running)
        progress.ended(each, ends.pop() if ends else DONE)
    assert (progress.stop is None) == (progress.done == set(range(1, recurrences + 1)))
    pairs = [(each.recurrence, each.attempt) for each in progress.tries]
    assert len(set(pairs)) == len(pairs)
