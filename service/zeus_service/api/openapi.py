"""`/openapi.json`, completed with what APIFlask does not know: errors, links, headers, examples."""

from __future__ import annotations

from typing import Any

from apiflask import APIFlask

from zeus_service.api.auth import READING
from zeus_service.api.body import MAX_BODY_BYTES
from zeus_service.api.request_log import REQUEST_ID_PATTERN
from zeus_service.api.v1 import IDEMPOTENCY_KEY_PATTERN, v1
from zeus_service.policies import POLICIES
from zeus_service.spec import MAX_INTEGER, JobSpec

_ERRORS = {
    400: ("malformed", "The body is not a JSON object."),
    401: ("unauthorized", "No token of this service."),
    403: ("forbidden", "This token may only read."),
    404: ("not_found", "No such job or trial, or an id that can be none."),
    405: ("method_not_allowed", "A number in the path is out of range."),
    413: ("too_large", f"The body is longer than {MAX_BODY_BYTES} bytes."),
    415: ("unsupported_media_type", "The body is not declared as application/json."),
    422: ("invalid", "A field, parameter or header has no valid value; `errors` says which."),
    503: ("unavailable", "The database cannot be used now; try again."),
}
_CONFLICTS = {
    "register_job": {"job_conflict": "Known with another configuration: see `differences`."},
    "delete_job": {"job_busy": "It has running trials."},
    "start_trial": {
        "key_conflict": "The key was used for another job.",
        "no_batch_size_left": "Every batch size has failed.",
    },
    "report": {
        "report_conflict": "The sequence number was used with other figures, or is behind.",
        "trial_finished": "The trial has ended: see `outcome`.",
    },
    "heartbeat": {"trial_finished": "The trial has ended: see `outcome`."},
    "end_trial": {"trial_finished": "The trial has ended otherwise: see `outcome`."},
}

_JOB = {"job_id": "$response.body#/job_id"}
_TRIAL = {**_JOB, "trial_number": "$response.body#/trial_number"}
_SAME_TRIAL = {
    "job_id": "$request.path.job_id",
    "trial_number": "$request.path.trial_number",
}
_LINKS: dict[str, dict[str, dict[str, Any]]] = {
    "register_job": {"get_job": _JOB, "start_trial": _JOB},
    "start_trial": {"report": _TRIAL, "heartbeat": _TRIAL, "end_trial": _TRIAL},
    "report": {"list_trials": {"job_id": "$request.path.job_id"}, "heartbeat": _SAME_TRIAL},
    "end_trial": {"delete_job": {**_JOB, "force": "true"}},
}

_PROBLEM = {
    "type": "object",
    "description": "What went wrong (RFC 9457). `code` is for programs, `detail` for people.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string"},
        "code": {"type": "string"},
    },
}
_PATH_SCHEMAS: dict[str, Any] = {
    "job_id": {
        key: JobSpec.model_json_schema()["properties"]["job_id"][key]
        for key in ("type", "maxLength", "pattern")
    },
    "trial_number": {"type": "integer", "minimum": 1, "maximum": MAX_INTEGER},
    "batch_size": {"type": "integer", "minimum": 1, "maximum": MAX_INTEGER},
}
_EXAMPLES: dict[str, dict[str, Any]] = {
    "JobSpec": {
        "job_id": "mnist-nightly",
        "batch_sizes": [32, 64, 128],
        "default_batch_size": 64,
        "target_metric": 0.98,
        "monitor": "val_acc",
        "max_epochs": 20,
        "max_power_w": 300.0,
        "num_devices": 1,
        "device_model": "NVIDIA A40",
        "meter": "nvml",
    },
    "Report": {"sequence": 1, "epoch": 1, "time_s": 61.2, "energy_j": 9873.5, "metric": 0.91},
    "TrialEnd": {"outcome": "out_of_memory", "reason": "OutOfMemoryError on rank 1"},
    "Empty": {},
}
_REQUEST_ID = {
    "description": "Of this request: in the log, too.",
    "required": True,
    "schema": {"type": "string", "pattern": f"^{REQUEST_ID_PATTERN}$"},
}


def set_up_openapi(app: APIFlask) -> None:
    """Have `/openapi.json` completed, once, when it is first asked for."""
    app.config["OPENAPI_VERSION"] = "3.1.0"
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
    schemas["JobSpec"]["properties"]["policy"] = {"enum": [*sorted(POLICIES), None]}
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            for prefix in (f"{method}_v1_", f"{method}_health_"):
                operation["operationId"] = operation["operationId"].removeprefix(prefix)
            if path.startswith(str(v1.url_prefix)):
                _complete_route(method, operation)
    health = {path: spec["paths"][path]["get"] for path in ("/healthz", "/readyz", "/metrics")}
    health["/readyz"]["responses"]["503"] = _problem(503)
    metrics = health["/metrics"]
    metrics["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    metrics["responses"]["401"] = _problem(401)
    metrics["security"] = [{"bearer": []}]
    for operation in health.values():
        _add_request_id(operation)
    return spec


def _complete_route(method: str, operation: dict[str, Any]) -> None:
    name, responses = operation["operationId"], operation["responses"]
    operation["security"] = [{"bearer": []}]
    if {"200", "201"} <= responses.keys():
        responses["200"]["content"] = responses["201"]["content"]
    for success in ("200", "201"):
        if success in responses and name in _LINKS:
            responses[success]["links"] = {
                target: {"operationId": target, "parameters": parameters}
                for target, parameters in _LINKS[name].items()
            }

    statuses = {401, 503}
    if method.upper() not in READING:
        statuses.add(403)
    parameters = operation["parameters"]
    for parameter in parameters:
        statuses.add(404 if parameter["in"] == "path" else 422)
        parameter["schema"] = _PATH_SCHEMAS.get(parameter["name"], parameter["schema"])
        if parameter["name"] == "batch_size":
            statuses.add(405)  # Werkzeug's answer, where other methods have the same path
    if "requestBody" in operation:
        statuses |= {400, 413, 415, 422}
        operation["requestBody"]["required"] = True
    for status in sorted(statuses):
        responses[str(status)] = _problem(status)
    if name in _CONFLICTS:
        responses["409"] = _problems(409, _CONFLICTS[name])
    if name == "start_trial":
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "The same key again gets the same trial again.",
                "schema": {"type": "string", "pattern": f"^{IDEMPOTENCY_KEY_PATTERN}$"},
            }
        )
    _add_request_id(operation)


def _add_request_id(operation: dict[str, Any]) -> None:
    operation["parameters"].append(
        {
            "name": "X-Request-ID",
            "in": "header",
            "description": f"Given back if it matches `{REQUEST_ID_PATTERN}`, else replaced.",
            "schema": {"type": "string"},
        }
    )
    for response in operation["responses"].values():
        response.setdefault("headers", {})["X-Request-ID"] = _REQUEST_ID


def _problem(status: int) -> dict[str, Any]:
    code, description = _ERRORS[status]
    response = _problems(status, {code: description})
    if status == 401:
        response["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return response


def _problems(status: int, codes: dict[str, str]) -> dict[str, Any]:
    exact = {"status": {"const": status}, "code": {"enum": list(codes)}}
    schema = {"allOf": [{"$ref": "#/components/schemas/Problem"}, {"properties": exact}]}
    return {
        "description": " ".join(f"`{code}`: {text}" for code, text in codes.items()),
        "content": {"application/problem+json": {"schema": schema}},
    }
