"""Laws of every answer: text and page have the numbers of the document, and intervals hold what they are of."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.agreement.printed import unknown_numbers
from tests.agreement.questions import COMMANDS, answers, seeds
from tests.ui.test_views import at, read

from gpuwise.cli.answer import text
from gpuwise.report.answers.notebook import answer_markup

ASKED = [pytest.param(command, seed, marks=[pytest.mark.slow] * (seed > 0)) for command in COMMANDS for seed in range(40)]
EACH = 3
"""Questions of a seed."""


def intervals(node: Any, pointer: str = "") -> Iterator[tuple[str, float, float, float]]:
    """Every low, expected and high of a document, with where it is."""
    if isinstance(node, dict):
        low, middle, high = (node.get(name) for name in ("low", "expected", "high"))
        if low is not None and middle is not None and high is not None:
            yield pointer, low, middle, high
        interval = node.get("interval")
        if interval and node.get("value") is not None:
            yield pointer, interval["low"], node["value"], interval["high"]
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in inside:
        yield from intervals(value, f"{pointer}/{name}")


@pytest.mark.parametrize(("command", "seed"), ASKED)
def test_text_page_and_document_have_the_same_numbers_within_their_intervals(command: str, seed: int) -> None:
    draw = random.Random(f"{command} {seed}")
    for words, asked in answers(draw, COMMANDS[command], EACH):
        assert unknown_numbers(text(asked.answer), asked.document, words) == [], words
        for pointer, value in read(answer_markup(asked.answer)).numbers.items():
            assert float(value) == at(asked.document, pointer), (words, pointer)
        for pointer, low, middle, high in intervals(asked.document):
            slack = 1e-9 * max(abs(low), abs(high))
            assert low - slack <= middle <= high + slack, (words, pointer)
        if asked.answer.next is not None:
            assert asked.answer.next.why, words


def test_a_number_that_the_document_lacks_is_found() -> None:
    document = {"memory_bytes": 9.9e9, "mfu": 0.42, "why": "a batch of 24"}
    assert unknown_numbers("takes 9.22 GiB at 42 % with 24 of gpt2", document, ("gpt2",)) == []
    assert len(unknown_numbers("takes 9.3 GiB at 44 % with 25", document, ())) == 3


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_questions_are_answered(seed: int) -> None:
    """The generator draws valid questions, of every command."""
    from tests.agreement.questions import answer

    draw = random.Random(seed)
    refused = [words for make in COMMANDS.values() for words in (make(draw),) if isinstance(answer(words), str)]
    assert len(refused) <= len(COMMANDS) // 2, refused
