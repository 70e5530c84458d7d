"""MNIST on one GPU, on several, or on the CPU, as a job that recurs: see README.md."""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import idx2numpy
import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from zeus_lightning import ZeusBSOCallback, ZeusPowerLimitCallback


def read(folder: Path, name: str) -> Tensor:
    """Read an IDX file, compressed or not."""
    path = folder / name
    if path.exists():
        return torch.from_numpy(idx2numpy.convert_from_file(str(path)).copy())
    with gzip.open(folder / f"{name}.gz") as file:
        return torch.from_numpy(idx2numpy.convert_from_file(file).copy())


class Digits(L.LightningDataModule):
    """The four files of MNIST, or of a data set in the same format, in one folder."""

    def __init__(self, folder: Path, batch_size: int) -> None:
        super().__init__()
        self.folder = folder
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Read the files."""
        self.train_data = self._read("train")
        self.val_data = self._read("t10k")

    def _read(self, part: str) -> TensorDataset:
        images = read(self.folder, f"{part}-images-idx3-ubyte").unsqueeze(1).float() / 255
        labels = read(self.folder, f"{part}-labels-idx1-ubyte").long()
        return TensorDataset((images - 0.1307) / 0.3081, labels)  # mean and deviation of MNIST

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Training data in batches of the size that the callback sets."""
        return DataLoader(self.train_data, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Validation data; their batch size changes nothing."""
        return DataLoader(self.val_data, batch_size=1000)


class Net(L.LightningModule):
    """The convolutional network of PyTorch's MNIST example."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(9216, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, 10),
        )

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of one batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the share of digits that are read right."""
        images, labels = batch
        right = self.net(images).argmax(1) == labels
        self.log("val_acc", right.float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adadelta, as in PyTorch's example."""
        return torch.optim.Adadelta(self.parameters(), lr=self.lr)


def main() -> None:
    """Train once: one recurrence, or one try of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the IDX files")
    parser.add_argument("--target", type=float, default=0.99, help="accuracy that ends a run")
    parser.add_argument("--epochs", type=int, default=20, help="epoch limit of a run")
    parser.add_argument("--batch-size", type=int, default=128, help="the default, over all devices")
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--devices", default="auto", help="processes on each node")
    parser.add_argument("--nodes", type=int, default=1)
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"there is no folder {options.data}; README.md says what it must contain")
    L.seed_everything(workers=True, verbose=False)  # with PL_GLOBAL_SEED, if it is set
    devices = options.devices if options.devices == "auto" else int(options.devices)
    zeus = ZeusBSOCallback(
        target_metric=options.target,
        monitor="val_acc",
        default_batch_size=options.batch_size,
    )
    trainer = L.Trainer(
        devices=devices,
        num_nodes=options.nodes,
        max_epochs=options.epochs,
        callbacks=[zeus, ZeusPowerLimitCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    share = options.batch_size // (trainer.num_devices * trainer.num_nodes)
    trainer.fit(Net(options.lr), datamodule=Digits(options.data, share))
    if trainer.is_global_zero and zeus.last_report is not None:
        print(f"{zeus.outcome} in {zeus.last_report.epoch} epochs at a cost of {zeus.cost_j:.1f} J")


if __name__ == "__main__":
    main()
