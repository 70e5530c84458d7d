"""A copy of the callback, made while it trains, is configured alike and has no part in its fit."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import pytest
from lightning.pytorch import Callback
from programs import Data, Net, outcomes, trainer, zeus
from service_process import ServiceProcess

from zeus_lightning import ZeusBSOCallback


class FailsInSetup(Data):
    """Raises an error before any callback is set up."""

    def setup(self, stage: str) -> None:
        raise ZeroDivisionError("mine")


class UsesCopy(Callback):
    """Trains with a copy of a callback within its fit, after a first attempt that fails."""

    def __init__(self, callback: ZeusBSOCallback) -> None:
        self.callback = callback

    def on_train_epoch_end(self, runner: Any, module: Any) -> None:
        if runner.current_epoch != 0:
            return
        other = pickle.loads(pickle.dumps(self.callback))
        assert (other.job, other.trial, other.outcome) == (None, None, None)
        with pytest.raises(ZeroDivisionError):
            trainer(other).fit(Net(), FailsInSetup())
        net = Net((0.9,))
        trainer(other).fit(net, Data(batch_size=8))
        assert (other.trial.trial_number, other.outcome) == (2, "converged")
        assert net.batch_lengths == {4}
        del other
        gc.collect()
        assert (self.callback.trial.trial_number, self.callback.outcome) == (1, None)


def test_a_copy_trains_a_trial_of_its_own_and_leaves_the_running_one(
    service: ServiceProcess,
) -> None:
    callback = zeus(service.url, batch_sizes=[4], default_batch_size=4, beta_knob=float("inf"))
    net, data = Net(), Data(batch_size=8)
    trainer(callback, UsesCopy(callback)).fit(net, data)
    assert outcomes(service.url, callback.job.job_id) == ["converged", "converged"]
    assert callback.last_report.epoch == 3
    assert net.batch_lengths == {4}
    assert data.batch_size == 8
