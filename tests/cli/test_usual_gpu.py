"""A GPU's name that means several parts: every command takes the one most people mean, and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuwise.plan.api import make_plan
from gpuwise.workload.optimizer import on_host

ASSUMED = "H100 is read as H100 SXM5 80GB"


@pytest.mark.parametrize(
    "command",
    [
        "plan gpt2 --on H100",
        "fit gpt2 --on H100",
        "cost gpt2 --on H100 --tokens 1B",
        "cost --on H100 --hours-per-month 500 --scenarios 200",
        pytest.param("capacity gpt2 --on H100 --rate 1/s --quick", marks=pytest.mark.thorough),
        "capacity bert-base --workload embed --on H100",
        "compare H100 L40S",
        "op matmul 4096 4096 4096 --on H100",
        "op decode llama-3.1-8b --on H100",
        "op train gpt2 1B --on H100",
        "op allreduce 1GB --on 8xH100",
    ],
)
def test_every_command_takes_the_usual_part_and_says_so(command: str, gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*command.split())
    assert ran.code == 0, ran.err
    assert ASSUMED in " ".join(ran.out.split())


def test_a_plan_without_a_number_takes_the_fewest_that_hold_it() -> None:
    plan = make_plan("llama-3.1-70b", "H100")
    assert plan.best is not None and plan.cluster.n_accelerators > 1
    assert any(f"{plan.cluster.n_accelerators} GPUs, the fewest" in words for words in plan.goal.assumed)
    asked = make_plan("llama-3.1-70b", f"{plan.cluster.n_accelerators // 2}xH100")
    assert asked.best is None or "weights and optimizer" in on_host(asked.best.estimate.strategy), "half of them hold it too"
    assert asked.cluster.n_accelerators == plan.cluster.n_accelerators // 2, "a number that is given is kept"
