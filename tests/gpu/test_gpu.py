"""On a real GPU: the meter's joules, the right device, a whole trial. Run them with `-m gpu -s`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_zeusd import FakeZeusd
from service_process import ServiceProcess

pytestmark = pytest.mark.gpu
SCRIPT = Path(__file__).with_name("on_gpu.py")
NO_GPU = "needs an NVIDIA GPU, its driver, and a build of torch that uses it"


def on_gpu(*arguments: str, **env: str) -> dict[str, Any]:
    """What the script prints, in a process that sees the real driver."""
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    print(result.stdout)
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module", autouse=True)
def gpus() -> int:
    """How many there are; none: these tests are skipped."""
    program = "import torch; print(torch.cuda.device_count())"
    count = int(subprocess.check_output([sys.executable, "-c", program], text=True))
    if count == 0:
        pytest.skip(NO_GPU)
    return count


def test_a_minute_of_load_counts_what_sampled_power_adds_up_to() -> None:
    found = on_gpu("energy", "60")
    assert found["meter"] == "nvml"
    assert found["meter_j"] == pytest.approx(found["integral_j"], rel=0.03)


def test_the_gpu_behind_cuda_visible_devices_is_the_one_measured(gpus: int) -> None:
    for index in range(gpus):
        found = on_gpu("visible", CUDA_VISIBLE_DEVICES=str(index), CUDA_DEVICE_ORDER="PCI_BUS_ID")
        assert found["devices"] == [found["known"][index]]
        assert found["torch"] in found["devices"][0]


def test_gpu_and_packages_are_counted_together() -> None:
    found = on_gpu("combined", "10")
    if "unreadable" in found:
        pytest.skip(found["unreadable"])
    assert found["of_cpus"] > 0
    assert found["joules"] - found["of_cpus"] > 10 * found["seconds"]  # the GPU, in watts


def test_the_daemons_number_of_each_gpu_is_found_by_its_energy_and_its_limit_set(
    socket_path: str,
) -> None:
    on_this_driver = SimpleNamespace(env=dict(os.environ))
    with FakeZeusd(on_this_driver, socket_path):  # the protocol is the test's, the driver is real
        found = on_gpu("zeusd", socket_path)
    if "refused" in found:
        pytest.skip(found["refused"])
    assert [each["zeusd_id"] for each in found["gpus"]] == [each["index"] for each in found["gpus"]]
    assert all(each["before_mw"] == each["after_mw"] for each in found["gpus"])


def test_a_whole_trial_is_measured_by_nvml(service: ServiceProcess) -> None:
    found = on_gpu("trial", service.url)
    assert found["outcome"] == "converged"
    assert found["hardware"]["meter"] == "nvml"
    assert found["report"]["energy_j"] > 10 * found["report"]["time_s"]  # watts, at the very least
    limit_w = found["hardware"]["max_power_w"]
    assert found["report"]["energy_j"] < limit_w * found["report"]["time_s"]
