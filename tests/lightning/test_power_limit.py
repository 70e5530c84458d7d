"""Whole fits on the fake GPU: what is measured, chosen, applied, kept and told."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
import torch
from fake_nvml import FakeDriver, FakeGpu
from gpu_programs import DriversClock, GpuNet, ManyBatches, power
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from programs import trainer

from zeus_lightning import ZeusConfigError, ZeusPowerLimitCallback
from zeus_lightning.power.profile import PowerProfile

ALL_LIMITS = list(range(300, 75, -25))


@pytest.fixture
def gpu(fake_gpus: FakeDriver) -> FakeGpu:
    """The first GPU, on a driver whose clock moves by kernels alone."""
    fake_gpus.freeze()
    fake_gpus.gpus[0].limit_mw = 250_000
    return fake_gpus.gpus[0]


@pytest.fixture
def meter(fake_gpus: FakeDriver, gpu: FakeGpu) -> Iterator[DriversClock]:
    meter = DriversClock(fake_gpus)
    yield meter
    meter.close()


def phases(limits_w: list[float]) -> list[tuple[float, int]]:
    """Limits in the order of training, with the number of steps under each."""
    found: list[tuple[float, int]] = []
    for limit_w in limits_w:
        count = found.pop()[1] if found and found[-1][0] == limit_w else 0
        found.append((limit_w, count + 1))
    return found


def expected(gpu: FakeGpu, limit_w: int, work_s: float = 0.1) -> tuple[float, float]:
    """Joules and seconds of a step under a limit, as the fake GPU has it."""
    time_s = work_s * (250 / (limit_w - 50)) ** (1 / 3)
    return limit_w * time_s, time_s


def fit(callback: ZeusPowerLimitCallback, net: GpuNet, *others: Callback, **more: Any) -> Trainer:
    data = more.pop("data", None) or ManyBatches()
    runner = trainer(callback, *others, **({"max_epochs": 1} | more))
    runner.fit(net, data, ckpt_path=more.get("ckpt_path"))
    return runner


def test_every_limit_is_measured_from_the_highest_down_and_the_best_one_applied(
    gpu: FakeGpu, meter: DriversClock
) -> None:
    callback, net = power(meter=meter), GpuNet(gpu)
    fit(callback, net)
    assert phases(net.limits_w) == [
        (250, 1),  # wait_steps
        *((limit, 6) for limit in ALL_LIMITS),
        (225, 200 - 1 - 6 * len(ALL_LIMITS)),
    ]
    assert callback.limit_w == 225
    assert callback.profiled
    assert gpu.limit_mw == 250_000  # as found, not the highest


def test_what_is_measured_is_what_the_gpu_spends(gpu: FakeGpu, meter: DriversClock) -> None:
    callback = power(meter=meter)
    fit(callback, GpuNet(gpu))
    profile = callback.profile
    assert profile is not None
    assert [point.limit_w for point in profile.points] == ALL_LIMITS
    for point in profile.points:
        energy_j, time_s = expected(gpu, point.limit_w)
        assert point.energy_j == pytest.approx(energy_j, rel=1e-3)
        assert point.time_s == pytest.approx(time_s, rel=1e-6)
    assert (profile.device_model, profile.driver) == ("Fake H100", "000.00.fake")
    assert (profile.num_devices, profile.batch_size, profile.max_power_w) == (1, 8, 300)
    assert (profile.chosen_w, profile.selector, profile.search) == (225, "zeus-cost", "sweep")


@pytest.mark.parametrize(
    ("selector", "chosen_w"),
    [("energy", 100), ("time", 300), ("max-slowdown:1.2", 200), ("max-slowdown:1.0", 300)],
)
def test_the_selector_chooses(
    gpu: FakeGpu, meter: DriversClock, selector: str, chosen_w: int
) -> None:
    callback, net = power(selector=selector, meter=meter), GpuNet(gpu)
    fit(callback, net)
    assert callback.limit_w == net.limits_w[-1] == chosen_w


def test_golden_measures_fewer_limits_and_chooses_the_same(
    gpu: FakeGpu, meter: DriversClock
) -> None:
    callback = power(search="golden", meter=meter)
    fit(callback, GpuNet(gpu))
    assert callback.profile is not None
    assert callback.limit_w == 225
    assert len(callback.profile.points) < len(ALL_LIMITS)


def test_a_range_that_is_no_multiple_of_the_step_is_never_left(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    odd = fake_gpus.add_gpu(min_w=110, max_w=305)
    meter = DriversClock(fake_gpus, (2,))
    net = GpuNet(odd)
    fit(power(step_w=60, meter=meter), net)
    meter.close()
    assert [limit for limit, _ in phases(net.limits_w)] == [305, 245, 185, 125, 245]


def test_windows_last_min_seconds_and_their_length_is_fixed_once(
    gpu: FakeGpu, meter: DriversClock
) -> None:
    net = GpuNet(gpu)
    fit(power(step_w=100, min_seconds=1.95, meter=meter), net)
    # 4 batches of 0.1 s tell the time of a batch; 20 of them last 1.95 s, at every limit
    assert phases(net.limits_w)[1:4] == [(300, 2 + 4 + 20), (200, 2 + 20), (100, 2 + 20)]


def test_power_that_lags_behind_the_limit_is_waited_for(fake_gpus: FakeDriver) -> None:
    fake_gpus.freeze()
    fake_gpus.refresh_s = 0.1
    lagging = fake_gpus.add_gpu(lag_s=0.1)
    meter = DriversClock(fake_gpus, (2,))
    callback = power(warmup_steps=8, profile_steps=40, step_w=100, meter=meter)
    fit(callback, GpuNet(lagging, noise=0.02))
    meter.close()
    assert callback.profile is not None
    for point in callback.profile.points:
        energy_j, time_s = expected(lagging, point.limit_w)
        assert point.energy_j == pytest.approx(energy_j, rel=0.05)
        assert point.time_s == pytest.approx(time_s, rel=0.02)


# --- interruptions -------------------------------------------------------------------------------


def measured_phases(net: GpuNet) -> list[tuple[float, int]]:
    return phases(net.limits_w)[1:]


def test_a_window_that_the_end_of_an_epoch_cuts_is_measured_again(
    gpu: FakeGpu, meter: DriversClock
) -> None:
    callback, net = power(step_w=100, meter=meter), GpuNet(gpu)
    fit(callback, net, max_epochs=3, data=ManyBatches(batches=10), limit_val_batches=0)
    # 1 wait, 6 at 300 W, 3 at 200 W cut by the epoch's end, then 6 again
    assert measured_phases(net)[:2] == [(300, 6), (200, 3 + 6)]


def test_a_window_that_a_validation_cuts_is_measured_again(
    gpu: FakeGpu, meter: DriversClock
) -> None:
    callback, net = power(step_w=100, meter=meter), GpuNet(gpu)
    fit(callback, net, val_check_interval=10)
    assert measured_phases(net)[:2] == [(300, 6), (200, 3 + 6)]


@pytest.mark.parametrize("weights_only", [False, True])
def test_a_window_that_a_checkpoint_cuts_is_measured_again(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path, weights_only: bool
) -> None:
    callback, net = power(step_w=100, meter=meter), GpuNet(gpu)
    checkpoints = ModelCheckpoint(
        tmp_path, every_n_train_steps=10, save_top_k=-1, save_weights_only=weights_only
    )
    fit(callback, net, checkpoints, enable_checkpointing=True)
    assert measured_phases(net)[:2] == [(300, 6), (200, 3 + 6)]


def test_a_disturbed_epoch_does_not_get_into_the_figures(gpu: FakeGpu, meter: DriversClock) -> None:
    class SlowValidation(Callback):
        def on_validation_end(self, *args: Any) -> None:
            gpu._driver.advance(1000)

    callback = power(step_w=100, meter=meter)
    fit(callback, GpuNet(gpu), SlowValidation(), val_check_interval=10)
    assert callback.profile is not None
    for point in callback.profile.points:
        assert point.time_s == pytest.approx(expected(gpu, point.limit_w)[1], rel=1e-6)


def test_epochs_too_short_for_any_window_end_profiling_with_the_limits_found(
    gpu: FakeGpu, meter: DriversClock
) -> None:
    callback, net = power(meter=meter), GpuNet(gpu)
    with pytest.warns(UserWarning, match="no power limit is chosen: training is interrupted"):
        fit(callback, net, data=ManyBatches(batches=2), max_epochs=20)
    assert callback.limit_w is None
    assert callback.profile is None
    assert net.limits_w[-1] == 250
    assert len(net.limits_w) == 40


def test_training_that_ends_in_mid_profile_leaves_no_trace_and_no_profile(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path
) -> None:
    callback = power(meter=meter, profile_path=tmp_path / "profile.json")
    fit(callback, GpuNet(gpu), data=ManyBatches(batches=20))
    assert gpu.limit_mw == 250_000
    assert callback.profiled
    assert callback.profile is None
    assert not (tmp_path / "profile.json").exists()


# --- profiles ------------------------------------------------------------------------------------


def test_a_profile_file_is_written_and_the_next_run_applies_it_from_its_first_step(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path
) -> None:
    path = tmp_path / "profiles" / "a.json"
    first = power(meter=meter, profile_path=path)
    fit(first, GpuNet(gpu))
    assert PowerProfile.loads(path.read_text()) == first.profile
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]
    second, net = power(meter=meter, profile_path=str(path)), GpuNet(gpu)
    fit(second, net)
    assert phases(net.limits_w) == [(225, 200)]
    assert not second.profiled
    assert gpu.limit_mw == 250_000


def test_another_selector_chooses_again_from_the_points_kept(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    fit(power(meter=meter, profile_path=path), GpuNet(gpu))
    net = GpuNet(gpu)
    fit(power(selector="max-slowdown:1.2", meter=meter, profile_path=path), net)
    assert phases(net.limits_w) == [(200, 200)]


def test_a_file_of_another_batch_size_is_measured_anew_and_replaced(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    fit(power(meter=meter, profile_path=path), GpuNet(gpu))
    callback = power(meter=meter, profile_path=path)
    fit(callback, GpuNet(gpu), data=ManyBatches(batch_size=16))
    assert callback.profiled
    assert PowerProfile.loads(path.read_text()).batch_size == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("not JSON", "must be JSON"),
        ("{}", "lacks"),
        ({"device_model": "Another GPU"}, "'Another GPU'.*'Fake H100'"),
        ({"num_devices": 2}, "num_devices 2"),
        ({"points": []}, "points"),
    ],
)
def test_a_profile_file_that_cannot_be_used_is_told_once_left_alone_and_measured_anew(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path, change: Any, message: str
) -> None:
    path = tmp_path / "a.json"
    fit(power(meter=meter, profile_path=path, step_w=100), GpuNet(gpu))
    changed = change
    if isinstance(change, dict):
        changed = json.dumps({**json.loads(path.read_text()), **change})
    path.write_text(changed)
    callback = power(meter=meter, profile_path=path, step_w=100)
    with pytest.warns(UserWarning, match="profile_path") as told:
        fit(callback, GpuNet(gpu))
    assert len(zeus_warnings(told)) == 1
    assert re.search(message, zeus_warnings(told)[0])
    assert callback.profiled
    assert callback.limit_w == 200
    assert path.read_text() == changed


def test_a_profile_file_that_cannot_be_written_is_told_and_the_limit_applied(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    callback = power(meter=meter, profile_path=tmp_path / "file" / "a.json", step_w=100)
    with pytest.warns(UserWarning, match="cannot be written to profile_path") as told:
        fit(callback, GpuNet(gpu))
    assert len(zeus_warnings(told)) == 1
    assert callback.limit_w == 200


def test_a_resumed_run_does_not_profile_again(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path
) -> None:
    runner = fit(power(meter=meter), GpuNet(gpu))
    runner.save_checkpoint(tmp_path / "a.ckpt")
    resumed, net = power(meter=meter), GpuNet(gpu)
    trainer(resumed, max_epochs=2).fit(net, ManyBatches(), ckpt_path=tmp_path / "a.ckpt")
    assert phases(net.limits_w) == [(225, 200)]
    assert not resumed.profiled
    fit(resumed, GpuNet(gpu))  # from no checkpoint
    assert resumed.profiled


def test_a_checkpoint_of_another_batch_size_does_not_choose(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path
) -> None:
    runner = fit(power(meter=meter), GpuNet(gpu))
    runner.save_checkpoint(tmp_path / "a.ckpt")
    resumed = power(meter=meter)
    data = ManyBatches(batch_size=4)
    trainer(resumed, max_epochs=2).fit(GpuNet(gpu), data, ckpt_path=tmp_path / "a.ckpt")
    assert resumed.profiled


def test_a_second_fit_of_the_same_callback_starts_anew(gpu: FakeGpu, meter: DriversClock) -> None:
    callback = power(meter=meter, step_w=100)
    fit(callback, GpuNet(gpu))
    net = GpuNet(gpu)
    fit(callback, net)
    assert [limit for limit, _ in phases(net.limits_w)] == [250, 300, 200, 100, 200]
    assert gpu.limit_mw == 250_000


def test_a_second_fit_knows_nothing_of_the_firsts_checkpoint(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path
) -> None:
    fit(power(meter=meter, step_w=100), GpuNet(gpu)).save_checkpoint(tmp_path / "a.ckpt")
    callback = power(meter=meter, step_w=100)
    for ckpt_path, profiled in ((tmp_path / "a.ckpt", False), (None, True)):
        trainer(callback, max_epochs=2).fit(GpuNet(gpu), ManyBatches(), ckpt_path=ckpt_path)
        assert callback.profiled is profiled


def test_a_profile_path_that_cannot_be_looked_at_is_told_and_measured_without(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path
) -> None:
    callback = power(meter=meter, step_w=100, profile_path=tmp_path / ("a" * 300))
    with pytest.warns(UserWarning, match=r"profile_path .* cannot be used.*too long"):
        fit(callback, GpuNet(gpu))
    assert callback.limit_w == 200


def test_a_dataloader_that_does_not_tell_its_batch_size_has_its_limit_found_but_not_kept(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path
) -> None:
    class Batches:
        def __iter__(self) -> Iterator[list[torch.Tensor]]:
            return ([torch.randn(8, 4)] for _ in range(200))

    path = tmp_path / "a.json"
    callback = power(meter=meter, step_w=100, profile_path=path)
    with pytest.warns(UserWarning, match="the global batch size cannot be seen"):
        trainer(callback, max_epochs=1).fit(GpuNet(gpu), Batches())
    assert callback.limit_w == 200
    assert not path.exists()


def test_a_global_batch_size_that_changes_in_mid_run_has_its_limit_found_but_not_kept(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    callback = power(meter=meter, step_w=100, profile_path=path)
    with pytest.warns(UserWarning, match="or changes in mid-run"):
        fit(callback, GpuNet(gpu), GradientAccumulationScheduler({0: 1, 2: 4}))
    assert callback.limit_w == 200
    assert not path.exists()


# --- observing, and hooks that do nothing --------------------------------------------------------


def test_observing_changes_nothing_and_tells_what_would_be_set(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.json"
    fit(power(meter=meter, profile_path=path), GpuNet(gpu))
    callback, net = power(meter=meter, profile_path=path, apply=False), GpuNet(gpu)
    gpu.fail("set_limit", pynvml.NVML_ERROR_NO_PERMISSION)
    with caplog.at_level(logging.INFO):
        fit(callback, net)
    assert phases(net.limits_w) == [(250, 200)]
    assert callback.limit_w is None
    assert "would set the power limit to 225 W" in caplog.text


def test_observing_without_a_profile_reports_the_limit_in_force(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.json"
    callback, net = power(meter=meter, profile_path=path, apply=False), GpuNet(gpu)
    with caplog.at_level(logging.INFO):
        fit(callback, net)
    assert phases(net.limits_w) == [(250, 200)]
    energy_j, _ = expected(gpu, 250)
    assert f"power limit 250 W: {energy_j:.4g} J" in caplog.text
    assert not callback.profiled
    assert not path.exists()


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NO_PERMISSION, None])
def test_where_limits_cannot_be_set_or_remembered_it_observes_as_asked(
    gpu: FakeGpu,
    meter: DriversClock,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    code: int | None,
) -> None:
    if code is None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    else:
        gpu.fail("set_limit", code)
    callback, net = power(meter=meter, on_no_permission="observe"), GpuNet(gpu)
    with pytest.warns(UserWarning, match="observing only"):
        fit(callback, net)
    assert phases(net.limits_w) == [(250, 200)]
    assert not callback.profiled


def test_fast_dev_run_validate_test_and_predict_do_nothing(
    gpu: FakeGpu, meter: DriversClock
) -> None:
    class Whole(GpuNet):
        def test_step(self, batch: Any, index: int) -> None:
            pass

        def predict_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.layer(batch[0])

    gpu.fail("set_limit", pynvml.NVML_ERROR_NO_PERMISSION)
    callback = power(meter=meter)
    trainer(callback, fast_dev_run=7).fit(Whole(gpu), ManyBatches())
    runner, data = trainer(callback), ManyBatches()
    runner.validate(Whole(gpu), data)
    runner.test(Whole(gpu), data.val_dataloader())
    runner.predict(Whole(gpu), data.val_dataloader())
    assert not callback.profiled
    assert gpu.limit_mw == 250_000


def test_after_profiling_the_batch_hooks_do_nothing(gpu: FakeGpu, meter: DriversClock) -> None:
    class Untouchable:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"{name} was looked at")

    class AtTheEnd(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            if trainer.global_step == 150:
                nobody: Any = Untouchable()
                for _ in range(100):
                    callback.on_train_batch_start(nobody, nobody, nobody, nobody)
                    callback.on_train_batch_end(nobody, nobody, nobody, nobody, nobody)
                self.called = True

    callback, at_the_end = power(meter=meter), AtTheEnd()
    fit(callback, GpuNet(gpu), at_the_end)
    assert at_the_end.called


# --- what a person sees --------------------------------------------------------------------------


def zeus_warnings(told: Any) -> list[str]:
    return [str(w.message) for w in told if str(w.message).startswith("zeus:")]


def test_a_line_for_each_limit_and_a_table_with_the_saving_are_told(
    gpu: FakeGpu, meter: DriversClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit(power(meter=meter, step_w=100), GpuNet(gpu))
    assert zeus_warnings(told) == []
    lines = [r.message for r in caplog.records if r.message.startswith("zeus: power limit ")]
    assert [int(line.split()[3]) for line in lines] == [300, 200, 100]
    assert lines[0] == "zeus: power limit 300 W: 30 J and 100 ms a batch, 300 W on average"
    table = next(r.message for r in caplog.records if "limits measured, with" in r.message)
    energy = expected(gpu, 200)[0] / expected(gpu, 300)[0] - 1
    time = expected(gpu, 200)[1] / expected(gpu, 300)[1] - 1
    told_saving = f"200 W: energy {100 * energy:+.1f} % and time {100 * time:+.1f} % against 300 W"
    assert f"* chosen by zeus-cost: {told_saving}" in table
    assert re.search(r"^ +\* +200 ", table, re.MULTILINE)
    assert max(map(len, table.splitlines()[1:-1])) <= 80


@pytest.mark.parametrize("batches", [100, 200])
def test_the_device_is_synchronized_at_the_windows_edges_only(
    fake_gpus: FakeDriver, gpu: FakeGpu, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronized: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", synchronized.append)
    cuda = torch.device("cuda", 0)
    with contextlib.closing(DriversClock(fake_gpus, device=cuda)) as meter:
        callback = power(step_w=100, meter=meter)
        fit(callback, GpuNet(gpu), data=ManyBatches(batches))
    windows = len(callback.profile.points)
    assert windows == 3
    assert synchronized == [cuda] * (2 * windows)


def test_limit_watts_and_joules_per_step_are_logged(
    gpu: FakeGpu, meter: DriversClock, tmp_path: Path
) -> None:
    logger = CSVLogger(tmp_path)
    fit(power(meter=meter, step_w=100), GpuNet(gpu), logger=logger)
    rows = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    names = rows[0].split(",")
    seen = [
        {name: float(value) for name, value in zip(names, row.split(","), strict=True) if value}
        for row in rows[1:]
    ]
    seen = [row for row in seen if "zeus/power_limit_w" in row]
    assert [row["zeus/power_limit_w"] for row in seen] == [300, 200, 100, 200]
    assert [row["step"] for row in seen] == [6, 12, 18, 18]
    for row in seen:
        limit_w = row["zeus/power_limit_w"]
        assert row["zeus/step_power_w"] == pytest.approx(limit_w, rel=1e-3)
        assert row["zeus/step_energy_j"] == pytest.approx(expected(gpu, int(limit_w))[0], rel=1e-3)


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"selector": "cheapest"}, "selector is 'cheapest'"),
        ({"selector": "max-slowdown:0.5"}, "a FACTOR of at least 1"),
        ({"search": "random"}, "search is 'random'"),
        ({"step_w": 0}, "step_w is 0"),
        ({"step_w": 12.5}, r"step_w is 12\.5"),
        ({"wait_steps": -1}, "wait_steps is -1"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"profile_steps": 0}, "profile_steps is 0"),
        ({"min_seconds": -0.1}, r"min_seconds is -0\.1"),
        ({"on_no_permission": "ignore"}, "on_no_permission is 'ignore'"),
        ({"url": "localhost"}, "url is 'localhost'"),
    ],
)
def test_an_argument_that_cannot_work_is_told_at_once(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ZeusConfigError, match=message):
        ZeusPowerLimitCallback(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step_w": 201}, "step_w is 201; it must be .* at most 200"),
        ({"meter": "nvml"}, "trains on cpu: name the GPUs"),
        ({"meter": "cpu-estimate"}, "the meter is cpu-estimate"),
        ({"url": "http://127.0.0.1:1"}, "there is no job_id"),
        ({"job_id": "mine"}, "there is no service"),
    ],
)
def test_what_does_not_go_with_the_program_is_told_before_the_first_step(
    gpu: FakeGpu, arguments: dict[str, Any], message: str
) -> None:
    net = GpuNet(gpu)
    with pytest.raises(ZeusConfigError, match=message):
        fit(power(**arguments), net)
    assert net.limits_w == []
    assert gpu.limit_mw == 250_000
