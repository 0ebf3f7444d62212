"""Files for programs: the schema of the answers, the OpenAPI document of the page's API, the list of pages for models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tools.docs.reference_answers import answers_schema, document_name, llms_page, openapi

from gpuwise.cli.app import COMMANDS, EXIT_CODES

DOCS = Path(__file__).parents[2] / "docs"
OTHERWISE = {"/api/ask/{name}", "/api/live", "/api/capture", "/api/own", "/api/moment"}
"""Addresses that only the pages themselves use, and the one that stands for every question."""


def test_schema_is_one_and_has_every_command_with_a_document() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = answers_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    names = {document_name(name) for name, *_ in COMMANDS}
    missing = {name.removeprefix("gpuwise-") for name in names - schema["$defs"].keys()}
    assert missing == {"ui", "mcp"}, "add a call of it to tests/test_interface.py"
    refs = set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(schema)))
    assert refs <= schema["$defs"].keys()


def test_openapi_has_every_address_and_question() -> None:
    pytest.importorskip("starlette")
    from gpuwise.ui.application import application
    from gpuwise.ui.questions import QUESTIONS
    from gpuwise.ui.workers import Workers

    document = openapi()
    served = {route.path for route in application(Workers(), DOCS).routes if route.path.startswith("/api/")}  # type: ignore[attr-defined]
    described = {path for path in document["paths"] if not path.startswith("/api/ask/")}
    assert served - OTHERWISE == described
    assert {path.removeprefix("/api/ask/") for path in document["paths"] if path.startswith("/api/ask/")} == set(QUESTIONS)
    fit = document["paths"]["/api/ask/fit"]["get"]["parameters"]
    assert {p["name"] for p in fit if p.get("required")} == {"model", "on"}
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(document)


def test_pages_of_llms_txt_are_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", llms_page())
    assert len(links) > 60 and [link for link in links if not (DOCS / link).is_file()] == []


def test_exit_codes_are_told_once() -> None:
    assert [code for code, _ in EXIT_CODES][:3] == ["0", "1", "2"]
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    assert all(f"| {code} | {words} |" in page for code, words in EXIT_CODES)
