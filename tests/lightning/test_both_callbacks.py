"""`ZeusPowerLimitCallback` beside `ZeusBSOCallback`, and profiles shared through the service."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import requests
from fake_nvml import FakeDriver, FakeGpu
from gpu_programs import DriversClock, EachLimit, GpuNet, ManyBatches, power, zeus_warnings
from lightning.pytorch.cli import LightningCLI
from programs import Net, new_job, trainer, trials, zeus
from records import job_spec
from service_process import ServiceProcess, free_port
from waiting import LIMIT_S

from zeus_lightning import ZeusConfigError, ZeusTrialFailed
from zeus_lightning.client import BSOClient


def run(*callbacks: Any, gpu: FakeGpu, **arguments: Any) -> GpuNet:
    net = GpuNet(gpu)
    trainer(*callbacks, **arguments).fit(net, ManyBatches())
    return net


def profiles(url: str, job_id: str) -> list[dict[str, Any]]:
    answer = requests.get(f"{url}/api/v1/jobs/{job_id}/power-profiles", timeout=LIMIT_S)
    assert answer.status_code == 200
    return answer.json()["profiles"]


@pytest.mark.parametrize("power_first", [True, False])
def test_in_either_order_the_profile_is_of_the_jobs_eta_and_of_the_batch_size_injected(
    service: ServiceProcess, gpu: FakeGpu, gpu_meter: DriversClock, power_first: bool
) -> None:
    bso = zeus(service.url, eta_knob=1.0, batch_sizes=[16], default_batch_size=16)
    limit = power(meter=gpu_meter)
    net = run(*((limit, bso) if power_first else (bso, limit)), gpu=gpu)
    assert net.batch_lengths == {16}
    assert bso.outcome == "converged"
    (profile,) = profiles(service.url, bso.job.job_id)
    assert profile == limit.profile.to_json() | {"measured_at": profile["measured_at"]}
    assert (profile["batch_size"], profile["eta_knob"], profile["chosen_w"]) == (16, 1.0, 100)
    assert net.limits_w[-1] == 100


def test_the_next_recurrence_sets_the_stored_optimum_from_its_first_step(
    service: ServiceProcess,
    gpu: FakeGpu,
    gpu_meter: DriversClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = new_job()
    fixed = {"job_id": job, "batch_sizes": [8], "default_batch_size": 8, "meter": gpu_meter}
    for selector, profiled, limit_w in (
        (EachLimit(), True, 225),
        ("zeus-cost", False, 225),
        ("time", False, 300),
    ):
        callback = power(meter=gpu_meter, selector=selector)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            net = run(zeus(service.url, **fixed), callback, gpu=gpu)
        assert (callback.profiled, callback.limit_w) == (profiled, limit_w)
        assert (set(net.limits_w) == {limit_w}) != profiled
        assert "ended as converged" in caplog.text  # and whether the trial paid for measuring
    run(zeus(service.url, **fixed), gpu=gpu)
    # reports carry the current limit: at the end, the one that the host's owner has set
    current_w = [trial["power_limit_w"] for trial in trials(service.url, job)]
    assert current_w[1:] == [225, 300, 250]
    assert {trial["default_power_limit_w"] for trial in trials(service.url, job)} == {300}


def test_alone_it_shares_profiles_in_the_job_of_the_environment(
    service: ServiceProcess,
    gpu: FakeGpu,
    gpu_meter: DriversClock,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    job = new_job()
    monkeypatch.setenv("ZEUS_SERVER_URL", service.url)
    BSOClient(service.url).register_job(job_spec(job_id=job))
    run(power(meter=gpu_meter, step_w=100), gpu=gpu, max_epochs=1)  # no job: it shares nothing
    monkeypatch.setenv("ZEUS_JOB_ID", job)
    callbacks = [power(meter=gpu_meter) for _ in range(2)]
    for callback in callbacks:
        net = run(callback, gpu=gpu, max_epochs=1)
    assert [callback.profiled for callback in callbacks] == [True, False]
    assert set(net.limits_w) == {225}
    assert zeus_warnings(recwarn) == []


def test_without_the_job_there_are_warnings_and_the_limit_is_found(
    service: ServiceProcess, gpu: FakeGpu, gpu_meter: DriversClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_SERVER_URL", service.url)
    monkeypatch.setenv("ZEUS_JOB_ID", "nobody-registered-this")
    callback = power(meter=gpu_meter)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        net = run(callback, gpu=gpu, max_epochs=1)
    assert callback.limit_w == net.limits_w[-1] == 225
    messages = zeus_warnings(warned)
    assert len(messages) == 2
    assert "cannot fetch power profiles, so this run uses none: " in messages[0]
    assert "cannot send the power profile, so later runs may measure again: " in messages[1]


def test_a_run_without_the_service_trains_and_profiles_where_that_is_allowed(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    bso = zeus(f"http://127.0.0.1:{free_port()}", require_service=False, eta_knob=0.0)
    callback = power(meter=gpu_meter)
    with pytest.warns(UserWarning, match="training without it"):
        run(bso, callback, gpu=gpu, max_epochs=1)
    assert callback.limit_w == 300  # eta 0: the fastest


def test_an_error_of_either_ends_the_trial_and_restores_the_limit(
    service: ServiceProcess, gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    for order, outcome in ((1, "withdrawn"), (-1, None)):
        bso, limit = zeus(service.url, beta_knob=float("inf")), power(meter=gpu_meter)
        with pytest.raises(ZeusTrialFailed):
            trainer(*[bso, limit][::order], max_epochs=2).fit(GpuNet(gpu), ManyBatches())
        assert gpu.limit_mw == 250_000
        bso, limit = zeus(service.url), power(meter=gpu_meter, step_w=1000)
        with pytest.raises(ZeusConfigError, match="step_w"):
            trainer(*[bso, limit][::order]).fit(GpuNet(gpu), ManyBatches())
        assert bso.outcome == outcome  # None: the other one's error came before the trial
        assert gpu.limit_mw == 250_000


def test_lightning_cli_builds_all_from_a_config_and_again_from_the_one_that_it_saves(
    service: ServiceProcess,
    fake_gpus: FakeDriver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake_gpus.gpus[0].set_load(1)
    config = Path(__file__).with_name("both_callbacks.yaml")
    monkeypatch.setenv("ZEUS_SERVER_URL", service.url)
    monkeypatch.setenv("ZEUS_JOB_ID", new_job())
    monkeypatch.chdir(tmp_path)
    LightningCLI(Net, ManyBatches, args=["fit", f"--config={config}"])
    assert "* chosen by max-slowdown:1.5" in caplog.text
    assert "ended as converged" in caplog.text
    assert "the fit used" in caplog.text
    assert (tmp_path / "profile.json").exists()
    assert fake_gpus.gpus[0].limit_mw == 300_000
    again = {"save_config_kwargs": {"overwrite": True}}
    cli = LightningCLI(Net, ManyBatches, args=["fit", "--config=config.yaml"], **again)
    bso, limit, energy, *_ = cli.trainer.callbacks
    assert (bso.outcome, limit.profiled) == ("converged", False)
    assert (bso.job.policy, bso.job.seed, bso.job.beta_knob) == ("zeus", 7, None)
    assert energy.spent.energy_j > 0
