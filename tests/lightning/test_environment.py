"""What a launcher can tell the callbacks: to choose nothing, and only measure."""

from __future__ import annotations

import pytest
import requests
from fake_nvml import FakeGpu
from gpu_programs import DriversClock, GpuNet, fit, power
from programs import Data, Net, new_job, trainer, zeus
from service_process import ServiceProcess
from waiting import LIMIT_S


def test_a_baseline_is_a_job_of_its_own_on_the_default_batch_size(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_OBSERVE", "1")
    job, chosen = new_job(), []
    for _ in range(3):
        callback = zeus(service.url, job_id=job)
        trainer(callback).fit(Net(), Data(batch_size=16))
        assert callback.trial is not None
        chosen.append(callback.trial.batch_size)
    assert chosen == [16, 16, 16]
    spec = requests.get(f"{service.url}/api/v1/jobs/{job}-baseline", timeout=LIMIT_S).json()["spec"]
    assert spec["policy"] == "default"
    assert requests.get(f"{service.url}/api/v1/jobs/{job}", timeout=LIMIT_S).status_code == 404


@pytest.mark.parametrize(("value", "limits"), [("1", {250}), ("0", None), ("", None)])
def test_a_baseline_sets_no_power_limit(
    gpu: FakeGpu,
    gpu_meter: DriversClock,
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    limits: set[int] | None,
) -> None:
    monkeypatch.setenv("ZEUS_OBSERVE", value)
    callback, net = power(meter=gpu_meter), GpuNet(gpu)
    fit(callback, net)
    assert (set(net.limits_w) == {250}) == (limits is not None)
    assert (callback.limit_w is None) == (limits is not None)
