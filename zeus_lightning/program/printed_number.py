"""Numbers of numpy and torch as floats."""

from typing import Any

import numpy as np
import torch

_NUMPY = {torch.float32: np.float32, torch.float16: np.float16}


def as_printed(number: Any) -> float:
    """A number as it is printed, such as 0.95 for a single that is exactly 0.949999988.

    So a metric of 0.95 in single precision does not miss a target of 0.95.
    """
    if isinstance(number, torch.Tensor) and number.dtype in _NUMPY:
        number = _NUMPY[number.dtype](number.item())
    elif isinstance(number, np.ndarray):
        number = number.reshape(())[()]
    return float(str(number)) if isinstance(number, np.floating) else float(number)
