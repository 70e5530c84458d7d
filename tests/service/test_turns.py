"""The turns of a worker's threads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event

import pytest
from zeus_service import turns
from zeus_service.turns import AT_ONCE, Turns

DEADLINE_S = 60


@contextmanager
def turn(of: Turns) -> Iterator[None]:
    of.take()
    try:
        yield
    finally:
        of.give()


def wait_until_waiting(of: Turns, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while len(of._waiting) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Turns:
    """Turns that let nobody in beyond those that begin."""
    monkeypatch.setattr(turns, "WINDOW_S", 2 * DEADLINE_S)
    return Turns()


def test_few_at_a_time_and_never_more(patient: Turns) -> None:
    inside, most = [], []

    def work(number: int) -> None:
        for _ in range(50):
            with turn(patient):
                inside.append(number)
                most.append(len(inside))
                time.sleep(1e-4)
                inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, number) for number in range(8)]:
            future.result(DEADLINE_S)
    assert max(most) == AT_ONCE


def test_in_the_order_of_their_coming(patient: Turns) -> None:
    order = []
    patient._at_once = 1

    def work(number: int) -> None:
        with turn(patient):
            order.append(number)

    with ThreadPoolExecutor(8) as pool, turn(patient):
        for number in range(8):
            pool.submit(work, number)
            wait_until_waiting(patient, number + 1)
        assert order == []
    assert order == list(range(8))


def test_more_are_let_in_while_those_that_have_a_turn_only_wait() -> None:
    shared, all_in = Turns(), Barrier(8)

    def work() -> None:
        with turn(shared):
            all_in.wait(DEADLINE_S)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work) for _ in range(8)]:
            future.result(DEADLINE_S)


@pytest.mark.parametrize(
    ("busy", "first", "last"),
    [(0.25, AT_ONCE, 8), (0.45, 5, 5), (0.65, 5, AT_ONCE), (0.65, 8, AT_ONCE)],
)
def test_their_number_follows_how_much_the_worker_computes(
    monkeypatch: pytest.MonkeyPatch, busy: float, first: int, last: int
) -> None:
    now_s = itertools.count(step=turns.WINDOW_S / 10)  # of each look at the clock
    looked = [0.0]

    def look() -> float:
        looked.append(next(now_s))
        return looked[-1]

    monkeypatch.setattr(turns, "perf_counter", look)
    monkeypatch.setattr(turns, "process_time", lambda: busy * looked[-1])
    shared, over = Turns(), Event()
    shared._at_once = first

    def work() -> None:
        while not over.is_set():
            with turn(shared):
                time.sleep(1e-4)

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(work) for _ in range(8)]
        try:
            deadline = time.monotonic() + DEADLINE_S
            while len(looked) < 10_000:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            assert shared._at_once == last
        finally:
            over.set()
        for future in futures:
            future.result(DEADLINE_S)


def test_many_threads_come_to_an_end_while_their_number_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "WINDOW_S", 1e-4)
    shared = Turns()

    def work(number: int) -> None:
        for _ in range(300):
            with turn(shared):
                time.sleep(number * 5e-5)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, number) for number in range(8)]:
            future.result(DEADLINE_S)
    assert shared._taken == 0
    assert not shared._waiting
