"""300 questions over all commands and the Python API answer as they did.

An answer that moves on purpose is written anew by ``tests/answers/write.py --keep`` in the commit that moves it. To see what
moved, write the documents of both versions and compare the folders. ``GPUWISE_ANSWERS=exact`` compares to the last digit.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import time_machine
from tests.answers.asked import CALLS, DAY, KEPT, QUESTIONS, ask, digests

ALL = [*QUESTIONS, *CALLS]
EXACT = os.environ.get("GPUWISE_ANSWERS") == "exact"
EVERY = 6


@pytest.fixture(scope="module")
def kept() -> dict[str, dict[str, object]]:
    return json.loads(KEPT.read_text())


@pytest.mark.parametrize(
    "question", [q if i % EVERY == 0 else pytest.param(q, marks=pytest.mark.thorough) for i, q in enumerate(ALL)]
)
def test_answer_is_the_kept_one(question: str, kept: dict[str, dict[str, object]], tmp_path: Path, home: Path) -> None:
    with time_machine.travel(DAY, tick=False):
        found = digests(*ask(question, tmp_path / "folder"))
    assert _seen(found) == _seen(kept[question])


def _seen(answer: dict[str, object]) -> object:
    if EXACT:
        return answer
    parts = answer["parts"]
    assert isinstance(parts, dict)
    return answer["code"], {k: v.split(":")[1] for k, v in parts.items()}


def test_table_has_every_question_once(kept: dict[str, dict[str, object]]) -> None:
    assert list(kept) == ALL
    assert len(set(ALL)) == len(ALL) >= 300
