"""Many clients, several workers, one file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests
from service.jobs import spec_json
from service.test_cli import zeus_service
from service_process import ServiceProcess

CLIENTS, TRIALS = 16, 5


def test_many_clients_of_one_job_lose_nothing_and_the_history_folds(tmp_path: Path) -> None:
    def client(number: int) -> list[int]:
        started = []
        with requests.Session() as session:
            for _ in range(TRIALS):
                response = session.post(f"{trials}", json={}, timeout=60)
                response.raise_for_status()
                trial = response.json()["trial_number"]
                started.append(trial)
                for sequence in (1, 2):
                    figures = {"epoch": sequence, "time_s": 1.0, "energy_j": 100.0 + number}
                    body = {"sequence": sequence, "metric": sequence / 2, **figures}
                    path = f"{trials}/{trial}/reports"
                    session.post(path, json=body, timeout=60).raise_for_status()
        return started

    with ServiceProcess(tmp_path, workers=2) as service:
        jobs = f"{service.url}/api/v1/jobs"
        trials = f"{jobs}/job/trials"
        requests.post(jobs, json=spec_json(beta_knob=None), timeout=5).raise_for_status()
        with ThreadPoolExecutor(CLIENTS) as pool:
            numbers = [number for found in pool.map(client, range(CLIENTS)) for number in found]
        assert sorted(numbers) == list(range(1, CLIENTS * TRIALS + 1))
        outcomes = requests.get(f"{jobs}/job", timeout=5).json()["outcomes"]
        assert outcomes == {"converged": CLIENTS * TRIALS}

    assert "was right" in zeus_service("rebuild", "job", database_url=service.database_url).stdout


def test_killing_the_service_loses_no_answered_report(own_service: ServiceProcess) -> None:
    jobs = f"{own_service.url}/api/v1/jobs"
    requests.post(jobs, json=spec_json(), timeout=5).raise_for_status()
    requests.post(f"{jobs}/job/trials", json={}, timeout=5).raise_for_status()
    report = {"sequence": 1, "epoch": 1, "time_s": 1.0, "energy_j": 100.0, "metric": 0.95}
    answer = requests.post(f"{jobs}/job/trials/1/reports", json=report, timeout=5).json()
    before = requests.get(f"{jobs}/job", timeout=5).json()
    own_service.kill()
    own_service.start()
    assert requests.get(f"{jobs}/job", timeout=5).json() == before
    again = requests.post(f"{jobs}/job/trials/1/reports", json=report, timeout=5)
    assert again.json() == answer
