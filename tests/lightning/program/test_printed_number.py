"""Numbers of numpy and torch as floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from zeus_lightning.program.printed_number import as_printed


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (0.1, 0.1),
        (3, 3.0),
        (np.float32(0.1), 0.1),
        (np.float64(0.1), 0.1),
        (np.float16(0.1), 0.1),
        (np.array(0.1, np.float32), 0.1),
        (np.array([0.1], np.float32), 0.1),
        (torch.tensor(0.95), 0.95),
        (torch.tensor(0.95, dtype=torch.float16), 0.95),
        (torch.tensor(0.95, dtype=torch.bfloat16), 0.94921875),
        (torch.tensor(-math.inf), -math.inf),
    ],
)
def test_a_number_is_what_is_printed(number: Any, value: float) -> None:
    assert as_printed(number) == value
