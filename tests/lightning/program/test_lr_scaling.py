"""The learning rate that goes with a batch size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_lightning.program.lr_scaling import LRScaling, scale_lr

SIZES = st.integers(1, 10**6)


def test_linear_and_square_root_rules() -> None:
    assert scale_lr("linear", 0.1, 256, 64) == pytest.approx(0.4)
    assert scale_lr("sqrt", 0.1, 256, 64) == pytest.approx(0.2)


@pytest.mark.parametrize("rule", ["linear", "sqrt"])
@given(default=SIZES, there=SIZES)
def test_the_default_is_unscaled_and_the_way_back_gives_it_again(
    rule: LRScaling, default: int, there: int
) -> None:
    assert scale_lr(rule, 0.1, default, default) == 0.1
    scaled = scale_lr(rule, 0.1, there, default)
    assert scale_lr(rule, scaled, default, there) == pytest.approx(0.1)
