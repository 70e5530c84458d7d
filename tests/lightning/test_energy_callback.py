"""`ZeusEnergyCallback` measures a run and never harms it; on ranks: `test_distributed.py`."""

from __future__ import annotations

import copy
import csv
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeGpu
from gpu_programs import GpuNet, ManyBatches
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from programs import Data, Dying, Net, Raise, StepMeter, Whole, WorkMeter, trainer, zeus
from service_process import ServiceProcess

from zeus_lightning import ZeusConfigError, ZeusEnergyCallback
from zeus_lightning.meters import Reading

STEPS = 64 // 8  # of an epoch


class AllData(Data):
    test_dataloader = predict_dataloader = Data.val_dataloader


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines of ours that were logged so far."""
    caplog.set_level(logging.INFO)
    return lambda: [each.getMessage() for each in caplog.records if "zeus: " in each.getMessage()]


def logged(logger: CSVLogger) -> list[dict[str, float]]:
    """What was logged of ours, in its order."""
    logger.save()
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    ours = [{k: v for k, v in row.items() if k.startswith("zeus/") and v} for row in rows]
    return [{key: float(value) for key, value in row.items()} for row in ours if row]


def test_a_fit_logs_joules_seconds_and_watts_from_its_first_step(
    tmp_path: Path, lines: Callable[[], list[str]]
) -> None:
    meter, logger = WorkMeter(), CSVLogger(tmp_path)
    callback = ZeusEnergyCallback(meter)
    runner = trainer(meter, callback, max_epochs=2, logger=logger, num_sanity_val_steps=2)
    runner.fit(Net(), Data())
    expected = [
        {"zeus/energy_j": 3.0 * steps, "zeus/time_s": steps, "zeus/power_w": 3.0}
        for steps in (STEPS, STEPS, 2 * STEPS, 2 * STEPS)  # validation's end, and the epoch's
    ]
    assert logged(logger) == expected
    assert set(expected[0]) <= set(runner.progress_bar_metrics)
    assert callback.spent == Reading(48.0, 16.0)
    assert lines() == ["zeus: the fit used 48.00 J in 16.00 s, mean 3.00 W (steps with work)"]


def test_the_sanity_check_is_not_counted(lines: Callable[[], list[str]]) -> None:
    class Readings(StepMeter):
        sanity = 0

        def read(self) -> Reading:
            self.sanity += runner.sanity_checking
            return super().read()

    meter = Readings()
    runner = trainer(ZeusEnergyCallback(meter), max_epochs=1, num_sanity_val_steps=2)
    runner.fit(Net(), Data())
    assert meter.sanity == 0
    # a reading as training began, one as each of validation, epoch and fit ended
    assert "used 18.00 J in 6.00 s" in lines()[0]


def test_each_other_stage_is_measured_by_itself(
    tmp_path: Path, lines: Callable[[], list[str]]
) -> None:
    logger, callback = CSVLogger(tmp_path), ZeusEnergyCallback(StepMeter())
    runner, net = trainer(callback, max_epochs=1, logger=logger), Whole()
    runner.fit(net, AllData())
    for stage, name in (("validate", "validation"), ("test", "test")):
        results = getattr(runner, stage)(net, AllData(), verbose=False)
        assert f"the {name} used 12.00 J in 4.00 s" in lines()[-1]
        keys = {"zeus/energy_j": 6.0, "zeus/time_s": 2.0, "zeus/power_w": 3.0}
        assert {key: results[0][key] for key in keys} == logged(logger)[-1] == keys
    runner.predict(net, AllData())
    assert "the prediction used 6.00 J in 2.00 s" in lines()[-1]
    assert len(lines()) == 4


def test_a_gpu_is_read_through_its_driver(gpu: FakeGpu, lines: Callable[[], list[str]]) -> None:
    net, callback = GpuNet(gpu), ZeusEnergyCallback("nvml:0")
    before_j = gpu.energy_mj() / 1e3
    trainer(callback, max_epochs=1).fit(net, ManyBatches())
    assert callback.spent.energy_j == pytest.approx(gpu.energy_mj() / 1e3 - before_j, rel=0.01)
    assert callback.spent.energy_j > 0
    assert "Fake H100 with nvml; not included: CPUs, memory" in lines()[0]


def test_emissions_and_price_are_printed_where_their_rates_are_set(
    monkeypatch: pytest.MonkeyPatch, lines: Callable[[], list[str]]
) -> None:
    monkeypatch.setenv("ZEUS_CARBON_INTENSITY", "380")
    monkeypatch.setenv("ZEUS_PRICE_PER_KWH", "3e-1")
    trainer(ZeusEnergyCallback(StepMeter(1.2e6)), max_epochs=1).fit(Net(), Data())
    assert " W, 0.38 kg CO2e, 0.3 for electricity (" in lines()[0]


@pytest.mark.parametrize("price", ["30 cents", "nan", "-0.3", "inf"])
def test_an_invalid_price_is_an_error_before_anything_else(monkeypatch: Any, price: str) -> None:
    monkeypatch.setenv("ZEUS_PRICE_PER_KWH", price)
    with pytest.raises(ZeusConfigError, match=f"ZEUS_PRICE_PER_KWH is '{price}'; it must be"):
        ZeusEnergyCallback()


def test_a_meter_that_cannot_be_opened_is_an_error_before_the_first_step() -> None:
    net = Net()
    with pytest.raises(ZeusConfigError, match="perpetual-motion"):
        trainer(ZeusEnergyCallback("perpetual-motion")).fit(net, Data())
    assert net.batch_lengths == set()


class Closed(StepMeter):
    """Opened by the callback: counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Closed:
    """The meter that `auto` opens."""
    meter = Closed()
    monkeypatch.setattr("zeus_lightning.run.run_meter.open_meter", lambda *args: meter)
    return meter


