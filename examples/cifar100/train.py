"""CIFAR-100 with ShuffleNet V2, as a job that recurs: see README.md."""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any

import lightning as L
import torch
from shufflenet import ShuffleNetV2
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from zeus_lightning import ZeusBSOCallback, ZeusPowerLimitCallback

MEAN = torch.tensor([0.5071, 0.4865, 0.4409])[:, None, None]
DEVIATION = torch.tensor([0.2673, 0.2564, 0.2762])[:, None, None]


class CIFAR100(L.LightningDataModule):
    """The files `train` and `test` of the Python version, in one folder."""

    def __init__(self, folder: Path, batch_size: int, workers: int) -> None:
        super().__init__()
        self.folder = folder
        self.batch_size = batch_size
        self.workers = workers

    def setup(self, stage: str) -> None:
        """Read both files; they are pickles, so take them from a source that you trust."""
        self.train_data, self.val_data = self._read("train"), self._read("test")

    def _read(self, part: str) -> TensorDataset:
        with (self.folder / part).open("rb") as file:
            content = pickle.load(file, encoding="bytes")
        images = torch.from_numpy(content[b"data"]).reshape(-1, 3, 32, 32)
        return TensorDataset(images, torch.tensor(content[b"fine_labels"]))

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Training data in batches of the size that the callback sets."""
        return self._loader(self.train_data, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Validation data; their batch size changes nothing."""
        return self._loader(self.val_data, 1000)

    def _loader(self, data: TensorDataset, batch_size: int, **arguments: Any) -> DataLoader[Any]:
        # one sample left over would have no variance, which batch normalization needs
        drop_last = len(data) % batch_size == 1
        return DataLoader(
            data, batch_size, num_workers=self.workers, drop_last=drop_last, **arguments
        )


def augmented(images: Tensor) -> Tensor:
    """Shift each image by up to four pixels, and mirror every other one, by chance."""
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    x, y = torch.randint(9, (2, len(images)), device=images.device)
    pixels = torch.arange(32, device=images.device)
    columns = x[:, None] + pixels
    mirrored = torch.rand(len(images), device=images.device) < 0.5
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    rows = y[:, None] + pixels
    number = torch.arange(len(images), device=images.device)[:, None, None]
    chosen: Tensor = padded[number, :, rows[:, :, None], columns[:, None, :]]
    return chosen.permute(0, 3, 1, 2)


class Classifier(L.LightningModule):
    """ShuffleNet V2, trained with Adadelta."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ShuffleNetV2(100)
        self.register_buffer("mean", MEAN)
        self.register_buffer("deviation", DEVIATION)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, of images of 0 to 255."""
        logits: Tensor = self.net((images.float() / 255 - self.mean) / self.deviation)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of one batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self(augmented(images)), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the share of images whose class is right."""
        images, labels = batch
        self.log("val_acc", (self(images).argmax(1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adadelta at its default rate, which needs no scaling with the batch size."""
        return torch.optim.Adadelta(self.parameters())


def main() -> None:
    """Train once: one recurrence, or one try of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder cifar-100-python")
    parser.add_argument("--target", type=float, default=0.5, help="accuracy that ends a run")
    parser.add_argument("--epochs", type=int, default=100, help="after which a batch size failed")
    parser.add_argument("--batch-size", type=int, default=1024, help="the default, of all devices")
    parser.add_argument("--workers", type=int, default=0, help="processes that load the data")
    parser.add_argument("--devices", type=int, default=1, help="processes on each node")
    parser.add_argument("--nodes", type=int, default=1)
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"there is no folder {options.data}; README.md says what it must contain")
    L.seed_everything(workers=True, verbose=False)  # with PL_GLOBAL_SEED, if it is set
    zeus = ZeusBSOCallback(
        target_metric=options.target,
        monitor="val_acc",
        batch_sizes=[8 * 2**power for power in range(10)],  # 8 to 4,096
        default_batch_size=options.batch_size,
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
    share = options.batch_size // (options.devices * options.nodes)
    data = CIFAR100(options.data, share, options.workers)
    trainer.fit(Classifier(), datamodule=data)
    if trainer.is_global_zero and zeus.last_report is not None:
        print(f"{zeus.outcome} in {zeus.last_report.epoch} epochs at a cost of {zeus.cost_j:.1f} J")


if __name__ == "__main__":
    main()
