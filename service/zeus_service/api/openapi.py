"""`/openapi.json`, completed with what APIFlask does not know: common errors and examples."""

from typing import Any

from apiflask import APIFlask

from zeus_service.api.access import READING
from zeus_service.api.problems import HTTP_ERRORS, problem_schema
from zeus_service.api.v1 import IDEMPOTENCY_KEY_PATTERN, JOB_ID_IN_PATH, v1
from zeus_service.bandit.registry import POLICIES
from zeus_service.bandit.spec import MAX_INTEGER
from zeus_service.errors import BrokenJob

_PROBLEM = {
    "type": "object",
    "description": "An error (RFC 9457). `code` is for programs, `detail` for people.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string"},
        "code": {"type": "string"},
    },
}
_POSITIVE = {"type": "integer", "minimum": 1, "maximum": MAX_INTEGER}
_PATH_SCHEMAS: dict[str, Any] = {
    "job_id": {"type": "string", "pattern": f"^{JOB_ID_IN_PATH}$"},
    "trial_number": _POSITIVE,
    "batch_size": _POSITIVE,
}
_EXAMPLES: dict[str, dict[str, Any]] = {
    "Registration": {
        "job_id": "mnist-nightly",
        "batch_sizes": [32, 64, 128],
        "default_batch_size": 64,
        "target_metric": 0.98,
        "monitor": "val_acc",
        "max_epochs": 20,
    },
    "NewTrial": {
        "hardware": {
            "device_model": "NVIDIA A40",
            "num_devices": 1,
            "max_power_w": 300.0,
            "meter": "nvml",
        }
    },
    "Report": {"sequence": 1, "epoch": 1, "time_s": 61.2, "energy_j": 9873.5, "metric": 0.91},
    "TrialEnd": {"outcome": "out_of_memory", "reason": "OutOfMemoryError on rank 1"},
    "Empty": {},
}
_IDEMPOTENCY_KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Repeating a key returns the same trial.",
    "schema": {"type": "string", "pattern": f"^{IDEMPOTENCY_KEY_PATTERN}$"},
}


def set_up_openapi(app: APIFlask) -> None:
    """Complete `/openapi.json`, once, when it is first requested."""
    app.config["OPENAPI_VERSION"] = "3.1.0"
    app.config["SERVERS"] = [{"url": "/"}]  # not the name by which the first caller called it
    app.config["AUTO_OPERATION_ID"] = True
    app.config["AUTO_VALIDATION_ERROR_RESPONSE"] = False
    app.config["AUTO_404_RESPONSE"] = False
    app.spec_processor(_complete)  # type: ignore[arg-type] # a string only when it is YAML


def _complete(spec: dict[str, Any]) -> dict[str, Any]:
    components = spec["components"]
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    schemas = components["schemas"]
    schemas["Problem"] = _PROBLEM
    for name, example in _EXAMPLES.items():
        schemas[name]["examples"] = [example]
    schemas["Registration"]["properties"]["policy"] = {"enum": [*sorted(POLICIES), None]}
    spec["paths"]["/readyz"]["get"]["responses"]["503"] = _problem(503)
    metrics = spec["paths"]["/metrics"]["get"]
    metrics["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    metrics["responses"]["401"] = _problem(401)
    metrics["security"] = [{"bearer": []}]
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            for prefix in (f"{method}_v1_", f"{method}_health_"):
                operation["operationId"] = operation["operationId"].removeprefix(prefix)
            if path.startswith(str(v1.url_prefix)):
                _complete_route(method, operation)
    return spec


def _complete_route(method: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    operation["security"] = [{"bearer": []}]
    if {"200", "201"} <= responses.keys():
        responses["200"] = {**responses["201"], "description": responses["200"]["description"]}

    statuses = {401, 503}
    if method.upper() not in READING:
        statuses.add(403)
    parameters = operation["parameters"]
    for parameter in parameters:
        statuses.add(404 if parameter["in"] == "path" else 422)
        parameter["schema"] = _PATH_SCHEMAS.get(parameter["name"], parameter["schema"])
        if parameter["name"] == "batch_size":
            statuses.add(405)  # Werkzeug's answer if other methods have the same path
    if "requestBody" in operation:
        statuses |= {400, 413, 415, 422}
        operation["requestBody"]["required"] = True
    for status in sorted(statuses):
        responses[str(status)] = _problem(status)
    codes = dict([HTTP_ERRORS[500], (BrokenJob.code, str(BrokenJob.__doc__))])
    responses["500"] = problem_schema(500, codes)
    if operation["operationId"] == "start_trial":
        parameters.append(_IDEMPOTENCY_KEY_PARAMETER)


def _problem(status: int) -> dict[str, Any]:
    code, description = HTTP_ERRORS[status]
    response = problem_schema(status, {code: description})
    if status == 401:
        response["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return response
