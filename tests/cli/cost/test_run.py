from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from gpuwise.cli.cost.run import run
from gpuwise.cli.options import LayoutOptions, Training
from gpuwise.cli.plan.command import plan
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError, UnknownNameError, UnpredictableError

ASK = {"on": "8xH100-SXM", "tokens": 1e9}


@pytest.mark.parametrize("width", [80, 120])
def test_the_answer_comes_first_and_fits(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run("gpt2", **ASK, country="DE") == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].startswith("GPT-2") and ": $" in lines[0] and "CO2e" in "".join(lines[:8])
    assert max(len(line) for line in lines) <= width and len(lines) <= 26
    shown = options_shown("cost run")(all=True)
    assert run("gpt2", **ASK, country="DE", shown=shown) == 0
    text = capsys.readouterr().out
    for title in ("The bill", "Power while training", "Stops and checkpoints", "Assumed"):
        assert f"\n{title}" in text
    for item in ("training", "evaluation", "lost work", "restarts", "accelerators", "hosts", "at the meter", "total"):
        assert f"\n  {item}" in text
    assert "\x1b" not in text


def test_json_is_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("gpt2", **ASK, country="aws:us-east-1", provider="aws", json=True) == 0
    document = json.loads(capsys.readouterr().out.strip().split("\n")[-1])
    assert document["total_usd"]["low"] <= document["total_usd"]["expected"] <= document["total_usd"]["high"]
    assert sum(x["usd"]["expected"] for x in document["bill"]) == pytest.approx(document["total_usd"]["expected"])
    assert document["power"]["site"] == "aws" and document["grid"]["key"] == "aws:us-east-1"
    assert document["storage"]["provider"] == "aws"
    assert document["carbon"]["operational_kg"]["expected"] == pytest.approx(document["kwh"]["expected"] * 0.2448)


def test_given_figures_replace_the_usual(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"rent_price": 2.0, "storage_price": 0.1, "egress_gb": 0.0, "eval_share": 0.0, "pue": (1.0, 1.0)}
    assert run("gpt2", **ASK, **given, json=True) == 0
    document = json.loads(capsys.readouterr().out)
    bill = {x["item"]: x["usd"]["expected"] for x in document["bill"]}
    assert bill["evaluation"] == 0 and bill["egress"] == 0 and document["usd_per_gpu_hour"] == 2.0
    assert document["power"]["pue"]["expected"] == 1.0 and document["storage"]["usd_per_gb_month"] == 0.1
    assert document["carbon"]["operational_kg"] is None


def test_the_command_line_takes_what_a_run_has(gpuwise: Callable[..., Any]) -> None:
    words = ("--on", "8xH100-SXM", "--tokens", "1B", "--country", "DE", "--pue", "1.1", "--eval-share", "0", "--json")
    ran = gpuwise("cost", "gpt2", *words)
    assert ran.code == 0 and json.loads(ran.out)["power"]["pue"]["expected"] == 1.1
    assert gpuwise("cost", "gpt2", *words[:4], "--eval-share", "50", "--json").code == 2


def test_a_fine_tuning_without_tokens_costs_what_plan_says(gpuwise: Callable[..., Any]) -> None:
    words = ("llama-3.2-1b", "--on", "4090", "--for", "lora", "--json")
    bill, plan = (json.loads(gpuwise(*command, *words).out) for command in (("cost", "run"), ("plan",)))
    assert bill["tokens"] == plan["goal"]["tokens"] == 10e6 and bill["assumed"][0] == plan["goal"]["assumed"][0]
    assert gpuwise("cost", "run", "llama-3.2-1b", "--on", "4090").err.startswith("error: the tokens to train on are missing")


def test_spot_says_what_it_blends(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("gpt2", **ASK, spot=True) == 0
    assert "with the hours on demand" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(InputError, match="no spot price"):
        run("gpt2", on="m2-ultra", tokens=1e8, country="SE", spot=True)


def test_ones_own_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("gpt2", on="m2-ultra", tokens=1e8, country="SE", shown=options_shown("cost run")(all=True)) == 0
    out = capsys.readouterr().out
    assert "the machine is not in the bill" in " ".join(out.split()) and "\n  electricity" in out
    with pytest.raises(UnpredictableError):
        run("gpt2", on="m2-ultra", tokens=1e8)


def test_what_does_not_fit_is_no_bill(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("llama-3.1-405b", on="1x4090", tokens=1e9) == 1
    assert "not fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 0.0},
        {"tokens": -1.0},
        {"tokens": math.nan},
        {"tokens": math.inf},
        {"tokens": 1e30},
        {"country": "Atlantis"},
        {"country": ""},
        {"provider": "nobody"},
        {"rent_price": 0.0},
        {"rent_price": -2.0},
        {"rent_price": math.nan},
        {"storage_price": -0.1},
        {"storage_price": math.nan},
        {"storage_price": 1e9},
        {"egress_gb": -1.0},
        {"eval_share": -1.0},
        {"eval_share": 100.0},
        {"pue": (0.9, 0.9)},
        {"pue": (20.0, 20.0)},
        {"fixed": LayoutOptions(precision=",")},
        {"training": Training(seq=0)},
        {"training": Training(lora=True), "fixed": LayoutOptions(qlora=True)},
        {"on": "8xNothing"},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        run("gpt2", **{**ASK, **wrong})  # type: ignore[arg-type]
    assert caught.value.message


def test_an_unknown_model() -> None:
    with pytest.raises(UnknownNameError):
        run("gpt-2000", **ASK)


@pytest.mark.parametrize("words", [("--simple",), ("--reserved", "1y"), ("--shape", "bursts"), ("--capital", "8%")])
def test_what_a_bill_would_drop_is_refused(words: tuple[str, ...], gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("cost", "gpt2", "--on", "8xa100-sxm-80gb", "--tokens", "1B", *words)
    assert ran.code == 2 and words[0] in ran.err


@pytest.mark.parametrize("words", [("--eval-share", "0.1"), ("--precision", "fp8"), ("--egress-gb", "10")])
def test_what_only_a_run_has_needs_a_model(words: tuple[str, ...], gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("cost", "--on", "4090", "--hours", "100", *words)
    assert ran.code == 2 and f"cost own has no {words[0]}" in ran.err and "gpuwise cost run" in ran.err


def test_a_bill_names_the_published_run_as_plan_does_and_what_its_hours_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """TinyLlama: 16 A100 for 90 days, 34,560 hours (github.com/jzhang38/TinyLlama)."""
    assert run("tinyllama-1.1b", on="16xA100-SXM-40GB", tokens=3e12, rent_price=1.0, json=True) == 0
    bill = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert plan("tinyllama-1.1b", on="16xA100-SXM-40GB", tokens=3e12, json=True) == 0
    planned = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert bill["published"] == planned["published"] and bill["published_usd"] == [pytest.approx(34560)]
