"""Sentiment analysis on a slice of a data set that drifts, as a job that recurs: see README.md."""

from __future__ import annotations

import argparse
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import lightning as L
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from zeus_lightning import ZeusBSOCallback

BUCKETS = 2**14  # of hashed words
Batch = tuple[Tensor, Tensor, Tensor]


def collate(posts: Sequence[tuple[str, int]]) -> Batch:
    """Numbers of the words of all posts, where each post begins, and the labels."""
    texts, labels = zip(*posts, strict=True)
    words = [text.split() or [""] for text in texts]
    numbers = [zlib.crc32(word.encode()) % BUCKETS for each in words for word in each]
    starts = torch.tensor([0, *map(len, words)]).cumsum(0)[:-1]
    return torch.tensor(numbers), starts, torch.tensor(labels)


class Slice(L.LightningDataModule):
    """`{number}_train.json` and `{number}_val.json`: a JSON object a line, with `text`, `label`."""

    def __init__(self, folder: Path, number: int, batch_size: int = 128) -> None:
        super().__init__()
        self.folder, self.number = folder, number
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Read both files."""
        self.train_posts, self.val_posts = self._read("train"), self._read("val")

    def _read(self, part: str) -> list[tuple[str, int]]:
        posts = pd.read_json(self.folder / f"{self.number}_{part}.json", lines=True)
        return list(zip(posts["text"], (posts["label"] > 0).astype(int), strict=True))

    def train_dataloader(self) -> DataLoader[Batch]:
        """Training posts in batches of the size that the callback sets."""
        return DataLoader(
            self.train_posts, batch_size=self.batch_size, shuffle=True, collate_fn=collate
        )

    def val_dataloader(self) -> DataLoader[Batch]:
        """Posts of the same days, to validate on."""
        return DataLoader(self.val_posts, batch_size=256, collate_fn=collate)


class Classifier(L.LightningModule):
    """Predicts the sentiment of a post: the mean of its words' vectors, and a linear layer."""

    def __init__(self, lr: float = 1e-2, width: int = 32) -> None:
        super().__init__()
        self.lr = lr
        self.words = nn.EmbeddingBag(BUCKETS, width)
        self.out = nn.Linear(width, 2)

    def forward(self, numbers: Tensor, starts: Tensor) -> Tensor:
        """Logits of the two sentiments."""
        out: Tensor = self.out(self.words(numbers, starts))
        return out

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        numbers, starts, labels = batch
        return nn.functional.cross_entropy(self(numbers, starts), labels)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the share of posts whose sentiment is right."""
        numbers, starts, labels = batch
        right = self(numbers, starts).argmax(1) == labels
        self.log("val_acc", right.float().mean(), batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, at the rate that the callback has scaled."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main() -> None:
    """Train on one slice: one recurrence, or one try of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the slices")
    number = int(os.environ.get("ZEUS_RECURRENCE", "1"))
    parser.add_argument("--slice", type=int, default=number, help="default: $ZEUS_RECURRENCE")
    parser.add_argument("--target", type=float, default=0.84, help="accuracy that ends a run")
    options = parser.parse_args()
    if not (options.data / f"{options.slice}_val.json").is_file():
        parser.error(f"there is no slice {options.slice} in {options.data}")
    zeus = ZeusBSOCallback(
        target_metric=options.target,
        monitor="val_acc",
        batch_sizes=[8, 16, 32, 64, 128],
        default_batch_size=128,
        policy={"name": "zeus", "window_size": 10},  # ten runs of a batch size count
        lr_scaling="sqrt",
    )
    trainer = L.Trainer(
        max_epochs=10,
        callbacks=[zeus],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), datamodule=Slice(options.data, options.slice))
    if zeus.last_report is not None:
        print(f"slice {options.slice}: {zeus.outcome} at a cost of {zeus.cost_j:.1f} J")


if __name__ == "__main__":
    main()
