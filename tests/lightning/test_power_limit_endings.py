"""However a run ends or its GPU fails: the limit is restored, and training continues if it can."""

from __future__ import annotations

import os
import re
import signal
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gpu_programs
import pynvml
import pytest
from fake_nvml import FakeDriver, FakeGpu
from fake_zeusd import FakeZeusd
from forked import training_process
from gpu_programs import DriversClock, GpuNet, ManyBatches, assert_restored, power, zeus_warnings
from lightning.pytorch import Callback
from programs import AfterStep, BreaksOnException, trainer
from train_on_gpu_until_signalled import train_on_gpu
from waiting import LIMIT_S

from zeus_lightning import ZeusPowerError
from zeus_lightning.power.restore import restore_all


def fit(driver: FakeDriver, *others: Callback, **arguments: Any) -> tuple[Any, GpuNet, list[str]]:
    """Train on GPU 0; the callback, the program, and what was warned of."""
    with (
        closing(DriversClock(driver)) as meter,
        warnings.catch_warnings(record=True, action="always") as warned,
    ):
        callback, net = power(meter=meter, **arguments), GpuNet(driver.gpus[0])
        gpu_programs.fit(callback, net, *others)
    return callback, net, zeus_warnings(warned)


@pytest.mark.parametrize(
    ("error", "step"), [(SystemExit(3), 1), (ZeroDivisionError("mine"), 30), (SystemExit(3), 150)]
)
def test_an_exception_restores_the_limit_and_is_raised(
    fake_gpus: FakeDriver, gpu: FakeGpu, error: BaseException, step: int
) -> None:
    seen = []

    def fail() -> None:
        seen.append(gpu.limit_mw)
        raise error

    with pytest.raises(type(error)) as raised:
        fit(fake_gpus, AfterStep(step, fail))
    assert raised.value is error
    assert seen[0] != 250_000
    assert_restored(gpu)


