"""One promise: ``plan``, ``cost``, ``pick`` and ``fit`` say the same time, energy and money, to the last digit."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from gpuwise.cli.app import run

CASES = [
    "llama-3.1-8b --on 8xH100-SXM --tokens 15B",
    "llama-2-7b --on 64x8xA100-80GB-SXM --tokens 2T --seq 4096 --global-batch 1024",
    "bloom-176b --on 48x8xA100-80GB-SXM --tokens 366B --seq 2048",
    "gpt2 --on 8xA100-40GB-SXM --tokens 10B --seq 1024",
    "gpt2 --on 4090 --tokens 1B --seq 1024",
    "falcon-40b --on 48xp4d --tokens 1T --seq 2048",
    "phi-2 --on 12x8xA100-80GB-SXM --tokens 1.4T --seq 2048",
    "mixtral-8x7b --on 16x8xH100-SXM --tokens 1T --seq 4096",
    "bert-base --on 8xV100-16GB-SXM --tokens 10B",
    "llama-3.1-8b --on 8xMI300X --tokens 10B --precision bf16",
    "llama-3.1-8b --on 2xH100-SXM --tokens 20M --seq 2048 --lora --lora-rank 32",
    "llama-3.1-70b --on 2xA100-80GB-SXM --tokens 20M --seq 1024 --qlora --optimizer paged-adamw8bit",
    "llama-3.1-8b --on 4090 --tokens 5M --half-weights --optimizer paged-adamw8bit --step-in-backward --global-batch 1",
]


def answer(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON document of a command line."""
    capsys.readouterr()
    assert run([*shlex.split(line), "--json"]) == 0, line
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_plan_and_cost_agree_to_the_digit(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    price = " --price 2" if "V100" in case else ""
    plan = answer(f"plan {case}{price}", capsys)["best"]
    bill = answer(f"cost {case}{price.replace('--price', '--rent-price')}", capsys)
    assert plan["time_s"] == bill["wall_s"]
    assert plan["cost_usd"] == bill["total_usd"]
    assert plan["energy"]["kwh"] == bill["kwh"]
    assert plan["goodput"]["share"] == pytest.approx(bill["effective"], rel=1e-12)
    items = {line["item"]: line["hours"]["expected"] * 3600 for line in bill["bill"] if line["hours"] is not None}
    assert items == pytest.approx(plan["goodput"]["items_s"])
    assert sum(items.values()) == pytest.approx(plan["time_s"]["expected"])


def test_levels_and_the_rule_stand_beside_the_headline(capsys: pytest.CaptureFixture[str]) -> None:
    best = answer(f"plan {CASES[1]}", capsys)["best"]
    training = best["goodput"]["items_s"]["training"]
    assert best["tuned"]["training_s"]["expected"] < training < best["time_s"]["expected"]
    assert best["tuned"]["mfu"]["expected"] > best["mfu"]["expected"]
    assert best["slowdown_in_practice"] == pytest.approx(training / best["tuned"]["training_s"]["expected"])
    assert best["rule_of_thumb"]["training_s"] == pytest.approx(training * best["mfu"]["expected"] / 0.40)
    assert sum(best["breakdown_s"].values()) == pytest.approx(best["step_time_s"]["expected"])


def test_fit_says_the_step_of_a_plan_with_the_same_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    # the same stack: a fit is of fine-tuning, a plan of pre-training
    asked = "gpt2 --on 4090 --seq 1024 --micro-batch 8 --global-batch 8 --recompute none --stack compiled-fsdp"
    assert answer(f"fit {asked}", capsys)["step_time_s"] == answer(f"plan {asked} --sharding none", capsys)["best"]["step_time_s"]


@pytest.mark.parametrize("case", [CASES[0], CASES[5]])
def test_ranks_are_those_of_the_tuned_level(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = answer(f"plan {case}", capsys)
    options = [plan["best"], *plan["alternatives"]]
    assert len({round(o["slowdown_in_practice"], 9) for o in options}) == 1
    tuned = [o["tuned"]["step_time_s"]["expected"] for o in options]
    assert [o["step_time_s"]["expected"] for o in options] == pytest.approx(
        [t * plan["best"]["slowdown_in_practice"] for t in tuned]
    )
