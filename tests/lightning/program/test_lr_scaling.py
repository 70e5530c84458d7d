"""The learning rate that goes with a batch size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_lightning.program.lr_scaling import LRScaling, lr_factor

SIZES = st.integers(1, 10**6)


def test_linear_and_square_root_rules() -> None:
    assert lr_factor("linear", 256, 64) == 4.0
    assert lr_factor("sqrt", 256, 64) == 2.0


@pytest.mark.parametrize("rule", ["linear", "sqrt"])
@given(default=SIZES, there=SIZES)
def test_the_default_is_unscaled_and_the_way_back_gives_it_again(
    rule: LRScaling, default: int, there: int
) -> None:
    assert lr_factor(rule, default, default) == 1.0
    there_and_back = lr_factor(rule, there, default) * lr_factor(rule, default, there)
    assert there_and_back == pytest.approx(1.0)
