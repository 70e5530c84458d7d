"""Write scikit-learn's 1,797 digits as the four files of MNIST, to try the example without MNIST.

    python examples/mnist/digits_as_idx.py FOLDER

Each pixel of their 8 x 8 becomes 3 x 3, with a margin of 2 around all of them: 28 x 28.
"""

import sys
from pathlib import Path

import idx2numpy
import numpy as np
from sklearn.datasets import load_digits


def write(folder: Path) -> None:
    """Write 1,500 digits to train with, and 297 for validation."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits(return_X_y=True)
    small = (images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    large = np.pad(small.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    for part, chosen in (("train", slice(1500)), ("t10k", slice(1500, None))):
        idx2numpy.convert_to_file(str(folder / f"{part}-images-idx3-ubyte"), large[chosen])
        labels_file = str(folder / f"{part}-labels-idx1-ubyte")
        idx2numpy.convert_to_file(labels_file, labels[chosen].astype(np.uint8))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    write(Path(sys.argv[1]))
