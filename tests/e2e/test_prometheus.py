"""Prometheus scrapes a running service: the board's queries and the alerts have data in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from running import Running
from service.jobs import HARDWARE, START, let_leases_expire, spec_json
from service_process import ServiceProcess, free_port
from waiting import LIMIT_S, wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
BOARD = DEPLOY / "grafana" / "zeus-service.json"
COMPARISON = r" [<>] [\d.]+$"

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="no Prometheus: install it (Debian's package `prometheus`)",
)


class Prometheus(Running):
    """Prometheus with the alerts, on a free port, scraping a service twice a second."""

    def __init__(self, folder: Path, service: ServiceProcess) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.service_url = service.url
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [
                {
                    "job_name": "zeus",
                    "static_configs": [{"targets": [service.url.removeprefix("http://")]}],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML

    def start(self) -> None:
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'tsdb'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )

    def end(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=LIMIT_S)

    def query(self, expression: str) -> list[Any]:
        """The series that an expression returns now; none while Prometheus starts."""
        try:
            response = requests.get(
                f"{self.url}/api/v1/query", {"query": expression}, timeout=LIMIT_S
            )
        except requests.ConnectionError:
            return []
        if response.status_code == 503:
            return []
        answer = response.json()
        assert answer["status"] == "success", answer
        result: list[Any] = answer["data"]["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """The alerts, with whether they could be evaluated."""
        answer = requests.get(f"{self.url}/api/v1/rules", timeout=LIMIT_S).json()
        return [rule for group in answer["data"]["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus, and a service with a job that converges, one that is lost, one exhausted."""
    folder = tmp_path_factory.mktemp("prometheus")
    rates = {"ZEUS_BSO_PRICE_PER_KWH": "0.3", "ZEUS_BSO_CARBON_INTENSITY": "400"}
    with ServiceProcess(folder, **rates) as service, Prometheus(folder, service) as started:
        load(service, "1")
        wait_until(lambda: started.query("zeus_bso_exhausted_starts_total > 0"))
        load(service, "2")  # a rate is of what has changed since a first value
        wait_until(lambda: started.query("increase(zeus_bso_exhausted_starts_total[1d]) > 0"))
        yield started


def load(service: ServiceProcess, suffix: str) -> None:
    """A small load, by way of the service's wire, on jobs whose ids end with the suffix."""

    def post(path: str, body: dict[str, Any], status: int = 201) -> Any:
        response = requests.post(f"{service.url}/api/v1{path}", json=body, timeout=LIMIT_S)
        assert response.status_code == status, response.text
        return response.json()

    def run(job_id: str, metric: float, start: dict[str, Any] = START) -> None:
        trial = post(f"/jobs/{job_id}/trials", start)
        path = f"/jobs/{job_id}/trials/{trial['trial_number']}/reports"
        report = {"sequence": 1, "epoch": 1, "time_s": 10, "energy_j": 100, "metric": metric}
        post(f"{path}?generation={trial['generation']}", report, 200)

    estimated = f"estimated-{suffix}"
    post("/jobs", spec_json(job_id=estimated))
    estimating = {**asdict(HARDWARE), "meter": "cpu-estimate", "estimated": True}
    run(estimated, metric=1.0, start={"hardware": estimating})
    good, lost, exhausted = f"good-{suffix}", f"lost-{suffix}", f"exhausted-{suffix}"
    post("/jobs", spec_json(job_id=good))
    for _ in range(3):
        run(good, metric=1.0)
    post("/jobs", spec_json(job_id=lost))
    post(f"/jobs/{lost}/trials", START)
    let_leases_expire(service.database_url)
    post(f"/jobs/{lost}/trials", START)
    post("/jobs", spec_json(job_id=exhausted, policy="default", max_epochs=1))
    for _ in range(2):
        run(exhausted, metric=0.0)
    post(f"/jobs/{exhausted}/trials", START, 409)


def queries() -> dict[str, str]:
    """The expressions of the board and of the alerts, the latter without their thresholds."""
    board = json.loads(BOARD.read_text())
    found = {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "1h")
        for panel in board["panels"]
        for target in panel["targets"]
    }
    for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]:
        assert re.search(COMPARISON, rule["expr"]), rule
        found[rule["alert"]] = re.sub(COMPARISON, "", rule["expr"])
    return found


def test_each_query_of_the_board_and_each_alert_returns_data(prometheus: Prometheus) -> None:
    asked = queries()
    assert len(asked) > 24

    def without_data() -> list[str]:
        return [
            name
            for name, expression in asked.items()
            if not any(series["value"][1] != "NaN" for series in prometheus.query(expression))
        ]

    wait_until(lambda: not without_data(), without_data)
    rules = prometheus.rules()
    assert {rule["name"] for rule in rules} <= asked.keys()
    assert len(rules) == 7

    def health() -> list[str]:
        return [rule["health"] for rule in prometheus.rules()]

    wait_until(lambda: set(health()) == {"ok"}, health)  # "unknown" before the first evaluation


@pytest.mark.parametrize(("panel", "name"), [("Energy", "energy_j"), ("Time", "time_s")])
def test_the_board_says_of_what_was_saved_the_same_as_the_service(
    prometheus: Prometheus, panel: str, name: str
) -> None:
    saved = requests.get(f"{prometheus.service_url}/api/v1/savings", timeout=LIMIT_S).json()
    assert (saved["jobs"] - saved["unknown"], saved["estimated"]) == (4, True)
    wanted = [saved["saved"][name][part] for part in ("estimate", "low", "high")]
    asked = [queries()[f"{panel} saved {letter}"] for letter in "ABC"]

    def shown() -> list[float]:
        return [float(series["value"][1]) for each in asked for series in prometheus.query(each)]

    wait_until(lambda: shown() == pytest.approx(wanted), shown)


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    tests = Path(__file__).with_name("alerts.yml")
    subprocess.run(["promtool", "test", "rules", str(tests)], check=True)


def test_the_exhausted_job_raises_its_alert(prometheus: Prometheus) -> None:
    firing = 'ALERTS{alertname="ZeusJobExhausted", alertstate="firing"}'
    wait_until(lambda: prometheus.query(firing))
