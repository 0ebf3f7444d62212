"""Checks: each limit against the answer's own figure, results as other programs read them, wrong files refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import gpuwise as package
from gpuwise.cli.app import run
from gpuwise.cli.check.checks import TEMPLATE, read_checks
from gpuwise.errors import FieldError

ROOT = Path(__file__).parents[3]
FILE = ROOT / "tests" / "answers" / "data" / "gpuwise.checks.toml"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    folder = tmp_path_factory.mktemp("results")
    targets = [f"--{kind}={folder / kind}" for kind in ("junit", "sarif", "markdown")]
    return run(["check", str(FILE), *targets, "--json"]), folder


def test_figures_are_those_of_the_answers(gpuwise: Callable[..., Any]) -> None:
    document = json.loads(gpuwise("check", str(FILE), "--json").out)
    checks = {check["name"]: check for check in document["checks"]}
    assert {name: check["passed"] for name, check in checks.items()} == {
        "fine-tune": True,
        "too-large": False,
        "misspelt": False,
        "a slow step": False,
    }
    answer = package.fit("llama-3.1-8b", "4090", "train", qlora=True)  # pyright: ignore
    fits, memory, step = checks["fine-tune"]["limits"]
    assert fits["passed"] and memory["found_bytes"] == answer["memory_bytes"]["expected"]
    assert step["found_s"] == answer["step_time_s"]["expected"] and step["most_s"] == 1200.0
    assert checks["too-large"]["limits"][2]["found"] is None, "a fit has no price"
    assert checks["misspelt"]["error"] == "unknown model 'gpt-2000'"
    assert [check["line"] for check in checks.values()] == [3, 9, 15, 19]


def test_junit_has_a_case_for_each_check(results: tuple[int, Path]) -> None:
    code, folder = results
    assert code == 1
    suite = ElementTree.parse(folder / "junit").getroot()[0]
    assert suite.attrib == {"name": "gpuwise check", "tests": "4", "failures": "2", "errors": "1"}
    assert [case.attrib["name"] for case in suite if not len(case)] == ["fine-tune"]
    assert "it does not fit" in (suite[1][0].text or "") and suite[2][0].tag == "error"


def test_sarif_points_at_the_line_of_each_check_that_fails(results: tuple[int, Path]) -> None:
    document = json.loads((results[1] / "sarif").read_text())
    (sarif,) = document["runs"]
    assert document["version"] == "2.1.0" and sarif["tool"]["driver"]["rules"][0]["id"] == "gpuwise/limit"
    assert [r["locations"][0]["physicalLocation"]["region"]["startLine"] for r in sarif["results"]] == [9, 15, 19]
    assert all(r["ruleId"] == "gpuwise/limit" and r["message"]["text"] for r in sarif["results"])


def test_the_table_has_a_row_for_each_check(results: tuple[int, Path]) -> None:
    lines = (results[1] / "markdown").read_text().splitlines()
    assert len(lines) == 6 and "passed" in lines[2] and lines[3].count("**failed**") == 1


def test_the_template_is_a_file_of_checks(tmp_path: Path) -> None:
    (tmp_path / "checks.toml").write_text(TEMPLATE)
    assert [check.name for check in read_checks(tmp_path / "checks.toml")] == ["fine-tune", "training-run"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 2\n[checks.a]\nask = 'fit gpt2'\nfits = true", "version"),
        ("version = 1\n[checks]", "there is no check"),
        ("version = 1\nchecks = 3", "checks: expected"),
        ("version = 1\nwhat = 1\n[checks.a]\nask = 'fit gpt2'\nfits = true", "unknown field what"),
        ("version = 1\n[checks.a]\nask = 'fit gpt2'\nfit = true", "checks.a: object contains unknown field fit"),
        ("version = 1\n[checks.a]\nask = 'fit gpt2'\nfits = false", "checks.a.fits: "),
        ("version = 1\n[checks.a]\nask = 'fit gpt2'", "has no limit"),
        ("version = 1\n[checks.a]\nask = 'bench'\nfits = true", "asks none of fit, plan"),
        ("version = 1\n[checks.a]\nask = 'fit \"gpt2'\nfits = true", "no closing quotation"),
        ("version = 1\n[checks.a]\nask = 'fit gpt2'\nmax_memory = 'much'", "checks.a.max_memory: "),
        ("version = 1\n[checks.a]\nask = 'fit gpt2'\nmax_price = true", "checks.a.max_price: "),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "checks.toml").write_text(text)
    with pytest.raises(FieldError, match=message) as refused:
        read_checks(tmp_path / "checks.toml")
    assert refused.value.hint and "checks.toml" in refused.value.message
    assert run(["check", str(tmp_path / "checks.toml")]) == 2


def test_files_for_code_hosts_are_of_their_own_schemas() -> None:
    yaml = pytest.importorskip("yaml")
    schemas = Path(pytest.importorskip("check_jsonschema").__file__).parent / "builtin_schemas" / "vendor"
    jsonschema = pytest.importorskip("jsonschema")
    for file, schema in (("action.yml", "github-actions.json"), ("examples/ci/gitlab.yml", "gitlab-ci.json")):
        jsonschema.validate(yaml.safe_load((ROOT / file).read_text()), json.loads((schemas / schema).read_text()))
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    assert all(one.get("description") and "default" in one for one in inputs.values())


def test_the_hook_is_one_of_pre_commit() -> None:
    clientlib = pytest.importorskip("pre_commit.clientlib")
    (hook,) = clientlib.load_manifest(ROOT / ".pre-commit-hooks.yaml")
    assert (hook["id"], hook["entry"], hook["pass_filenames"]) == ("gpuwise-check", "gpuwise check", False)
