"""The reference of plan files: the fields that are read, as a table and as JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gpuwise.plan.cluster_document import PLAN_VERSION
from gpuwise.plan.plan_file import plan_schema

_ELSEWHERE = {"Architecture": "a model, as below", "System": "a system with its accelerator, in full", "Strategy": ""}


def plan_schema_page() -> str:
    """JSON Schema of plan files."""
    about = {
        "title": f"Plan file of gpuwise, version {PLAN_VERSION}",
        "description": "What `gpuwise export` and `gpuwise run` read.",
    }
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **about, **plan_schema()}
    return json.dumps(schema, indent=1) + "\n"


def plan_format() -> list[str]:
    """The section on plan files."""
    schema = plan_schema()
    lines = [
        "## Plan files",
        "",
        "What `gpuwise plan --json` prints, for `gpuwise export FILE` and `gpuwise run FILE`. These fields are read and checked; "
        "others may be anything. `cluster.hardware` is there for hardware that is not in the catalogue (`--on this`), "
        "`model.architecture` for a model that is not. The same as JSON Schema is [plan.schema.json](plan.schema.json); "
        f"`plan_version` is {PLAN_VERSION}, and rises when a field changes its meaning.",
        "",
        "| field | value | required | allowed |",
        "|---|---|---|---|",
    ]
    lines += _rows(schema["$defs"], schema["$defs"]["PlanFile"], "")
    return [*lines, ""]


def _rows(parts: Mapping[str, Any], part: Mapping[str, Any], before: str) -> Iterator[str]:
    for name, field in part["properties"].items():
        options = [o for o in field.get("anyOf", [field]) if o.get("type") != "null"]
        one = options[0]
        required = "yes" if name in part.get("required", ()) else ""
        reference = one.get("$ref", "").rpartition("/")[2]
        if words := _ELSEWHERE.get(reference):
            yield f"| `{before}{name}` | {words} | {required} | |"
        elif reference:
            yield from _rows(parts, parts[reference], f"{before}{name}.")
        else:
            yield f"| `{before}{name}` | {_kind(one)} | {required} | {_allowed(one)} |"


def _kind(field: Mapping[str, Any]) -> str:
    kinds = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "array": "names"}
    return kinds.get(field.get("type", ""), "text" if any(isinstance(v, str) for v in field.get("enum", ())) else "whole number")


def _allowed(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{v}`" for v in field["enum"])
    low, above, high = field.get("minimum"), field.get("exclusiveMinimum"), field.get("maximum")
    start = f"from {_number(low)}" if low is not None else f"above {_number(above)}" if above is not None else ""
    return f"{start} to {_number(high)}" if high is not None and start else start


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
