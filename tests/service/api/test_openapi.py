"""The OpenAPI description says what the service does, as schemathesis finds."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import jsonschema_rs
import pytest
import requests
import schemathesis
from apiflask import APIFlask
from pydantic import BaseModel
from schemathesis.generation.stateful.state_machine import StepInput, StepOutput
from service.jobs import spec_json
from service_process import BIN, ServiceProcess
from waiting import LIMIT_S
from zeus_service.api.messages import NewTrial, Registration, Report, TrialEnd

TOKEN = {"Authorization": "Bearer one-that-may-write"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("openapi")
    env = {"ZEUS_BSO_TOKEN": "one-that-may-write", "ZEUS_BSO_READ_TOKEN": "one-that-may-read"}
    with ServiceProcess(folder, workers=2, **env) as service:
        yield service


def test_every_request_gets_an_answer_that_is_described(guarded: ServiceProcess) -> None:
    """Statuses, types, schemas and headers are described, bad data and bad tokens are refused.

    Not checked: that all data the schema allows is taken. JSON Schema cannot say that
    `default_batch_size` is one of `batch_sizes`.
    """
    result = subprocess.run(
        [BIN / "schemathesis", "run", f"{guarded.url}/openapi.json", "--no-color",
         "--header=Authorization: Bearer one-that-may-write", "--phases=examples,coverage,fuzzing",
         "--generation-deterministic", "--max-examples=25", "--suppress-health-check=all",
         "--checks=all", "--exclude-checks=positive_data_acceptance"],
        env={**os.environ, "SCHEMATHESIS_HOOKS": ""},
        cwd=guarded.log.parent,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-5000:]
    routes = requests.get(f"{guarded.url}/openapi.json", timeout=LIMIT_S).json()["paths"]
    operations = sum(len(operations) for operations in routes.values())
    assert f"Tested: {operations}" in result.stdout
    assert "Traceback" not in guarded.log.read_text()


def test_every_link_leads_on(guarded: ServiceProcess) -> None:
    """Register, start, report, heartbeat, end, delete: each link reaches a 2xx 5 times."""
    schema = schemathesis.openapi.from_url(f"{guarded.url}/openapi.json")
    unlinked = ["list_jobs", "healthz", "readyz", "get_metrics"]
    unlinked += ["put_power_profile", "get_power_profile", "list_power_profiles"]
    unlinked += ["job_savings", "all_savings"]
    schema = schema.exclude(operation_id=unlinked)
    schema.config.phases.stateful.inference.algorithms = []
    schema.config.checks.ignored_auth.enabled = False  # each refusal of a token takes half a second
    schema.config.generation.modes = [schemathesis.GenerationMode.POSITIVE]
    reached: Counter[str] = Counter()

    class Machine(schema.as_state_machine()):  # type: ignore[misc]
        scenarios = itertools.count()

        def setup(self) -> None:
            self.scenario = next(self.scenarios)
            self.keys = itertools.count()
            self.sequence = itertools.count(1)

        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
            return {"headers": TOKEN}

        def before_call(self, case: schemathesis.Case) -> None:
            """One job that never ends of itself, few keys, reports in order: no conflicts."""
            match case.operation.definition.raw["operationId"]:
                case "register_job":
                    job_id = f"stateful-{self.scenario}"
                    case.body = spec_json(
                        job_id=job_id, target_metric=1e30, max_epochs=2**31 - 1, beta_knob=None
                    )
                case "start_trial":
                    key = f"{case.path_parameters['job_id']}-{next(self.keys) // 2}"
                    case.headers["Idempotency-Key"] = key
                case "report":
                    case.body["sequence"] = next(self.sequence)

        def step(self, input: StepInput) -> StepOutput:  # noqa: A002 - schemathesis' name
            output = super().step(input)
            if input.transition and input.is_applied and output.response.status_code // 100 == 2:
                reached[re.sub(r"-> \[20[01]\]", "->", input.transition.id)] += 1
            return output

    settings = hypothesis.settings(
        max_examples=20,
        stateful_step_count=20,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    paths = schema.raw_schema["paths"]
    labels = {
        operation["operationId"]: f"{method.upper()} {path}"
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    links = {
        f"{labels[operation['operationId']]} -> {name} -> {labels[link['operationId']]}"
        for operations in paths.values()
        for operation in operations.values()
        for response in operation["responses"].values()
        for name, link in response.get("links", {}).items()
    }
    assert len(links) == 8
    for _ in range(40):  # which links follow depends on the answers, so on the machine's speed
        Machine.run(settings=settings)
        if all(reached[link] >= 5 for link in links):
            break
    assert {link: reached[link] for link in links if reached[link] < 5} == {}


@pytest.mark.parametrize("model", [Registration, NewTrial, Report, TrialEnd])
def test_examples_are_valid(app: APIFlask, model: type[BaseModel]) -> None:
    assert isinstance(app.spec, dict)
    (example,) = app.spec["components"]["schemas"][model.__name__]["examples"]
    model.model_validate(example)


def test_the_description_is_valid_openapi(app: APIFlask) -> None:
    assert isinstance(app.spec, dict)
    schemathesis.openapi.from_dict(app.spec).validate()
    broken = {**app.spec, "paths": {"/x": {"get": {"responses": {"200": {"links": 1}}}}}}
    with pytest.raises(jsonschema_rs.ValidationError):
        schemathesis.openapi.from_dict(broken).validate()
