"""Batch sizes, global and per device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.batch_size import check_shares, default_sizes, positive_sizes

POSITIVE = st.integers(1, 10**6)


@given(POSITIVE, st.integers(1, 64))
def test_default_sizes_are_positive_ascending_shareable_and_hold_the_default(
    per_device: int, share: int
) -> None:
    default = per_device * share
    sizes = default_sizes(default, share)
    assert default in sizes
    assert sizes == sorted(set(sizes))
    assert min(sizes) >= 1
    assert max(sizes) == 8 * default
    assert all(size % share == 0 for size in sizes)


def test_default_sizes_that_do_not_divide_among_the_devices_are_dropped() -> None:
    assert default_sizes(64, 1) == [8, 16, 32, 64, 128, 256, 512]
    assert default_sizes(64, 16) == [16, 32, 64, 128, 256, 512]
    assert default_sizes(3, 1) == [1, 3, 6, 12, 24]


@given(st.lists(POSITIVE, min_size=1))
def test_given_sizes_are_sorted_without_duplicates(sizes: list[int]) -> None:
    assert positive_sizes(sizes) == sorted(set(sizes))


@pytest.mark.parametrize("sizes", [[], [0], [-1, 8], [8.0], ["8"], [True], None, 8])
def test_sizes_that_are_not_positive_integers_are_refused(sizes: object) -> None:
    with pytest.raises(ZeusConfigError, match="positive integers, and at least one"):
        positive_sizes(sizes)


def test_sizes_that_do_not_divide_are_named_all_at_once() -> None:
    check_shares([4, 8], 4)
    with pytest.raises(ZeusConfigError, match=r"\[6, 9\] are not divisible by 4.*multiples of 4"):
        check_shares([4, 6, 8, 9, 6], 4)  # the default batch size may be one of them
