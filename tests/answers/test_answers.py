"""300 questions over all commands and the Python API answer as they did, to the last digit where the arithmetic is the same
(elsewhere: with the same exit code and the same parts).

An answer that moves on purpose is written anew by ``tests/answers/write.py --keep`` in the commit that moves it. To see what
moved, write the documents of both versions and compare the folders.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import time_machine
from tests.answers.asked import CALLS, DAY, KEPT, QUESTIONS, arithmetic, ask, digests
from tools.docs.reference_answers import answers_schema, document_name

ALL = [*QUESTIONS, *CALLS]
EVERY = 6


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    return json.loads(KEPT.read_text())


@pytest.mark.parametrize(
    "question", [q if i % EVERY == 0 else pytest.param(q, marks=pytest.mark.thorough) for i, q in enumerate(ALL)]
)
def test_answer_is_the_kept_one(question: str, kept: dict[str, Any], tmp_path: Path, home: Path) -> None:
    with time_machine.travel(DAY, tick=False):
        code, document = ask(question, tmp_path / "folder")
    if question not in CALLS and isinstance(document, dict):
        _check_schema(question.split()[0], document)
    found = digests(code, document)
    if kept["made with"] == arithmetic():
        assert found == kept[question]
    else:
        assert found["code"] == kept[question]["code"] and found["parts"].keys() == kept[question]["parts"].keys()


@cache
def _schema() -> dict[str, Any]:
    return answers_schema()


def _check_schema(command: str, document: dict[str, Any]) -> None:
    """Raises where a document of ``--json`` is not as the published schema says."""
    jsonschema = pytest.importorskip("jsonschema")
    name = "refusal" if "error" in document else document_name(command)
    if name in _schema()["$defs"]:
        jsonschema.Draft202012Validator({**_schema(), "$ref": f"#/$defs/{name}"}).validate(document)


def test_table_has_every_question_once(kept: dict[str, Any]) -> None:
    assert list(kept) == ["made with", *ALL]
    assert len(set(ALL)) == len(ALL) >= 300
