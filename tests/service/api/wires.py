"""Clients of both wires, and what they send."""

from __future__ import annotations

import json
import re
from typing import Any

import requests
from waiting import LIMIT_S


class Api:
    """Requests to `/api/v1`; those of a trial send the generation of its latest start."""

    def __init__(self, url: str, **headers: str) -> None:
        self.root = url
        self.session = requests.Session()
        self.session.headers.update(headers)
        self._generations: dict[str, str] = {}
        """By the path of a trial."""

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> requests.Response:
        if body is not None:
            more["json"] = body
        more = {"params": self.generation(path), **more}
        url = f"{self.root}/api/v1{path}"
        answer = self.session.request(method, url, timeout=LIMIT_S, **more)
        if method == "POST" and path.endswith("/trials") and answer.ok:
            start = answer.json()
            self._generations[f"{path}/{start['trial_number']}"] = start["generation"]
        return answer

    def generation(self, path: str) -> dict[str, str]:
        """The parameter for a path of a trial; a random one if it was not started here."""
        trial = re.match(r"/jobs/[^/]+/trials/\d+", path)
        return {"generation": self._generations.get(trial[0], "unknown")} if trial else {}

    def raw(self, path: str, body: str | bytes) -> requests.Response:
        """A body that is not made from JSON, on a connection of its own."""
        headers = {"Content-Type": "application/json"}
        url = f"{self.root}/api/v1{path}"
        return requests.post(
            url, body, headers=headers, params=self.generation(path), timeout=LIMIT_S
        )


def report(sequence: int = 1, **changes: Any) -> dict[str, Any]:
    figures = {"epoch": sequence, "time_s": 10.0 * sequence, "energy_j": 500.0 * sequence}
    return {"sequence": sequence, "metric": 0.5, **figures, **changes}


def problem(response: requests.Response, status: int, code: str) -> dict[str, Any]:
    """Check that a response is a problem (RFC 9457), and return it."""
    body: dict[str, Any] = response.json()
    assert response.headers["Content-Type"] == "application/problem+json"
    assert (response.status_code, body["status"], body["code"]) == (status, status, code), body
    assert body["detail"]
    return body


class Wire:
    """Requests as Zeus's client sends them: bodies without a Content-Type, no kept connection."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> requests.Response:
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        return requests.request(method, f"{self.url}{path}", data=data, timeout=LIMIT_S, **more)

    def start(self, job_id: str) -> dict[str, Any]:
        response = self("GET", "/jobs/batch_size", params={"job_id": job_id})
        assert response.status_code == 200, response.text
        trial: dict[str, Any] = response.json()
        return trial

    def outcomes(self, job_id: str) -> list[str | None]:
        trials = self("GET", f"/api/v1/jobs/{job_id}/trials").json()["trials"]
        return [trial["outcome"] for trial in trials]


def zeus_job(**changes: Any) -> dict[str, Any]:
    """A job as Zeus's client describes it, with changes."""
    return {
        "job_id": "zeus-job",
        "job_id_prefix": "zeus",
        "batch_sizes": [8, 16, 32],
        "default_batch_size": 16,
        "max_epochs": 10,
        "max_power": 100.0,
        "number_of_gpus": 1,
        "gpu_model": "Fake GPU",
        **changes,
    }


def result(trial: dict[str, Any], epoch: int = 1, **changes: Any) -> dict[str, Any]:
    figures = {"time": 10.0 * epoch, "energy": 500.0 * epoch, "metric": 0.1}
    return {**trial, "current_epoch": epoch, **figures, **changes}


def error(response: requests.Response, status: int) -> str:
    """Check that a response is an error in Zeus's form, and return its message."""
    body = response.json()
    assert (response.status_code, set(body)) == (status, {"message"}), response.text
    assert response.headers["Content-Type"] == "application/json"
    message: str = body["message"]
    assert message
    return message
