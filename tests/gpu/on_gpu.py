"""What the tests on a real GPU run, each in a process of its own; prints one JSON object.

In the tests' own process the fake driver may have been loaded. No setting of the GPU is changed.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import pynvml
import torch

from zeus_lightning.errors import ZeusMeterError, ZeusPowerError
from zeus_lightning.meters import open_meter
from zeus_lightning.power.limits import GpuLimit
from zeus_lightning.zeusd import Zeusd


def work(seconds: float) -> None:
    """Multiply matrices for so long, with pauses, so that the power changes."""
    matrix = torch.randn(4096, 4096, device="cuda")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        burst = time.monotonic() + 3
        while time.monotonic() < burst:
            for _ in range(20):
                matrix = torch.nn.functional.normalize(matrix @ matrix)
            torch.cuda.synchronize()
        time.sleep(1)


def energy(seconds: str) -> dict[str, Any]:
    """The meter's joules, and the integral of sampled power over the same time."""
    meter = open_meter("auto", torch.device("cuda", 0))
    handle = pynvml.nvmlDeviceGetHandleByUUID(meter.devices[0])
    integral_j, over = 0.0, threading.Event()

    def sample() -> None:
        nonlocal integral_j
        before_s, before_w = time.monotonic(), pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        while not over.wait(0.01):
            now_s, now_w = time.monotonic(), pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3
            integral_j += (now_s - before_s) * (now_w + before_w) / 2
            before_s, before_w = now_s, now_w

    work(3)  # warm
    sampler = threading.Thread(target=sample)
    began = meter.read()
    sampler.start()
    work(float(seconds))
    spent = meter.read() - began
    over.set()
    sampler.join()
    return {
        "meter": meter.name,
        "meter_j": spent.energy_j,
        "integral_j": integral_j,
        "seconds": spent.time_s,
        "gpu": meter.device_model,
        "driver": pynvml.nvmlSystemGetDriverVersion(),
    }


def visible() -> dict[str, Any]:
    """The GPU that the meter finds for `cuda:0`, as torch and as NVML know it."""
    meter = open_meter("auto", torch.device("cuda", 0))
    pynvml.nvmlInit()
    return {
        "devices": list(meter.devices),
        "torch": str(torch.cuda.get_device_properties(0).uuid),
        "known": [
            pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(pynvml.nvmlDeviceGetCount())
        ],
    }


def combined(seconds: str) -> dict[str, Any]:
    """The joules of the GPU and of the host's CPU packages, where these can be read."""
    try:
        meter = open_meter("nvml+rapl", torch.device("cuda", 0))
    except ZeusMeterError as error:
        return {"unreadable": error.message}
    began = meter.read()
    work(float(seconds))
    spent = meter.read() - began
    return {"joules": spent.energy_j, "of_cpus": spent.cpu_energy_j, "seconds": spent.time_s}


def zeusd(address: str) -> dict[str, Any]:
    """Set the limit in force again through a daemon, for each GPU; nothing changes."""
    pynvml.nvmlInit()
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        limit = GpuLimit(index, Zeusd(address))
        before_mw = limit.read_mw()
        try:
            limit.check_permission()
        except ZeusPowerError as error:
            return {"refused": error.message}
        found.append(
            {
                "index": index,
                "zeusd_id": limit._zeusd_id,
                "before_mw": before_mw,
                "after_mw": limit.read_mw(),
            }
        )
    return {"gpus": found}


def trial(url: str) -> dict[str, Any]:
    """A whole trial on the GPU."""
    from programs import Data, Net, Steps, trainer, trials, zeus

    class Busy(Steps):
        def on_train_batch_end(self, *args: Any) -> None:
            super().on_train_batch_end(*args)
            work(0.1)

    callback = zeus(url, meter="auto")
    trainer(callback, Busy(), accelerator="gpu", devices=1).fit(Net(), Data())
    assert callback.last_report is not None
    assert callback.job is not None
    return {
        "outcome": callback.outcome,
        "hardware": trials(url, callback.job.job_id)[0]["hardware"],
        "report": callback.last_report.to_json(),
    }


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps(globals()[name](*arguments)))
