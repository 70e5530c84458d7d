"""The turns of a worker's threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from zeus_service import turns
from zeus_service.turns import Turns

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


def test_one_at_a_time_in_the_order_of_their_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", DEADLINE_S)
    shared, order, inside = Turns(), [], []

    def work(number: int) -> None:
        with turn(shared):
            inside.append(number)
            assert inside == [number]
            order.append(number)
            inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        with turn(shared):
            futures = []
            for number in range(8):
                futures.append(pool.submit(work, number))
                wait_until_waiting(shared, number + 1)
            assert order == []
        for future in futures:
            future.result(DEADLINE_S)
    assert order == list(range(8))


def test_a_turn_that_nobody_gives_passes_on_and_is_not_waited_for_again() -> None:
    shared = Turns()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(shared.take).result(DEADLINE_S)  # and never gives it
        shared.take()
        assert shared._holder == threading.get_ident()
        pool.submit(shared.give).result(DEADLINE_S)  # it is no longer its own
        assert shared._holder == threading.get_ident()
        shared.give()
        assert shared._holder is None


def test_a_turn_passes_on_to_the_one_that_has_waited_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.2)
    shared, order = Turns(), []

    def work(number: int) -> None:
        with turn(shared):
            order.append(number)

    with ThreadPoolExecutor(4) as pool:
        shared.take()
        futures = []
        for number in range(4):
            futures.append(pool.submit(work, number))
            wait_until_waiting(shared, number + 1)
        for future in futures:
            future.result(DEADLINE_S)
    assert order == list(range(4))


def test_many_threads_whose_turns_pass_on_come_to_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 1e-4)
    shared = Turns()

    def work(number: int) -> None:
        for _ in range(300):
            with turn(shared):
                time.sleep(number * 5e-5)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, number) for number in range(8)]:
            future.result(DEADLINE_S)
    assert shared._holder is None
    assert not shared._waiting
