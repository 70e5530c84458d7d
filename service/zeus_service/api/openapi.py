"""`/openapi.json`, completed with what APIFlask does not know: errors, tokens and examples."""

from typing import Any

from apiflask import APIFlask

from zeus_service.api.v1 import IDEMPOTENCY_KEY_PATTERN, v1
from zeus_service.bandit.registry import POLICIES

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
_ANY_ERROR = {
    "description": "An error.",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
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
    components, paths = spec["components"], spec["paths"]
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    schemas = components["schemas"]
    schemas["Problem"] = _PROBLEM
    for name, example in _EXAMPLES.items():
        schemas[name]["examples"] = [example]
    schemas["Registration"]["properties"]["policy"] = {"enum": [*sorted(POLICIES), None]}
    text = {"text/plain": {"schema": {"type": "string"}}}
    paths["/metrics"]["get"]["responses"]["200"]["content"] = text
    trials = paths[f"{v1.url_prefix}/jobs/{{job_id}}/trials"]
    trials["post"]["parameters"].append(_IDEMPOTENCY_KEY_PARAMETER)
    for path, operations in paths.items():
        for operation in operations.values():
            responses = operation["responses"]
            responses["default"] = _ANY_ERROR
            if {"200", "201"} <= responses.keys():
                description = responses["200"]["description"]
                responses["200"] = {**responses["201"], "description": description}
            if "requestBody" in operation:
                operation["requestBody"]["required"] = True
            if path not in ("/healthz", "/readyz"):
                operation["security"] = [{"bearer": []}]
    return spec
