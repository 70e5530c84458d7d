"""One Trainer at a time for a callback, and a model that is saved before its run ends.

`test_bso_second_fit.py` has what a module is that was trained before.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeGpu
from gpu_programs import DriversClock, GpuNet, ManyBatches, power
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from programs import Data, Net, outcomes, trainer, zeus
from service_process import ServiceProcess

from zeus_lightning import ZeusConfigError


class InTheMiddle(Callback):
    """Calls something at the end of the twentieth training batch."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == 20:
            self.call()


def refused(callback: Callback, net: Net, data: Data) -> None:
    with pytest.raises(ZeusConfigError, match="in use by another Trainer"):
        trainer(callback).fit(net, data)


def test_a_second_trainer_is_refused_and_the_first_one_trains_on(service: ServiceProcess) -> None:
    callback, data = zeus(service.url), Data()
    trainer(callback, InTheMiddle(lambda: refused(callback, Net(), Data()))).fit(Net(), data)
    assert callback.outcome == "converged"
    assert outcomes(service.url, callback.job.job_id) == ["converged"]
    assert data.batch_size == 8


def test_a_second_trainer_does_not_end_the_measuring_of_limits(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    callback, in_force = power(meter=gpu_meter), []

    def others() -> None:
        before_w = gpu.limit_mw
        refused(callback, GpuNet(gpu), ManyBatches())
        trainer(callback).validate(Net(), Data().val_dataloader(), verbose=False)
        in_force.append(gpu.limit_mw == before_w)

    trainer(callback, InTheMiddle(others), max_epochs=1).fit(GpuNet(gpu), ManyBatches())
    assert in_force == [True]
    assert callback.limit_w == 225
    assert gpu.limit_mw == 250_000


@pytest.mark.parametrize(
    ("arguments", "files", "told"),
    [
        ({"every_n_epochs": 5}, 0, True),
        ({"train_time_interval": timedelta(hours=1)}, 0, True),
        ({}, 1, False),
        ({"every_n_epochs": 5, "save_last": True}, 1, False),
        ({"save_top_k": 0}, 0, False),  # the user wants none
    ],
)
def test_only_a_checkpoint_that_was_not_due_yet_is_a_warning(
    service: ServiceProcess, tmp_path: Path, arguments: dict[str, Any], files: int, told: bool
) -> None:
    saves = ModelCheckpoint(tmp_path, **arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(zeus(service.url), saves, enable_checkpointing=True).fit(Net((0.9,)), Data())
    assert len(list(tmp_path.iterdir())) == files
    text = "reached its target before ModelCheckpoint saved a checkpoint"
    texts = [str(each.message) for each in caught]
    assert [text in each for each in texts if "checkpoint" in each.lower()] == [True] * told
