"""Write a made-up corpus that drifts, in Capriccio's layout, to try the example without it.

    python examples/capriccio/made_up_slices.py FOLDER

A post is eight made-up words. Half of the vocabulary is positive at any time; which half that is
moves on by a word every hundred posts. So words change their sentiment, much faster than those of a
real language: a model of the first slice errs on most posts of the last one.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

_VOCABULARY = 400
_WORDS = 8  # of a post
_CLEAR = 0.85  # probability that a word has the post's sentiment


def posts(count: int, posts_per_word: float, seed: int = 0) -> pd.DataFrame:
    """Posts in the order of time; the halves of the vocabulary move on by a word now and then."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    first = (np.arange(count) / posts_per_word).astype(int)  # word of the positive half
    agrees = rng.random((count, _WORDS)) < _CLEAR
    positive = np.where(agrees, labels[:, None], 1 - labels[:, None])
    half = _VOCABULARY // 2
    words = first[:, None] + rng.integers(0, half, (count, _WORDS)) + half * (1 - positive)
    texts = [" ".join(f"w{word % _VOCABULARY}" for word in each) for each in words]
    dates = pd.Timestamp("2009-05-01") + pd.to_timedelta(np.arange(count), unit="min")
    return pd.DataFrame({"date": dates, "text": texts, "label": 4 * labels})


def write(folder: Path, slices: int, size: int, stride: int) -> None:
    """Write overlapping slices, with 15 % of the posts of each for validation."""
    folder.mkdir(parents=True, exist_ok=True)
    # within a slice a tenth of the words changes sides; over 38 slices, three quarters
    corpus = posts(size + stride * (slices - 1), posts_per_word=stride / 4)
    for number in range(1, slices + 1):
        begin = stride * (number - 1)
        shuffled = corpus.iloc[begin : begin + size].sample(frac=1, random_state=number)
        boundary = int(0.85 * size)
        for part, chosen in (("train", shuffled[:boundary]), ("val", shuffled[boundary:])):
            path = folder / f"{number}_{part}.json"
            chosen.to_json(path, orient="records", lines=True, date_format="iso")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--slices", type=int, default=38)
    parser.add_argument("--size", type=int, default=4000, help="posts per slice")
    parser.add_argument("--stride", type=int, default=400, help="posts from one slice to the next")
    options = parser.parse_args()
    write(options.folder, options.slices, options.size, options.stride)
