# pyright: reportMissingImports=false
"""The names that fields suggest."""

from __future__ import annotations

from urllib.parse import parse_qsl

from tests.cli.test_sentence import ASKED
from tests.ui.serving import Running

from gpuwise.cli.sentence import offers
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.models.catalogue import models
from gpuwise.facts.models.denoisers import denoisers
from gpuwise.ui.names import names
from gpuwise.ui.questions import PAGES, QUESTIONS, address_of, words_of


def test_every_model_and_gpu_is_suggested_once_with_what_it_is() -> None:
    made = names()
    assert sorted(name for name, _ in made["models"]) == sorted([*models(), *denoisers()])
    assert sorted(name for name, _ in made["gpus"]) == sorted(["this", *accelerators()])
    assert all(what for rows in made.values() for _, what in rows)


def test_common_names_come_first() -> None:
    made = names()
    first = [name for name, _ in made["models"][:20]]
    assert {"llama-3.1-8b", "qwen3-8b", "gemma-3-4b"} <= set(first)
    assert {"h100-sxm-80gb", "a100-sxm-80gb", "l40s"} <= {name for name, _ in made["gpus"][:8]}


def test_a_name_tells_its_size() -> None:
    made = dict(names()["models"])
    assert "8.03B parameters" in made["llama-3.1-8b"] and "active" in made["mixtral-8x7b"]
    assert "80 GB" in dict(names()["gpus"])["h100-sxm-80gb"]


def test_the_page_has_the_names(server: Running) -> None:
    assert server.get("/api/names").json["models"] == [list(row) for row in names()["models"]]


def test_a_question_in_words_has_the_address_that_asks_its_command(server: Running) -> None:
    for sentence in ASKED:
        for offer in offers(sentence):
            address = address_of(offer.words)
            if address is not None:
                path, _, query = address.partition("?")
                fields = dict(parse_qsl(query))
                page = next(p for p in PAGES if p.name == path[1:])
                name = fields.pop("ask", page.asks[0])
                if all(need in fields for need in QUESTIONS[name].needs):
                    assert sorted(words_of(name, fields)) == sorted(offer.words)
    heard = server.get("/api/heard", q="run flux on 4070").json["offers"]
    assert heard[0]["path"] == "/fit?model=flux-dev&on=4070&for=run"
    for wrong in ("", "x" * 500, "hello there my friend"):
        reply = server.get("/api/heard", q=wrong)
        assert reply.status == 422 and reply.json["hint"]
