"""The page of what is not modelled: each sentence that an answer can contradict is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwise.cli.called import ask
from gpuwise.errors import GpuwiseError

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "limits.md"


def refused(*words: str) -> str:
    with pytest.raises(GpuwiseError) as error:
        ask(words[0], *words[1:])
    return str(error.value.message)


def no_loader_but_failures_and_storage() -> None:
    """The items of a bill: none for loading data or for people, one each for what is counted."""
    bill = ask("cost run", "gpt2", "--on", "8xH100-SXM", "--tokens", "10B")["bill"]
    items = {line["item"] for line in bill}
    assert {"evaluation", "writing checkpoints", "lost work", "restarts", "checkpoint storage", "egress"} <= items
    assert not any(word in item for item in items for word in ("load", "staff", "people", "tax"))


def staff_and_reserved_prices() -> None:
    owning = ask("cost own", "--on", "8xH100-SXM", "--hours", "5000/month", "--scenarios", "1000")
    parts = {part for option in owning["options"] for part in option["parts_usd"]}
    assert {"staff", "reserved"} <= parts and not any("tax" in part for part in parts)


CHECKS: dict[str, Callable[[], object]] = {
    "Data loading": no_loader_but_failures_and_storage,
    "The time of people": staff_and_reserved_prices,
    "Encoder-decoder models in a pipeline": lambda: (
        refused("plan", "t5-base", "--on", "8xH100-SXM", "--tokens", "1B", "--pp", "2").index("rule: encoder-decoder-pipeline"),
        refused("plan", "gpt2", "--on", "8xH100-SXM", "--tokens", "1B", "--pp", "2", "--offload-activations").index(
            "rule: offload-pipeline"
        ),
    ),
}
"""By the beginning of a sentence."""


@pytest.mark.parametrize("sentence", CHECKS)
def test_a_sentence_of_the_page_holds(sentence: str) -> None:
    assert f"- {sentence}" in PAGE.read_text(encoding="utf-8")
    CHECKS[sentence]()


def test_a_model_that_shares_attention_among_layers_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "zamba2", "hidden_size": 2048, "num_hidden_layers": 24, "vocab_size": 32000}')
    assert "(Zamba)" in PAGE.read_text(encoding="utf-8")
    assert "shares the weights of its attention among layers" in refused("plan", str(config), "--on", "4090", "--tokens", "1B")
