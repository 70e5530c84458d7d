"""Lightning programs that train on a GPU of the fake driver."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from fake_nvml import FakeDriver, FakeGpu
from lightning.pytorch import Callback, Trainer
from programs import Data, Net, trainer
from torch.utils.data import DataLoader, TensorDataset

from zeus_lightning import ZeusPowerLimitCallback
from zeus_lightning.meters import Reading
from zeus_lightning.meters.nvml import NvmlMeter
from zeus_lightning.power.restore import records_folder
from zeus_lightning.power.selectors import PowerPoint, SelectorInputs, ZeusCost

ALL_LIMITS = list(range(300, 75, -25))
"""In watts, from the highest down; of a GPU of the fake driver, with the default step."""
SAME_TIME = {"measured_at": ""}
"""Replaces the time in a profile: each rank notes its own, perhaps a second later."""


class DriversClock(NvmlMeter):
    """The GPU's meter, with the seconds of the fake driver's clock, which a test may freeze."""

    def __init__(
        self,
        driver: FakeDriver,
        gpus: tuple[int, ...] = (0,),
        device: torch.device | None = None,
    ) -> None:
        self._driver = driver
        super().__init__(gpus, device=device)

    def read(self) -> Reading:
        energy_j = super().read().energy_j
        with self._driver.locked() as now_s:
            return Reading(energy_j, now_s)


class GpuNet(Net):
    """Each training step runs a kernel of `work_s` seconds (at the highest limit) on a fake GPU."""

    def __init__(self, gpu: FakeGpu, work_s: float = 0.1, noise: float = 0.0) -> None:
        super().__init__()
        self.gpu = gpu
        self.work_s = work_s
        self.noise = noise
        self.limits_w: list[float] = []  # in force in each training step

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        self.limits_w.append(self.gpu.limit_mw / 1000)
        self.gpu.run(self.work_s, self.noise)
        return super().training_step(batch, index)


class ManyBatches(Data):
    """`batches` training batches of `batch_size` in an epoch, and validation of two."""

    def __init__(self, batches: int = 200, batch_size: int = 8) -> None:
        super().__init__(batch_size)
        self.batches = batches

    def train_dataloader(self) -> Any:
        samples = TensorDataset(torch.randn(self.batches * self.batch_size, 4))
        return DataLoader(samples, batch_size=self.batch_size)


class EachLimit:
    """Chooses as `zeus-cost` does but has no cost to search by, so each limit is measured once."""

    name = "zeus-cost"

    def select(self, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:
        return ZeusCost().select(points, inputs)


def power(**arguments: Any) -> ZeusPowerLimitCallback:
    """The callback with short windows: 2 batches of warm-up and 4 measured ones."""
    defaults: dict[str, Any] = {
        "selector": EachLimit(),
        "warmup_steps": 2,
        "profile_steps": 4,
        "min_seconds": 0.1,
        "meter": "nvml:0",
    }
    return ZeusPowerLimitCallback(**(defaults | arguments))


def phases(limits_w: list[float]) -> list[tuple[float, int]]:
    """Limits in the order of training, with the number of steps under each."""
    found: list[tuple[float, int]] = []
    for limit_w in limits_w:
        count = found.pop()[1] if found and found[-1][0] == limit_w else 0
        found.append((limit_w, count + 1))
    return found


def assert_restored(gpu: FakeGpu, limit_mw: int = 250_000) -> None:
    """Check that a GPU has the limit that was found, and that no process has left a record."""
    assert gpu.limit_mw == limit_mw
    assert not records_folder().exists() or not list(records_folder().iterdir())


def expected(gpu: FakeGpu, limit_w: int, work_s: float = 0.1) -> tuple[float, float]:
    """Joules and seconds of a step under a limit, as the fake GPU has it."""
    time_s = work_s * (250 / (limit_w - 50)) ** (1 / 3)
    return limit_w * time_s, time_s


def fit(callback: ZeusPowerLimitCallback, net: GpuNet, *others: Callback, **more: Any) -> Trainer:
    """Train a program with the callback, for one epoch by default."""
    data = more.pop("data", None) or ManyBatches()
    runner = trainer(callback, *others, **({"max_epochs": 1} | more))
    runner.fit(net, data, ckpt_path=more.get("ckpt_path"))
    return runner


def zeus_warnings(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """The messages of this package's warnings."""
    return [str(w.message) for w in caught if str(w.message).startswith("zeus:")]
