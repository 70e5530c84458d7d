"""ImageNet with ResNet-50 on several GPUs and nodes, as a job that recurs: see README.md."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import ResNetConfig, ResNetForImageClassification

from zeus_lightning import ZeusBSOCallback, ZeusPowerLimitCallback

MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
DEVIATION = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
NETWORKS: dict[int, dict[str, Any]] = {
    50: {},  # the defaults: those of He, Zhang, Ren and Sun (CVPR 2016)
    18: {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]},
}


class Folder(Dataset[tuple[Tensor, int]]):
    """Images in a folder for each class; the classes are numbered by the folders' names."""

    def __init__(self, root: Path, crop: Callable[[Image.Image, int], Image.Image], size: int):
        self.classes = sorted(each.name for each in root.iterdir() if each.is_dir())
        self.samples = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((root / name).iterdir())
        ]
        self.crop, self.size = crop, size

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as image:
            cropped = self.crop(image.convert("RGB"), self.size)
        return torch.from_numpy(np.array(cropped)).permute(2, 0, 1), label


def random_crop(image: Image.Image, size: int) -> Image.Image:
    """A random part of 8 % to all of the image, of a ratio of 3:4 to 4:3, mirrored by chance."""
    area = image.width * image.height * torch.empty(1).uniform_(0.08, 1).item()
    ratio = torch.empty(1).uniform_(math.log(3 / 4), math.log(4 / 3)).exp().item()
    width = min(image.width, max(1, round(math.sqrt(area * ratio))))
    height = min(image.height, max(1, round(math.sqrt(area / ratio))))
    left = int(torch.randint(image.width - width + 1, ()))
    top = int(torch.randint(image.height - height + 1, ()))
    box = (left, top, left + width, top + height)
    part = image.resize((size, size), Image.Resampling.BILINEAR, box)
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(()) < 0.5 else part


def central_crop(image: Image.Image, size: int) -> Image.Image:
    """The square in the middle, of seven eighths of the shorter side."""
    side = min(image.size) * 7 / 8
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Image.Resampling.BILINEAR, box)


class ImageNet(L.LightningDataModule):
    """The folders `train` and `val`, with a folder for each class in both."""

    def __init__(self, root: Path, size: int, batch_size: int, workers: int) -> None:
        super().__init__()
        self.root, self.size, self.workers = root, size, workers
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """List the files of both folders."""
        self.train_data = Folder(self.root / "train", random_crop, self.size)
        self.val_data = Folder(self.root / "val", central_crop, self.size)
        if self.train_data.classes != self.val_data.classes:
            raise ValueError(f"{self.root}: train and val have other folders of classes")

    def train_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        """Training images in batches of the size that the callback sets."""
        return self._loader(self.train_data, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        """Images to validate on; their batch size changes nothing."""
        return self._loader(self.val_data, 64)

    def _loader(self, data: Folder, batch_size: int, **arguments: Any) -> DataLoader[Any]:
        return DataLoader(
            data,
            batch_size,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=torch.cuda.is_available(),
            **arguments,
        )


class Classifier(L.LightningModule):
    """A ResNet, trained with Adadelta."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        config = ResNetConfig(num_labels=1000, **NETWORKS[layers])
        self.net = ResNetForImageClassification(config)
        self.register_buffer("mean", MEAN)
        self.register_buffer("deviation", DEVIATION)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, of images of 0 to 255."""
        logits: Tensor = self.net((images.float() / 255 - self.mean) / self.deviation).logits
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of one batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self(images), labels)

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
    parser.add_argument("--data", type=Path, required=True, help="folder with train and val")
    parser.add_argument("--target", type=float, default=0.65, help="accuracy that ends a run")
    parser.add_argument("--epochs", type=int, default=100, help="after which a batch size failed")
    parser.add_argument("--batch-size", type=int, default=256, help="the default, of all devices")
    parser.add_argument("--layers", type=int, default=50, choices=sorted(NETWORKS))
    parser.add_argument("--size", type=int, default=224, help="pixels of a side")
    parser.add_argument("--workers", type=int, default=0, help="of each device, to load images")
    parser.add_argument("--precision", default="32-true", help="such as bf16-mixed")
    parser.add_argument("--devices", default="auto", help="processes on each node")
    parser.add_argument("--nodes", type=int, default=1)
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"there is no folder {options.data}; README.md says what it must contain")
    L.seed_everything(workers=True, verbose=False)  # with PL_GLOBAL_SEED, if it is set
    zeus = ZeusBSOCallback(
        target_metric=options.target,
        monitor="val_acc",
        default_batch_size=options.batch_size,
    )
    trainer = L.Trainer(
        devices=options.devices if options.devices == "auto" else int(options.devices),
        num_nodes=options.nodes,
        precision=options.precision,
        max_epochs=options.epochs,
        callbacks=[zeus, ZeusPowerLimitCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    share = options.batch_size // (trainer.num_devices * trainer.num_nodes)
    data = ImageNet(options.data, options.size, share, options.workers)
    trainer.fit(Classifier(options.layers), datamodule=data)
    if trainer.is_global_zero and zeus.last_report is not None:
        print(f"{zeus.outcome} in {zeus.last_report.epoch} epochs at a cost of {zeus.cost_j:.1f} J")


if __name__ == "__main__":
    main()