def test_after_a_fit_whose_end_another_callback_prevented_the_next_one_works(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    meter = DriversClock(fake_gpus)
    callback = power(meter=meter)
    with pytest.raises(OSError, match="in on_exception"):
        trainer(BreaksOnException(ZeroDivisionError()), callback).fit(GpuNet(gpu), ManyBatches())
    trainer(callback, max_epochs=1).fit(GpuNet(gpu), ManyBatches())
    assert callback.limit_w == 225
    assert_restored(gpu)
    meter.close()


def test_signals_restore_the_limit_a_second_process_is_refused_and_the_run_after_sigkill_restores(
    fake_gpus: FakeDriver, fake_nvml_library: Path
) -> None:
    fake_gpus.add_gpu()
    for gpu in fake_gpus.gpus:
        gpu.limit_mw = 260_000  # none of those that are tried
    with ExitStack() as stack:
        killed, *others = [
            stack.enter_context(training_process(train_on_gpu, fake_nvml_library, index))
            for index in range(3)
        ]
        assert 260_000 not in [gpu.limit_mw for gpu in fake_gpus.gpus]

        os.kill(killed.pid, signal.SIGSTOP)  # until it is killed: or it would set its next limit
        before_mw = fake_gpus.gpus[0].limit_mw
        with pytest.raises(ZeusPowerError, match=f"process {killed.pid} .* controls the power"):
            fit(fake_gpus, on_unavailable="raise")
        fake_gpus.freeze()  # from here on, steps take no time
        _, _, warned = fit(fake_gpus, min_seconds=0)
        assert len(warned) == 1
        assert re.search(f"observing only: .*process {killed.pid} .* controls the power", warned[0])
        assert fake_gpus.gpus[0].limit_mw == before_mw

        for process, number in zip(others, (signal.SIGINT, signal.SIGTERM), strict=True):
            os.kill(process.pid, number)
        for process in others:
            process.join(LIMIT_S)
        assert [gpu.limit_mw for gpu in fake_gpus.gpus[1:]] == [260_000] * 2

    assert fake_gpus.gpus[0].limit_mw != 260_000
    _, _, warned = fit(fake_gpus)
    assert len(warned) == 1
    assert f"was restored to 260 W, its value before process {killed.pid} " in warned[0]
    assert_restored(fake_gpus.gpus[0], 260_000)


def test_of_a_permission_lost_in_mid_run_a_warning_says_what_was_not_restored(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    lose = AfterStep(10, gpu.refuse_limits)
    callback, net, warned = fit(fake_gpus, lose)
    assert net.limits_w[-1] == gpu.limit_mw / 1000 != 250
    assert callback.limit_w is None
    ended = [text for text in warned if "no power limit was chosen" in text]
    assert len(ended) == 1
    assert ended[0].endswith("training continues")
    (left,) = (text for text in warned if "a power limit was not restored: cannot set" in text)
    assert re.search("250 W on GPU-[^;]*; run `zeus-lightning reset-power-limits`$", left)


def test_a_limit_changed_by_someone_else_is_a_warning_and_the_window_is_measured_again(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    def by_hand() -> None:
        gpu.limit_mw = 111_000

    callback, net, warned = fit(fake_gpus, AfterStep(14, by_hand), step_w=100)
    assert net.limits_w[:23] == [300] * 10 + [200] * 4 + [111] * 2 + [200] * 6 + [100]
    assert len(warned) == 1
    assert "discarded the measurement at 200 W: someone else changed a GPU's" in warned[0]
    assert callback.limit_w == 200
    points = {point.limit_w: point for point in callback.profile.points}
    assert points[200].energy_j == pytest.approx(200 * 0.1 * (250 / 150) ** (1 / 3), rel=1e-3)
    assert_restored(gpu)


def test_a_limit_changed_by_someone_else_again_and_again_ends_profiling(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    def by_hand() -> None:
        gpu.limit_mw = 111_000

    callback, net, warned = fit(fake_gpus, AfterStep(10, by_hand, each=True), step_w=100)
    assert callback.limit_w is None
    assert "changed by someone else after process" in warned[-2]  # it was set later
    assert "no power limit was chosen: someone else changed" in warned[-1]
    assert gpu.limit_mw == 111_000
    assert len(net.limits_w) == 200


def test_a_limit_that_the_driver_refuses_is_not_blamed_on_someone_else(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    refuse = AfterStep(5, lambda: gpu.fail("set_limit", pynvml.NVML_ERROR_UNKNOWN))
    callback, net, warned = fit(fake_gpus, refuse, step_w=100)
    assert callback.limit_w is None
    assert ["could not be set" in text for text in warned] == [True, True, True, False, True]
    assert "cannot set a limit of 250 W" in warned[3]
    assert "; run `zeus-lightning reset-power-limits`" in warned[3]
    assert "a GPU's power limit could not be set (3 times at 200 W)" in warned[4]
    assert len(net.limits_w) == 200
    gpu.fail("set_limit", 0)
    ((_, _, message),) = restore_all()
    assert "was restored to 250 W" in message
    assert_restored(gpu)


def test_a_limit_changed_after_profiling_stays_with_a_warning_at_the_end(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    def by_hand() -> None:
        gpu.limit_mw = 111_000

    _, net, warned = fit(fake_gpus, AfterStep(150, by_hand))
    assert gpu.limit_mw == 111_000
    assert net.limits_w[-1] == 111
    assert len(warned) == 1
    assert "so it was not restored to 250 W" in warned[0]


def test_a_gpu_lost_during_a_window_ends_profiling_and_training_continues(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    callback, net, warned = fit(fake_gpus, AfterStep(10, gpu.lose))
    assert len(net.limits_w) == 200
    assert callback.limit_w is None
    assert callback.profile is None
    assert re.search(r"discarded the measurement at \d+ W: a GPU was lost", warned[0])
    assert "; run `zeus-lightning reset-power-limits`" in warned[1]
    assert "no power limit was chosen: a GPU was lost" in warned[2]
    assert len(warned) == 3


def test_a_gpu_that_is_lost_before_the_first_step_is_one_clear_error(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    class LosesIt(Callback):
        def setup(self, *args: Any, **kwargs: Any) -> None:
            gpu.lose()

    steps: list[int] = []
    with pytest.raises(ZeusPowerError, match=rf"{gpu.uuid} .*: GPU is lost; reset the GPU"):
        fit(fake_gpus, LosesIt(), AfterStep(1, lambda: steps.append(1)))
    assert steps == []


def test_an_energy_counter_that_fails_for_a_while_costs_a_window(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    fail = AfterStep(16, lambda: gpu.fail("energy", pynvml.NVML_ERROR_UNKNOWN))
    heal = AfterStep(18, lambda: gpu.fail("energy", 0))
    callback, _, warned = fit(fake_gpus, fail, heal, step_w=100)
    assert callback.limit_w == 200
    assert len(warned) == 1
    assert "a GPU's energy or time could not be read" in warned[0]


# Through zeusd


@pytest.fixture
def daemon(
    fake_gpus: FakeDriver, gpu: FakeGpu, socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeZeusd]:
    """Zeus's daemon, beside a process that may not set limits."""
    gpu.refuse_limits()
    monkeypatch.setenv("ZEUSD_SOCK_PATH", socket_path)
    with FakeZeusd(fake_gpus, socket_path) as daemon:
        yield daemon


def test_it_profiles_and_restores_through_the_daemon_and_says_so(
    fake_gpus: FakeDriver, gpu: FakeGpu, daemon: FakeZeusd, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        callback, _, _ = fit(fake_gpus)
    assert callback.limit_w == 225
    assert_restored(gpu)
    assert f"set and restored through zeusd at {daemon.address}" in caplog.text


def test_a_daemon_that_restarts_while_limits_are_measured_costs_one_window(
    fake_gpus: FakeDriver, gpu: FakeGpu, daemon: FakeZeusd
) -> None:
    callback, _, warned = fit(fake_gpus, AfterStep(10, daemon.end), AfterStep(16, daemon.start))
    assert callback.limit_w == 225
    assert len(warned) == 1
    assert_restored(gpu)


def test_a_daemon_that_stays_away_ends_profiling_and_training_goes_on(
    fake_gpus: FakeDriver, gpu: FakeGpu, daemon: FakeZeusd, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback, _, warned = fit(fake_gpus, AfterStep(10, daemon.end))
    assert any("; run `zeus-lightning reset-power-limits`" in text for text in warned)
    assert callback.limit_w is None
    assert gpu.limit_mw != 250_000
    daemon.start()
    monkeypatch.delenv("ZEUSD_SOCK_PATH")  # the record names it
    assert [finished for _, finished, _ in restore_all()] == [True]
    assert_restored(gpu)
