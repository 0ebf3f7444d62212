"""The page's API answers as its OpenAPI document says: by example, and for values that it does not allow."""

from __future__ import annotations

from typing import Any

import pytest
from tests.ui.serving import Running
from tools.docs.reference_answers import openapi

DOCUMENT = openapi()
ASKED = {
    "fit": {"model": "gpt2", "on": "4090", "for": "train"},
    "occupancy": {"on": "V100", "regs": "37", "block": "320"},
    "exercise": {},
}


def check(value: object, name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


def parameters(name: str) -> list[dict[str, Any]]:
    return DOCUMENT["paths"][f"/api/ask/{name}"]["get"]["parameters"]


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_is_as_described(server: Running, name: str) -> None:
    reply = server.get(f"/api/ask/{name}", **ASKED[name])
    assert reply.status == 200
    check(reply.json, "Answer")


@pytest.mark.parametrize("name", ["fit", "pick", "capacity", "occupancy", "exercise", "doctor"])
def test_what_is_not_described_is_refused(server: Running, name: str) -> None:
    wrong = [{"nothing": "1"}]
    wrong += [{p["name"]: "neither"} for p in parameters(name) if "enum" in p["schema"] or "pattern" in p["schema"]][:3]
    wrong += [{p["name"]: "x" * (p["schema"]["maxLength"] + 1)} for p in parameters(name)][:1]
    for query in wrong:
        reply = server.get(f"/api/ask/{name}", **query)
        assert reply.status == 422, (name, query, reply.text[:200])
        check(reply.json, "Refusal")


@pytest.mark.parametrize("path", ["/api/names", "/api/pages", "/api/files", "/api/state"])
def test_other_addresses_answer(server: Running, path: str) -> None:
    assert server.get(path).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exercise", "occupancy", "cost", "compare", "fit"])
def test_generated_queries_are_answered_as_described(server: Running, name: str) -> None:
    """Schemathesis makes queries of the document, right and wrong, and checks statuses, content types and bodies."""
    schemathesis = pytest.importorskip("schemathesis")
    hypothesis = pytest.importorskip("hypothesis")
    operation = schemathesis.openapi.from_dict(DOCUMENT)[f"/api/ask/{name}"]["GET"]
    headers = {"Host": server.host, "Cookie": server.cookie}

    @hypothesis.given(case=operation.as_strategy())
    @hypothesis.settings(
        max_examples=15, deadline=None, database=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
    )
    def answers(case: Any) -> None:
        response = case.call(base_url=f"http://{server.host}", headers=headers)
        # the token is in the cookie; and a name or a size is more than a schema tells
        left_out = [schemathesis.checks.ignored_auth, schemathesis.checks.positive_data_acceptance]
        case.validate_response(response, excluded_checks=left_out, headers=headers)

    answers()
