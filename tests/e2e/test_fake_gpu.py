"""A whole trial on the fake GPU driver, underneath the real nvidia-ml-py."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from fake_nvml import FakeDriver
from lightning.pytorch import Callback
from programs import Data, Net, trainer, trials, zeus
from service_process import ServiceProcess
from waiting import LIMIT_S


class DriversCount(Callback):
    """The driver's own counter at the hooks where the callback reads its meter."""

    def __init__(self, gpus: FakeDriver) -> None:
        self.gpus = gpus
        self.energy_mj: list[int] = []

    def _read(self) -> None:
        self.energy_mj.append(sum(gpu.energy_mj() for gpu in self.gpus.gpus))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._read()

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.gpus.advance(0.05)
        self.gpus.gpus[0].set_load((trainer.global_step % 10) / 10)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._read()


def test_the_joules_reported_are_the_drivers_within_one_percent(
    service: ServiceProcess, fake_gpus: FakeDriver
) -> None:
    fake_gpus.freeze()
    count = DriversCount(fake_gpus)
    callback = zeus(service.url, meter="nvml:0,1")
    trainer(count, callback, max_epochs=5).fit(Net((0.1, 0.2, 0.3, 0.9)), datamodule=Data())
    (trial,) = trials(service.url, callback.job.job_id)
    assert trial["outcome"] == "converged"
    assert trial["epoch"] == 4
    counted_j = (count.energy_mj[-1] - count.energy_mj[0]) / 1e3
    assert counted_j > 50
    assert trial["energy_j"] == pytest.approx(counted_j, rel=0.01)


def test_the_job_knows_the_gpus_and_their_highest_power(
    service: ServiceProcess, fake_gpus: FakeDriver
) -> None:
    gpu = fake_gpus.add_gpu(name="Fake GPU X", max_w=432)
    callback = zeus(service.url, meter=f"nvml:0,{gpu.uuid}")
    trainer(callback).fit(Net(), datamodule=Data())
    assert callback.job is not None
    url = f"{service.url}/api/v1/jobs/{callback.job.job_id}"
    (hardware,) = requests.get(url, timeout=LIMIT_S).json()["hardware"]
    assert hardware["meter"] == "nvml"
    assert hardware["device_model"] == f"{fake_gpus.gpus[0].name} + Fake GPU X"
    assert hardware["max_power_w"] == 300 + 432
