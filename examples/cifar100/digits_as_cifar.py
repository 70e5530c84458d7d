"""Write scikit-learn's digits as the files of CIFAR-100, to try the example without it.

    python examples/cifar100/digits_as_cifar.py FOLDER [COUNT [VALIDATION]]

Each pixel of their 8 x 8 becomes 4 x 4, the same in all three colours: ten of the hundred classes.
"""

import pickle
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def write(folder: Path, count: int = 1500, validation: int = 297) -> None:
    """Write the first `count` digits to train with, and the last ones for validation."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits(return_X_y=True)
    small = (images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    large = small.repeat(4, axis=1).repeat(4, axis=2)
    data = np.repeat(large.reshape(len(large), 1, -1), 3, axis=1).reshape(len(large), -1)
    for part, chosen in (("train", slice(count)), ("test", slice(-validation, None))):
        content = {b"data": data[chosen], b"fine_labels": labels[chosen].tolist()}
        (folder / part).write_bytes(pickle.dumps(content))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    print(
        "Written. CIFAR-100 itself has 60,000 images, and needs, by an estimate, a GPU with 8 GB "
        "for batches of 4,096. See README.md."
    )
