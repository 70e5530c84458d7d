"""Requests take turns: first come, first served, and never too many."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from waiting import LIMIT_S, wait_until
from zeus_service.db import queue
from zeus_service.db.queue import turn
from zeus_service.errors import Contended

DEADLINE_S = LIMIT_S


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool
    assert not queue._queues, "a queue is left behind"


def waiting(key: str) -> int:
    return len(queue._queues[key].waiting)


def test_those_that_wait_are_served_in_the_order_they_came(pool: ThreadPoolExecutor) -> None:
    order = []

    def work(number: int) -> None:
        with turn("job", at_once=1, timeout_s=DEADLINE_S):
            order.append(number)

    with turn("job", at_once=1, timeout_s=DEADLINE_S):
        for number in range(8):
            pool.submit(work, number)
            wait_until(lambda number=number: waiting("job") == number + 1)
        assert order == []
    wait_until(lambda: len(order) == 8)
    assert order == list(range(8))


@pytest.mark.parametrize("at_once", [1, 3])
def test_as_many_as_may_are_within_at_once_and_never_more(
    pool: ThreadPoolExecutor, at_once: int
) -> None:
    inside: list[int] = []
    most: list[int] = []
    together = threading.Barrier(at_once)

    def work(number: int) -> None:
        with turn("job", at_once=at_once, timeout_s=DEADLINE_S):
            inside.append(number)
            most.append(len(inside))
            together.wait(DEADLINE_S)
            inside.remove(number)
            together.wait(DEADLINE_S)

    for future in [pool.submit(work, number) for number in range(6 * at_once)]:
        future.result(DEADLINE_S)
    assert max(most) == at_once


def test_other_keys_are_not_waited_for() -> None:
    with (
        turn("one", at_once=1, timeout_s=DEADLINE_S),
        turn("two", at_once=1, timeout_s=DEADLINE_S),
    ):
        pass


def test_beyond_the_bound_one_is_refused_at_once(
    pool: ThreadPoolExecutor,
) -> None:
    def work() -> None:
        with turn("job", at_once=1, timeout_s=DEADLINE_S, max_waiting=3):
            pass

    with turn("job", at_once=1, timeout_s=DEADLINE_S):
        allowed = [pool.submit(work) for _ in range(3)]
        wait_until(lambda: waiting("job") == 3)
        with pytest.raises(Contended, match="too many requests wait"):
            work()
        assert not any(future.done() for future in allowed)
    for future in allowed:
        future.result(DEADLINE_S)


def test_one_that_waits_too_long_gives_up_and_leaves_the_others_their_order(
    pool: ThreadPoolExecutor,
) -> None:
    order = []

    def work(name: str, timeout_s: float) -> None:
        with turn("job", at_once=1, timeout_s=timeout_s):
            order.append(name)

    with turn("job", at_once=1, timeout_s=DEADLINE_S):
        futures: list[Future[None]] = []
        for name, timeout_s in (("first", DEADLINE_S), ("late", 0.01), ("last", DEADLINE_S)):
            futures.append(pool.submit(work, name, timeout_s))
            wait_until(lambda: waiting("job") >= sum(not each.done() for each in futures))
        with pytest.raises(Contended, match="took too long"):
            futures[1].result(DEADLINE_S)
    futures[0].result(DEADLINE_S)
    futures[2].result(DEADLINE_S)
    assert order == ["first", "last"]


def test_where_room_has_grown_those_that_wait_are_served_before_a_newcomer(
    pool: ThreadPoolExecutor,
) -> None:
    order, room = [], [1]

    def work(name: str) -> None:
        with turn("job", at_once=lambda: room[0], timeout_s=DEADLINE_S, max_waiting=2):
            order.append(name)

    with turn("job", at_once=lambda: room[0], timeout_s=DEADLINE_S):
        for number, name in enumerate(("first", "second"), 1):
            pool.submit(work, name)
            wait_until(lambda number=number: waiting("job") == number)
        room[0] = 2
        work("newcomer")
    assert order == ["first", "second", "newcomer"]


def test_an_error_passes_the_turn_on() -> None:
    def fail() -> None:
        with turn("job", at_once=1, timeout_s=DEADLINE_S):
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()


def test_many_that_give_up_or_not_at_any_time_lose_no_place(pool: ThreadPoolExecutor) -> None:
    served = []

    def work(number: int) -> None:
        for attempt in range(100):
            try:
                with turn("job", at_once=2, timeout_s=1e-4 * ((number + attempt) % 5)):
                    served.append(number)
                    time.sleep(1e-4)
            except Contended:
                pass

    for future in [pool.submit(work, number) for number in range(16)]:
        future.result(DEADLINE_S)
    assert served
