"""What a plan advises, its stack's exporter can write: the rules of a stack are those of the tool that runs it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.export.job import Job
from gpuwise.export.targets import gaps_of, tool_of
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.goal import Wishes, make_goal
from gpuwise.plan.space.search import find_strategies
from gpuwise.workload.strategy import STACKS

WRITTEN = [stack for stack in STACKS if (tool := tool_of(stack)) is not None and "nvidia" in tool.vendors]
REFUSED = {"torchtune"}
"""Planned also where export refuses the plan in words: replicas and selective recomputing, which its recipes of one kind lack."""
ASKED = {"full": Wishes(tokens=1e9), "lora": Wishes(tokens=1e9, lora_rank=16), "qlora": Wishes(tokens=1e9, quantized_base=True)}
SMALL, LARGE = ("llama-3.2-1b", "rtx-4090"), ("llama-3.1-8b", "2xrtx-3090")
"""Where the states do not fit beside one another, and everything that saves memory is looked at."""


def _gaps(model: str, on: str, wishes: Wishes, stack: str | None = None) -> dict[str, list[str]]:
    """What the tools cannot express of the layouts that a plan shows, by layout."""
    goal = make_goal(find_model(model), find_cluster(on), replace(wishes, stack=stack))
    found = find_strategies(goal)
    shown = [e.strategy for e in (*found.ranked, *found.front)]
    missing: dict[str, list[str]] = {}
    for s in shown:
        tool = tool_of(s.stack, adapters=s.lora_rank > 0)
        assert tool is not None
        if gaps := gaps_of(Job(goal.arch, goal.cluster, s, goal.seq_len), tool):
            missing[str(s)] = gaps
    return missing


@pytest.mark.parametrize("stack", [s for s in WRITTEN if not s.startswith("megatron") and s not in REFUSED])
def test_each_stack_lays_out_what_its_tool_can_be_told(stack: str) -> None:
    for kind, wishes in ASKED.items():
        assert not _gaps(*LARGE, wishes, stack), kind
    assert not _gaps(*SMALL, ASKED["full"], stack)


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize(
    ("model", "on"), [SMALL, LARGE, ("llama-3.1-8b", "8xa100-sxm-80gb"), ("llama-3.1-70b", "64xh100-sxm-80gb")]
)
def test_a_plan_that_names_no_stack_can_be_written(model: str, on: str, kind: str) -> None:
    assert not _gaps(model, on, ASKED[kind])
