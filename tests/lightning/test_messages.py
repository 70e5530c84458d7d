"""Numbers in the messages to the service."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from zeus_lightning.messages import shortest_decimal


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (0.1, 0.1),
        (np.float32(0.1), 0.1),
        (np.array([0.1], np.float32), 0.1),
        (torch.tensor(0.95), 0.95),  # 0.949999988... in float32
        (torch.tensor(3), 3.0),
        (torch.tensor(0.95, dtype=torch.bfloat16), 0.94921875),
        (torch.tensor(-math.inf), -math.inf),
    ],
)
def test_a_number_is_its_shortest_decimal(number: Any, value: float) -> None:
    assert shortest_decimal(number) == value
