"""Lightning programs that train on a GPU of the fake driver."""

from __future__ import annotations

from typing import Any

import torch
from fake_nvml import FakeDriver, FakeGpu
from programs import Data, Net
from torch.utils.data import DataLoader, TensorDataset

from zeus_lightning import ZeusPowerLimitCallback
from zeus_lightning.meters import Reading
from zeus_lightning.meters.nvml import NvmlMeter


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


def power(**arguments: Any) -> ZeusPowerLimitCallback:
    """The callback with short windows: 2 batches of warm-up and 4 measured ones."""
    defaults: dict[str, Any] = {
        "search": "sweep",
        "warmup_steps": 2,
        "profile_steps": 4,
        "min_seconds": 0.1,
        "meter": "nvml:0",
    }
    return ZeusPowerLimitCallback(**(defaults | arguments))
