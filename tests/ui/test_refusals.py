# pyright: reportMissingImports=false
"""Wrong values of a question: all at once, each with its field, in the words of the page."""

from __future__ import annotations

import pytest
from tests.ui.serving import Running

from gpuwise.ui.refusals import page_faults


def test_three_wrong_fields_give_three_messages_in_the_order_of_the_page(server: Running) -> None:
    refused = server.get("/api/ask/plan", model="gpt9", on="4090x", tokens="abc")
    assert refused.status == 422
    assert refused.json["faults"] == [
        {"field": "model", "error": "unknown model 'gpt9'", "hint": "did you mean 'gpt2' or 'gpt2-xl' or 'gpt3-13b'?"},
        {"field": "on", "error": "unknown GPU or processor '4090x'", "hint": "did you mean 'rtx-4090' or 'RTX 4090' or 't4000'?"},
        {"field": "tokens", "error": "'abc' is not a count", "hint": "write it like 15B, 300M or 2e9"},
    ]


@pytest.mark.parametrize(
    ("name", "query", "fields"),
    [
        ("plan", {"on": "4090x", "tokens": "abc"}, ["model", "on", "tokens"]),
        ("fit", {"model": "/etc/passwd", "on": "4090x", "for": "sell", "seq": "x"}, ["model", "on", "for", "seq"]),
        ("cost", {"on": "8xH9", "hours": "abc", "years": "z"}, ["on", "hours", "years"]),
        ("capacity", {"model": "gpt2", "on": "h9", "users": "x", "rate": "y"}, ["on", "users", "rate"]),
        ("pick", {"model": "gpt9", "budget": "x"}, ["for", "model", "budget"]),
        ("capacity", {"model": "gpt2", "on": "4090", "slo": "x"}, ["slo"]),
    ],
)
def test_each_message_is_beside_its_field(name: str, query: dict[str, str], fields: list[str], server: Running) -> None:
    faults = server.get(f"/api/ask/{name}", **query).json["faults"]
    assert [fault["field"] for fault in faults] == fields
    assert all(fault["error"] and fault["hint"] and "--" not in fault["error"] + fault["hint"] for fault in faults)


def test_options_are_called_as_the_fields_of_the_page() -> None:
    (fault,) = page_faults("plan", [{"error": "--lora and --qlora are two ways", "hint": "--qlora for 4-bit weights"}], {})
    assert fault == {"field": "lora", "error": "LoRA and QLoRA are two ways", "hint": "QLoRA for 4-bit weights"}
