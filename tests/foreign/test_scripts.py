"""The list of foreign scripts is whole: what a run of it needs stands in it."""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpuwise.train.profile import findings
from gpuwise.train.profile.verdict import HEALTHY, SPREAD

LIST = tomllib.loads(Path(__file__).with_name("scripts.toml").read_text("utf-8"))["script"]
MAKERS = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "foreign_data.py"), run_name="makers")["MAKERS"]

FINDINGS = Path(findings.__file__).parent.glob("*.py")
KINDS = {HEALTHY, SPREAD, "told"} | {
    n.value for file in FINDINGS for n in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(n, ast.Constant)
}
"""Every word in the source of the findings: a kind that is not among them nobody gives."""


def test_there_are_sixty_of_many_repositories() -> None:
    assert len({s["name"] for s in LIST}) == len(LIST) >= 60
    assert len({s["repository"] for s in LIST}) >= 25
    assert sum(s["tune"] for s in LIST) >= 25


@pytest.mark.parametrize("script", LIST, ids=lambda s: s["name"])
def test_a_script_says_what_it_needs_and_what_is_expected(script: dict[str, Any]) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", script["repository"]) and re.fullmatch("[0-9a-f]{40}", script["commit"])
    assert script["path"] and not script["path"].startswith("/") and ".." not in script["folder"]
    assert script["verdict"] and script["why"]
    assert not set(script["verdict"]) & set(script.get("also", ()))
    assert {words.split()[0] for words in script.get("data", ())} <= set(MAKERS)


@pytest.mark.parametrize("script", [s for s in LIST if "gpu" in s], ids=lambda s: s["name"])
def test_a_table_for_a_gpu_says_what_is_expected_there(script: dict[str, Any]) -> None:
    table = script["gpu"]
    assert set(table) <= {"arguments", "data", "env", "needs", "verdict", "also", "why"}
    assert table["verdict"] and table["why"] and set(table["verdict"]) | set(table["also"]) <= KINDS
    assert not set(table["verdict"]) & set(table["also"])
    assert {words.split()[0] for words in table.get("data", ())} <= set(MAKERS)


def test_the_kinds_are_those_that_the_profiler_gives() -> None:
    wrong = {(s["name"], k) for s in LIST for k in (*s["verdict"], *s.get("also", ())) if k not in KINDS}
    assert not wrong
