"""The rest of a run in batches, as its Trainer and earlier trials tell."""

from __future__ import annotations

import math
from typing import Any

import pytest
from gpu_programs import ManyBatches
from lightning.pytorch import Callback, Trainer
from programs import Data, Net, new_job, trainer, zeus
from service_process import ServiceProcess

from zeus_lightning.power.run_length import batches_to_target
from zeus_lightning.power.trainer_loop import TrainerLoop


class Asks(Callback):
    """Asks at the start of training, and at the start of each epoch."""

    def __init__(self) -> None:
        self.left: list[float] = []
        self.to_target = math.nan

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.to_target = batches_to_target(TrainerLoop(trainer))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.left.append(TrainerLoop(trainer).batches_left())


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"max_epochs": 3}, [60, 40, 20]),
        ({"max_epochs": 3, "max_steps": 25}, [25, 5]),
        ({"max_epochs": 3, "max_steps": 10, "accumulate_grad_batches": 4}, [40, 20]),
        ({"max_epochs": -1, "max_steps": 30}, [30, 10]),
        ({"max_epochs": 3, "limit_train_batches": 7}, [21, 14, 7]),
    ],
)
def test_epochs_and_steps_of_the_trainer_end_a_run(limits: dict[str, Any], left: list[int]) -> None:
    asks = Asks()
    trainer(asks, **limits).fit(Net(), ManyBatches(batches=20))
    assert asks.left == left
    assert asks.to_target == math.inf


def test_a_run_without_an_end_is_endless() -> None:
    class Once(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
            assert TrainerLoop(trainer).batches_left() == math.inf
            trainer.should_stop = True

    trainer(Once(), max_epochs=-1, max_steps=-1).fit(Net(), ManyBatches(batches=2))


def test_earlier_trials_of_the_batch_size_tell_when_the_target_is_reached(
    service: ServiceProcess,
) -> None:
    job = {"job_id": new_job(), "batch_sizes": [8], "default_batch_size": 8}
    first, second = zeus(service.url, **job), zeus(service.url, **job)
    for bso in (first, second):
        asks = Asks()
        trainer(bso, asks).fit(Net(), Data())
        assert bso.outcome == "converged"
        if bso is first:
            assert asks.to_target == math.inf
    of_an_epoch = asks.left[0] / 5
    assert asks.to_target == first.report.epoch * of_an_epoch