def test_an_error_closes_the_meter_and_prints_what_was_used(
    opened: Closed, lines: Callable[[], list[str]]
) -> None:
    callback = ZeusEnergyCallback()
    with pytest.raises(SystemExit):
        trainer(callback, Raise(KeyboardInterrupt())).fit(Net(), Data())
    assert opened.closed == 1
    ours = [line for line in lines() if "used" in line]
    assert len(ours) == 1
    ended = "zeus: the fit, until KeyboardInterrupt ended it, used 6.00 J in 2.00 s"
    assert ours[0].startswith(ended)


def test_an_error_before_training_closes_the_meter_and_prints_nothing(
    opened: Closed, lines: Callable[[], list[str]]
) -> None:
    class Breaks(Callback):
        def on_fit_start(self, *args: Any) -> None:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError):
        trainer(ZeusEnergyCallback(), Breaks()).fit(Net(), Data())
    assert (opened.closed, lines()) == (1, [])


def test_a_meter_that_fails_at_once_does_not_print_what_an_earlier_fit_used(
    lines: Callable[[], list[str]],
) -> None:
    callback = ZeusEnergyCallback(Dying(0))
    callback.spent = Reading(6.0, 2.0)  # of the earlier fit
    trainer(callback, max_epochs=1).fit(Net(), Data())
    assert (lines(), callback.spent) == ([], Reading(0.0, 0.0))


def test_a_meter_that_fails_warns_once_and_training_goes_on(
    lines: Callable[[], list[str]], recwarn: pytest.WarningsRecorder
) -> None:
    net, callback = Net(), ZeusEnergyCallback(Dying(4, RuntimeError("not ours")))
    trainer(callback, max_epochs=3, num_sanity_val_steps=0).fit(net, Data())
    assert net.validations == 3
    warned = [str(each.message) for each in recwarn if "zeus" in str(each.message)]
    assert warned == ["zeus: not ours"]
    assert [line.partition(" J")[0] for line in lines()] == [
        "zeus: the fit, until its meter failed, used 12.00"
    ]
    assert callback.spent == Reading(12.0, 4.0)


def test_fast_dev_run_is_measured_as_any_run(lines: Callable[[], list[str]]) -> None:
    meter = WorkMeter()
    trainer(meter, ZeusEnergyCallback(meter), fast_dev_run=3).fit(Net(), Data())
    assert "the fit used 9.00 J in 3.00 s" in lines()[0]


def test_beside_the_bso_callback_a_fit_leaves_the_loggers_to_it(
    service: ServiceProcess, tmp_path: Path, lines: Callable[[], list[str]]
) -> None:
    logger, callback = CSVLogger(tmp_path), ZeusEnergyCallback(StepMeter())
    runner = trainer(zeus(service.url), callback, logger=logger)
    runner.fit(Net(), Data())
    assert [len(row) for row in logged(logger)] == [5, 5, 5]  # cost and batch size, too
    assert runner.progress_bar_metrics["zeus/power_w"] == 3.0
    assert any("the fit used" in line for line in lines())


def test_a_second_fit_and_a_copy_count_from_zero(lines: Callable[[], list[str]]) -> None:
    class Copies(Callback):
        def on_train_epoch_end(self, *args: Any) -> None:
            self.copies = [copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))]

    callback, copies = ZeusEnergyCallback("cpu-estimate"), Copies()
    for _ in range(2):
        trainer(callback, copies, max_epochs=1).fit(Net(), Data())
    assert len(lines()) == 2
    for line in lines():
        assert line.endswith("with cpu-estimate; not included: GPUs, memory, idle power)")
    for each in (callback, *copies.copies):
        trainer(each, max_epochs=1).fit(Net(), Data())
    assert len(lines()) == 5
