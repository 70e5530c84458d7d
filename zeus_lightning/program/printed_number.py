"""Numbers of any library as floats."""

from typing import Any

import numpy as np


def as_printed(number: Any) -> float:
    """A number as it is printed: 0.1 in single precision is 0.1, not 0.10000000149.

    So a metric of 0.95, which is 0.94999999 there, does not miss a target of 0.95.
    """
    is_single = str(getattr(number, "dtype", "")).endswith("float32")  # of numpy or torch
    return float(str(np.float32(number.item()))) if is_single else float(number)
