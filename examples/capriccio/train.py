"""Sentiment analysis on a slice of a data set that drifts, as a job that recurs: see README.md."""

from __future__ import annotations

import argparse
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from zeus_lightning import ZeusBSOCallback, ZeusPowerLimitCallback

Inputs = dict[str, Tensor]


class BagOfWords(nn.Module):
    """A small model: the mean of hashed words' vectors, and a linear layer."""

    def __init__(self, buckets: int = 2**14, width: int = 32) -> None:
        super().__init__()
        self.buckets = buckets
        self.words = nn.EmbeddingBag(buckets, width)
        self.out = nn.Linear(width, 2)

    def encode(self, texts: Sequence[str]) -> Inputs:
        """Numbers of the words of all texts, and where each text begins."""
        words = [text.split() or [""] for text in texts]
        numbers = [zlib.crc32(word.encode()) % self.buckets for each in words for word in each]
        starts = torch.tensor([0, *map(len, words)]).cumsum(0)[:-1]
        return {"numbers": torch.tensor(numbers), "starts": starts}

    def forward(self, numbers: Tensor, starts: Tensor) -> Tensor:
        """Logits of the two sentiments."""
        out: Tensor = self.out(self.words(numbers, starts))
        return out


class Pretrained(nn.Module):
    """A model of the Hugging Face hub, or in a folder, such as bert-base-uncased."""

    def __init__(self, name: str) -> None:
        super().__init__()
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(name)
        self.model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)

    def encode(self, texts: Sequence[str]) -> Inputs:
        """Tokens, padded to the longest text of the batch, at most 128."""
        return dict(
            self.tokenizer(
                list(texts), padding=True, truncation=True, max_length=128, return_tensors="pt"
            )
        )

    def forward(self, **inputs: Tensor) -> Tensor:
        """Logits of the two sentiments."""
        logits: Tensor = self.model(**inputs).logits
        return logits


def _file(folder: Path, number: int, part: str) -> Path:
    return folder / f"{number}_{part}.json"


class Slice(L.LightningDataModule):
    """`{number}_train.json` and `{number}_val.json`: a JSON object a line, with `text`, `label`."""

    def __init__(self, folder: Path, number: int, encode: Any, batch_size: int) -> None:
        super().__init__()
        self.folder, self.number, self.encode = folder, number, encode
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Read both files."""
        self.train_posts, self.val_posts = self._read("train"), self._read("val")

    def _read(self, part: str) -> list[tuple[str, int]]:
        posts = pd.read_json(_file(self.folder, self.number, part), lines=True)
        return list(zip(posts["text"], (posts["label"] > 0).astype(int), strict=True))

    def _collate(self, posts: Sequence[tuple[str, int]]) -> tuple[Inputs, Tensor]:
        texts, labels = zip(*posts, strict=True)
        return self.encode(texts), torch.tensor(labels)

    def train_dataloader(self) -> DataLoader[Any]:
        """Training posts in batches of the size that the callback sets."""
        return DataLoader(
            self.train_posts,
            batch_size=self.batch_size,
            shuffle=True,
            collate_fn=self._collate,
        )

    def val_dataloader(self) -> DataLoader[Any]:
        """Posts of the same days, to validate on."""
        return DataLoader(self.val_posts, batch_size=256, collate_fn=self._collate)


class Classifier(L.LightningModule):
    """Predicts the sentiment of a post."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        super().__init__()
        self.model = model
        self.lr = lr

    def training_step(self, batch: tuple[Inputs, Tensor], batch_idx: int) -> Tensor:
        """The loss of one batch."""
        inputs, labels = batch
        return nn.functional.cross_entropy(self.model(**inputs), labels)

    def validation_step(self, batch: tuple[Inputs, Tensor], batch_idx: int) -> None:
        """Log the share of posts whose sentiment is right."""
        inputs, labels = batch
        right = self.model(**inputs).argmax(1) == labels
        self.log("val_acc", right.float().mean(), batch_size=len(labels), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, at the rate that the callback has scaled."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main() -> None:
    """Train on one slice: one recurrence, or one try of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the slices")
    number = int(os.environ.get("ZEUS_RECURRENCE", "1"))
    parser.add_argument("--slice", type=int, default=number, help="default: $ZEUS_RECURRENCE")
    parser.add_argument("--model", help="such as bert-base-uncased; default: a bag of words")
    parser.add_argument("--target", type=float, default=0.84, help="accuracy that ends a run")
    parser.add_argument("--epochs", type=int, default=10, help="after which a batch size failed")
    parser.add_argument("--lr", type=float, help="at batch size 128; 4e-7, a bag of words 1e-2")
    parser.add_argument("--window", type=int, default=10, help="latest runs that count; 0: all")
    parser.add_argument("--devices", type=int, default=1, help="processes on each node")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--save", type=Path, help="where to store the trained weights")
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"there is no folder {options.data}; README.md says what it must contain")
    if not all(_file(options.data, options.slice, part).is_file() for part in ("train", "val")):
        parser.error(f"there is no slice {options.slice} in {options.data}")
    L.seed_everything(workers=True, verbose=False)  # with PL_GLOBAL_SEED, if it is set
    model = Pretrained(options.model) if options.model else BagOfWords()
    zeus = ZeusBSOCallback(
        target_metric=options.target,
        monitor="val_acc",
        batch_sizes=[8, 16, 32, 64, 128],
        default_batch_size=128,
        policy={"window_size": options.window},
        lr_scaling="sqrt",
    )
    trainer = L.Trainer(
        devices=options.devices,
        num_nodes=options.nodes,
        max_epochs=options.epochs,
        callbacks=[zeus, ZeusPowerLimitCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    lr = options.lr or (4e-7 if options.model else 1e-2)
    module = Classifier(model, lr)
    share = 128 // (options.devices * options.nodes)
    trainer.fit(module, datamodule=Slice(options.data, options.slice, model.encode, share))
    if trainer.is_global_zero and zeus.last_report is not None:
        print(
            f"slice {options.slice}: {zeus.outcome} in {zeus.last_report.epoch} epochs, accuracy "
            f"{zeus.last_report.metric:.3f}, at a cost of {zeus.cost_j:.1f} J"
        )
    if trainer.is_global_zero and options.save is not None:
        torch.save(module.state_dict(), options.save)


if __name__ == "__main__":
    main()
