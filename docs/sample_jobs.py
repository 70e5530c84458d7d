"""Jobs for pictures: synthetic workloads, run through the service's own interface, weeks ago."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import Engine, event
from zeus_service.simulation.synthetic_workloads import synthetic_workload
from zeus_service.simulation.workload import Workload

DAY_S = 86400.0
TARGET = 0.92


GPU_MODEL = "NVIDIA A100-SXM4-40GB"
SCALE = 40.0
"""How much longer an epoch takes than one of the synthetic workload: runs take hours."""
IN_FLIGHT_S = 2.5 * 3600
"""How long ago the runs in flight started."""


@dataclass(frozen=True)
class Sample:
    """A job to fill a service with.

    Args:
        job_id: Its id.
        seed: Of its workload.
        runs: How many recurrences it has had, daily.
        days_ago: When the last one was.
        running: Whether another one is in flight.
        meter: Its meter.
        fails: Whether no run ever reaches the target.
    """

    job_id: str
    seed: int
    runs: int
    days_ago: float = 0.1
    running: bool = False
    meter: str = "nvml"
    fails: bool = False


SAMPLES = (
    Sample("ads-ranking-nightly", 20, 40, running=True),
    Sample("churn-forecast", 2001, 38),
    Sample("digits-cpu", 2002, 24, meter="cpu-estimate"),
    Sample("fraud-graph", 2003, 31, days_ago=0.6),
    Sample("news-embeddings", 2004, 14, running=True),
    Sample("price-elasticity", 2005, 26, days_ago=21.0),
    Sample("speech-commands", 2006, 4),
    Sample("translation-de-en", 2007, 40, days_ago=0.3),
    Sample("vision-backbone", 2008, 6, days_ago=1.2, fails=True),
    Sample("warehouse-demand", 2009, 33),
)


def fill(app: Flask, samples: tuple[Sample, ...] = SAMPLES) -> None:
    """Register the jobs and run them, each recurrence on its own day."""
    clock = SimpleNamespace(time=time.time)

    def set_clock(connection: Any, _record: object) -> None:
        """Let SQLite's clock, by which the service stores instants, be ours."""
        connection.create_function("julianday", 1, lambda _: clock.time() / DAY_S + 2440587.5)

    event.listen(Engine, "connect", set_clock)
    for sample in samples:
        _fill(app.test_client(), sample, synthetic_workload(sample.seed), clock)
    event.remove(Engine, "connect", set_clock)


def _fill(client: FlaskClient, sample: Sample, workload: Workload, clock: SimpleNamespace) -> None:
    now = time.time()
    first = now - (sample.days_ago + sample.runs) * DAY_S
    clock.time = lambda: first
    jobs, trials = "/api/v1/jobs", f"/api/v1/jobs/{sample.job_id}/trials"
    body = {
        **workload.spec(job_id=sample.job_id).model_dump(mode="json"),
        "target_metric": TARGET,
        "monitor": "val_acc",
        "lease_s": 86400.0,
        "max_epochs": 12 if sample.fails else workload.max_epochs,
    }
    assert client.post(jobs, json=body).status_code == 201
    hardware = {**asdict(workload.hardware), "meter": sample.meter}
    hardware |= {"device_model": GPU_MODEL, "estimated": "estimate" in sample.meter}
    rng = np.random.default_rng(sample.seed)
    ended = first
    for run in range(sample.runs):
        start = max(ended, now - (sample.days_ago + sample.runs - run) * DAY_S)
        for _ in range(8):  # failed tries and the one that converges
            clock.time = lambda at=start: at
            answer = client.post(trials, json={"hardware": hardware})
            if answer.status_code != 201:
                return
            outcome, spent_s = _run(client, trials, answer.json, workload, rng, sample, clock)
            start = ended = start + spent_s + 600
            if outcome == "converged":
                break
    if sample.running:
        clock.time = lambda: now - IN_FLIGHT_S
        answer = client.post(trials, json={"hardware": hardware})
        _run(client, trials, answer.json, workload, rng, sample, clock, within_s=IN_FLIGHT_S)
    for batch_size in workload.settings:
        _put_profile(
            client, f"{jobs}/{sample.job_id}/power-profiles/{batch_size}", workload, batch_size
        )


def _run(
    client: FlaskClient,
    trials: str,
    started: dict[str, object],
    workload: Workload,
    rng: np.random.Generator,
    sample: Sample,
    clock: SimpleNamespace,
    within_s: float = math.inf,
) -> tuple[str | None, float]:
    """Report epoch by epoch until the service stops the run; its outcome, and its seconds."""
    setting = workload.settings[int(str(started["batch_size"]))]
    price = setting.price(0.5, workload.max_power_w)
    target = float(rng.choice(setting.target_epochs))
    if math.isinf(target) or sample.fails:
        target = 10.0 * workload.max_epochs
    rate = -math.log(1 - TARGET) / target
    begun = clock.time()
    for epoch in range(1, workload.max_epochs + 1):
        noise = 1 + 0.06 * rng.standard_normal()
        metric = 1 - math.exp(-rate * epoch) + 0.004 * rng.standard_normal()
        metric = max(metric, TARGET) if epoch >= target else min(metric, TARGET - 0.002)
        spent_s = SCALE * epoch * price.epoch.time_s
        if spent_s > within_s:
            return None, spent_s
        clock.time = lambda at=begun + spent_s: at
        answer = client.post(
            f"{trials}/{started['trial_number']}/reports?generation={started['generation']}",
            json={
                "sequence": epoch,
                "epoch": epoch,
                "time_s": spent_s,
                "energy_j": SCALE * epoch * price.epoch.energy_j * (1 + (noise - 1) / epoch),
                "metric": metric,
            },
        ).json
        if answer["decision"] == "stop":
            return answer["outcome"], spent_s
    return None, spent_s


def _put_profile(client: FlaskClient, path: str, workload: Workload, batch_size: int) -> None:
    setting = workload.settings[batch_size]
    points = [
        {"limit_w": int(limit), "energy_j": each.energy_j / 500, "time_s": each.time_s / 500}
        for limit, each in setting.epochs.items()
    ]
    profile = {
        "device_model": GPU_MODEL,
        "num_devices": 1,
        "batch_size": batch_size,
        "points": points,
        "chosen_w": int(setting.price(0.5, workload.max_power_w).power_limit_w),
        "selector": "zeus",
        "eta_knob": 0.5,
        "max_power_w": workload.max_power_w,
        "measured_at": "2026-01-31T12:00:00Z",
    }
    assert client.put(path, json=profile).status_code in (200, 201)
