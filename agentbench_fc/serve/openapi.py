"""The OpenAPI document of a server, made of its route table; the committed copies are docs/openapi-*.json.

    python -m agentbench_fc.serve.openapi docs      # writes both

Not here: the routes (routes.py) and bodies (schema.py).
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from agentbench_fc.serve.faults import STATUSES
from agentbench_fc.serve.http import Route

REF = "#/components/schemas/{model}"
ERROR_STATUSES = sorted({*STATUSES.values(), 405, 431} - {500})
_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message", "retryable", "fault"],
            "additionalProperties": False,
            "properties": {
                "type": {"type": "string", "description": "Name of the exception that the client raises."},
                "message": {"type": "string", "description": "What happened [where]. What to do."},
                "retryable": {"type": "boolean", "description": "The same request may succeed later."},
                "fault": {"enum": ["client", "task", "environment", "worker"]},
            },
        }
    },
}


def document(routes: Iterable[Route], role: str) -> dict[str, Any]:
    """The document of a server with these routes."""
    listed = [route for route in routes if route.path != "/openapi.json"]
    models = [model for route in listed for model in (*_models(route.takes), *_models(route.gives))]
    _, schemas = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)], ref_template=REF, by_alias=True
    )
    components = dict(sorted(schemas.get("$defs", {}).items()))
    components["Error"] = _ERROR
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"agentbench-fc {role}",
            "version": "1",
            "description": "Wire v1. Every error has the same shape; none of a caller's input makes a 500.",
        },
        "paths": {route.path: {route.method.lower(): _operation(route)} for route in listed},
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.path.strip("/").replace("/", "_").replace(".", "_"),
        "summary": route.summary,
        "tags": ["internal" if route.internal else "v1" if route.path.startswith("/v1") else "operation"],
        "responses": {"200": _answer(route)},
    }
    operation["responses"] |= {
        str(status): {"description": _names(status), "content": {"application/json": {"schema": _ref("Error")}}}
        for status in ERROR_STATUSES
    }
    if not route.open:
        operation["security"] = [{"bearer": []}, {}]
    if route.takes is not None and route.method == "POST":
        content = {"application/json": {"schema": _ref(route.takes.__name__)}}
        operation["requestBody"] = {"required": True, "content": content}
    elif route.takes is not None:
        operation["parameters"] = _parameters(route.takes)
    return operation


def _answer(route: Route) -> dict[str, Any]:
    if route.path == "/metrics":
        return {"description": "Prometheus's text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
    refs = [_ref(model.__name__) for model in _models(route.gives)]
    schema = {"anyOf": refs} if len(refs) > 1 else refs[0] if refs else {"type": "object"}
    return {"description": "OK", "content": {"application/json": {"schema": schema}}}


def _models(given: type[BaseModel] | UnionType | None) -> tuple[type[BaseModel], ...]:
    """Those of a union, the one, or none."""
    return get_args(given) if isinstance(given, UnionType) else () if given is None else (given,)


def _parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    schema = model.model_json_schema(ref_template=REF)
    out = []
    for name, part in schema["properties"].items():
        place = {"name": name, "in": "query", "required": name in schema.get("required", ())}
        if part.get("type") == "object":  # JSON within the query
            out.append({**place, "content": {"application/json": {"schema": part}}})
        else:
            out.append({**place, "schema": part})
    return out


def _names(status: int) -> str:
    names = [kind.__name__ for kind, its in STATUSES.items() if its == status]
    return ", ".join(names) or {405: "Another method is needed", 431: "The headers are too large"}[status]


def _ref(name: str) -> dict[str, str]:
    return {"$ref": REF.format(model=name)}


def documents() -> dict[str, dict[str, Any]]:
    """File name -> document, of both servers."""
    from agentbench_fc.serve.config import ControllerConfig, WorkerConfig
    from agentbench_fc.serve.controller import Controller
    from agentbench_fc.serve.worker import Worker

    worker, controller = Worker(WorkerConfig(tasks=("any",))), Controller(ControllerConfig())
    return {
        "openapi-worker.json": document(worker.app.routes.values(), "worker"),
        "openapi-controller.json": document(controller.app.routes.values(), "controller"),
    }


def text(value: dict[str, Any]) -> str:
    """As committed."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, value in documents().items():
        (Path(sys.argv[1]) / name).write_text(text(value), encoding="utf-8")
