"""Claims: every figure recomputed by its command, the page as it would be written, and each way to drift noticed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tools.docs import claims as module
from tools.docs.claims import Claim, ClaimResult, check_claims, evaluate, main, read_claims, run_command
from tools.docs.claims_page import page

from gpuwise.errors import FieldError
from gpuwise.facts.words import at_path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "concepts" / "claims.md"
DATA = PAGE.with_suffix(".toml")
CLAIMS = read_claims(DATA)


@pytest.fixture(scope="module")
def checked() -> tuple[ClaimResult, ...]:
    return check_claims(CLAIMS)


@pytest.mark.thorough
def test_no_figure_has_drifted(checked: tuple[ClaimResult, ...]) -> None:
    assert [problem for c in checked for problem in c.problems] == []


@pytest.mark.thorough
def test_the_page_is_what_the_figures_say(checked: tuple[ClaimResult, ...]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(checked), "run `python -m tools.docs.claims docs/concepts/claims.md`"


def test_there_are_as_many_claims_as_promised() -> None:
    assert len(CLAIMS) >= 40
    assert {c.verdict for c in CLAIMS} == {"right", "corrected", "depends"}
    assert len({c.title for c in CLAIMS}) == len(CLAIMS)


ASKED = (
    "matmul-10k",
    "cpu-gpu-100x",
    "a100-cores",
    "h100-memory",
    "rtx4090-power",
    "h100-1000-tflops",
    "tensor-8-16x",
    "cpu-tokens",
    "gaming-tokens",
    "eight-h100-tokens",
    "gpt3-cpu",
    "gpt3-4-6m",
    "bert-t4",
    "twenty-billion-80gb",
    "data-parallel-16",
    "model-parallel-70b",
    "pcie-nvlink",
    "temperature",
    "cooling-10-30",
    "old-cards",
)


def test_the_claims_asked_for_are_there() -> None:
    assert set(ASKED) <= {c.id for c in CLAIMS}


# --- drift, each kind ---

SMALL = next(c for c in CLAIMS if c.id == "rtx4090-power")


def _problems(claim: Claim) -> tuple[str, ...]:
    return check_claims([claim])[0].problems


def _with_figure(**changes: object) -> Claim:
    first, *rest = SMALL.figures
    return replace(SMALL, figures=(replace(first, **changes), *rest))  # type: ignore[arg-type]


def test_a_broken_figure_is_noticed() -> None:
    assert _problems(SMALL) == ()
    (problem,) = _problems(_with_figure(expected=700.0))
    assert "watts is 450, written down as 700" in problem
    assert _problems(_with_figure(expected=455.0, tolerance=0.05)) == ()


def test_a_wrong_verdict_is_noticed() -> None:
    (problem,) = _problems(replace(SMALL, verdict="right"))
    assert "the verdict is right, but watts > 600 is false" in problem
    assert _problems(replace(SMALL, verdict="depends"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"command": "gpuwise gpus no-such-card"}, "is refused"),
        ({"command": "gpuwise nonsense"}, "is refused"),
        ({"command": "rm -rf nothing"}, "is no gpuwise command"),
        ({"path": "accelerators.7.tdp_w"}, "no '7'"),
        ({"path": "accelerators.0.no_such_field"}, "no_such_field"),
        ({"path": "accelerators.0.name"}, "not a number"),
    ],
)
def test_a_command_or_path_that_fails_is_noticed(change: dict[str, str], said: str) -> None:
    (problem,) = _problems(_with_figure(**change))
    assert said in problem and SMALL.id in problem


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{a100}", "{volts}", "which is no figure"),
        ('verdict = "corrected"', 'verdict = "maybe"', "verdict 'maybe'"),
        ('url = "https://', 'url = "ftp://', "no source"),
        ('tests = ["flop < 2e8"]', "tests = []", "no test"),
        ("heard = ", "herd = ", "unknown field 'herd'"),
        ('path = "operation.flop"', "", "needs a command and a path"),
        ('name = "cpu"', 'name = "flop"', "appears twice"),
        ("expected = 2000000000000", "expected = 0.0", "no usable expected value"),
        ("{gaming}", "some time", "neither in the text nor in a test"),
        ("[matmul-10k]", "[matmul-10k", "cannot be read"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = DATA.read_text(encoding="utf-8")
    part = text[text.index("[matmul-10k]") : text.index("[six-nd]")]
    assert old in part
    (tmp_path / "claims.toml").write_text(part.replace(old, new), encoding="utf-8")
    with pytest.raises(FieldError) as caught:
        read_claims(tmp_path / "claims.toml")
    assert said in caught.value.message and caught.value.hint


# --- the command ---


def test_writing_and_checking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = DATA.read_text(encoding="utf-8")
    one = text[text.index("[rtx4090-power]") : text.index("[h100-1000-tflops]")]
    target = tmp_path / "claims.md"
    (tmp_path / "claims.toml").write_text(one, encoding="utf-8")
    assert main(["--check", str(target)]) == 1 and "is stale" in capsys.readouterr().err
    assert main([str(target)]) == 0 == main(["--check", str(target)])
    assert "450 W" in target.read_text(encoding="utf-8")
    (tmp_path / "claims.toml").write_text(one.replace("expected = 450", "expected = 700"), encoding="utf-8")
    assert main([str(target)]) == 1 and "written down as 700" in capsys.readouterr().err
    assert main(["--check", str(target)]) == 1
    assert main([]) == 2


def test_a_command_runs_once_for_all_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def counted(command: str) -> object:
        ran.append(command)
        return run_command(command)

    monkeypatch.setattr(module, "run_command", counted)
    check_claims([SMALL, replace(SMALL, id="again")])
    assert len(ran) == len(set(ran)) == len(SMALL.commands)


# --- paths and formulas ---


def test_paths() -> None:
    document = {"rows": [{"path": "a", "x": 1}, {"path": "b c", "x": {"y": 2.5}}], "none": None, "flag": True}
    assert at_path(document, "rows.0.x") == 1.0
    assert at_path(document, "rows[path=b c].x.y") == 2.5
    for path in ("rows[path=z].x", "rows.2.x", "nothing", "none", "flag", "rows"):
        with pytest.raises((KeyError, ValueError)):
            at_path(document, path)


def test_formulas() -> None:
    values = {"a": 6.0, "b": 2.0}
    assert evaluate("a / b ** 2 + 1", values) == 2.5
    assert evaluate("1 < b < a", values) and not evaluate("b > a", values)
    for formula in ("c + 1", "__import__('os')", "a if b else a", "a.real", "'x'", "a +", "9.0 ** 9.0 ** 9.0"):
        with pytest.raises(ValueError):
            evaluate(formula, values)


def test_numbers_as_shown() -> None:
    figure = SMALL.figures[0]
    assert replace(figure, show=".0e", unit="FLOP").text(2e12) == "2e12 FLOP"
    assert replace(figure, show=".1f", unit="ms", scale=1e3).text(0.0083) == "8.3 ms"
    assert replace(figure, show=".2f", unit="$ million", scale=1e-6).text(421_000) == "$0.42 million"
    assert replace(figure, show=".0%", unit="").text(0.737) == "74 %"
    assert math.isclose(float(replace(figure, show=".3g", unit="").text(1e-7)), 1e-7)
