"""Write scikit-learn's digits as images in a folder for each class, to try without ImageNet.

    python examples/imagenet/digits_as_folders.py FOLDER [COUNT [VALIDATION]]

Each pixel of their 8 x 8 becomes 8 x 8, in JPEG: ten of the thousand classes.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


def write(folder: Path, count: int = 1500, validation: int = 297) -> None:
    """Write the first `count` digits to train with, and the last ones for validation."""
    images, labels = load_digits(return_X_y=True)
    large = (images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8).repeat(8, 1).repeat(8, 2)
    numbers = {"train": range(count), "val": range(len(images) - validation, len(images))}
    for part, chosen in numbers.items():
        for number in chosen:
            path = folder / part / f"digit-{labels[number]}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(large[number]).save(path)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    print(
        "Written. ImageNet itself has 1.3 million images, and needs, by estimates, 22 GB of a "
        "GPU's memory for 256 of them, and a core for each 100 a second. See README.md."
    )
