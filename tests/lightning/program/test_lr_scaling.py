"""The learning rate that goes with a batch size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import Net

from zeus_lightning.program.lr_scaling import LRScaling, find_lr, scale_lr

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


@pytest.mark.parametrize("lr", [0.1, np.float32(0.1), np.float64(0.1)])
def test_a_rate_may_be_numpys(lr: float) -> None:
    module = Net()
    module.lr = lr
    name, found = find_lr(module)
    assert (name, found, type(found)) == ("lr", 0.1, float)
