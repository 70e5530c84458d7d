"""`/openapi.json`, completed with what APIFlask does not know: errors and tokens."""

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
