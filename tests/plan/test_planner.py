from __future__ import annotations

import datetime
import json
import math
from dataclasses import replace

import pytest

from gpuwise.errors import InputError
from gpuwise.export.job import Job
from gpuwise.export.targets import command, tool_of
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.answer import Plan
from gpuwise.plan.api import make_plan
from gpuwise.plan.document import answer_document
from gpuwise.plan.explain import CURES, layout
from gpuwise.plan.goal import Wishes
from gpuwise.plan.planner import Pricing, plan_on, safer
from gpuwise.plan.space.search import SearchResult
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.step.training import IN_PRACTICE, TIME_PARTS, TrainingEstimate
from gpuwise.units import percent
from gpuwise.workload.strategy import STACKS, Strategy
from gpuwise.workload.transformer.parameters import count_parameters

TODAY = datetime.date(2026, 11, 21)
ARCH, NODE = find_model("llama-3.1-8b"), find_cluster("8xH100-SXM")


@pytest.fixture(scope="module")
def plan() -> Plan[TrainingEstimate]:
    return plan_on(ARCH, NODE, Wishes(tokens=15e9), Pricing(TODAY))


def test_the_numbers_of_a_plan_agree_with_each_other(plan: Plan[TrainingEstimate]) -> None:
    best = plan.best
    assert best is not None
    e = best.estimate
    assert e.tokens_per_s.expected == pytest.approx(e.tokens_per_step / e.step_time_s.expected)
    assert best.operation is not None and best.run is not None
    assert best.run.time_s.expected == pytest.approx(15e9 / e.tokens_per_s.expected)
    assert best.run.time_s.expected == pytest.approx(best.time_s.expected * best.operation.goodput)
    assert best.price is not None and best.cost_usd is not None
    # the rent of the hours, and storage beside it
    assert best.cost_usd.expected == pytest.approx(best.time_s.expected / 3600 * 8 * best.price.expected, rel=0.02)
    assert best.cost_usd.expected > best.time_s.expected / 3600 * 8 * best.price.expected
    assert sum(e.breakdown_s.values()) == pytest.approx(e.step_time_s.expected)
    assert sum(e.memory_parts.values()) == pytest.approx(e.memory_bytes.expected, rel=1e-6)
    assert set(e.breakdown_s) == {*TIME_PARTS, IN_PRACTICE} and set(TIME_PARTS) == set(CURES)
    assert 0.2 < e.mfu.expected < 0.8 and e.hfu.expected >= e.mfu.expected
    assert e.mfu.low < e.mfu.expected < e.mfu.high
    assert best.energy is not None
    assert 0.4 < best.energy.kwh.expected * 3.6e6 / (best.time_s.expected * 8 * 700) < 2.0


@pytest.mark.parametrize(("model", "on"), [("llama-3.1-70b", "64xH100-SXM"), ("llama-3.1-8b", "8xH100-SXM")])
def test_no_alternative_is_named_twice(model: str, on: str) -> None:
    """What would be faster but does not fit is not said again as what the choice is better than."""
    said = plan_on(find_model(model), find_cluster(on), Wishes(tokens=1e9), Pricing(TODAY)).reasons
    blocked = [r.partition(" would be ")[0].lower() for r in said if " faster but " in r]
    assert blocked and not any(f": {name} " in r for name in blocked for r in said)


@pytest.mark.parametrize(("on", "leans"), [("4090", False), ("2x4090", False), ("16x4090", True)])
def test_only_what_the_plan_leans_on_is_named_as_assumed(on: str, leans: bool) -> None:
    said = plan_on(find_model("gpt2"), find_cluster(on), Wishes(tokens=1e9), Pricing(TODAY)).warnings
    assert any("not published for" in line and "network" in line for line in said) is leans


def test_the_plan_explains_itself(plan: Plan[TrainingEstimate]) -> None:
    e = plan.best.estimate
    name, part = max(((n, s) for n, s in e.breakdown_s.items() if n != IN_PRACTICE), key=lambda p: p[1])
    # the share that the bar of the step shows, not that of a step in which nothing is lost
    assert plan.reasons[0].startswith(f"Bottleneck: {name}, {percent(part / e.step_time_s.expected)} of the step")
    assert any("slower" in r for r in plan.reasons)
    assert len(plan.front) <= 8
    headroom = [o.headroom_bytes for o in plan.front]
    assert headroom == sorted(headroom)
    assert all(o.time_s.expected >= plan.best.time_s.expected * (1 - 1e-5) for o in plan.front if plan.best)


def test_the_document_is_plain_and_complete(plan: Plan[TrainingEstimate]) -> None:
    document = json.loads(json.dumps(answer_document(plan), allow_nan=False))
    assert document["search"]["strategies"] > 0 and document["search"]["seconds"] > 0
    best = document["best"]
    for field in ("step_time_s", "memory_bytes", "tokens_per_s_per_gpu", "mfu", "cost_usd"):
        assert set(best[field]) == {"low", "expected", "high", "basis"}
        assert best[field]["low"] < best[field]["expected"] < best[field]["high"]
    assert best["strategy"]["dp"] * best["strategy"]["tp"] * best["strategy"]["pp"] * best["strategy"]["cp"] == 8
    assert any(w.startswith("torchrun") for w in best["flags"])


def test_limits_are_judged() -> None:
    wishes = Wishes(tokens=15e9, deadline_s=3600.0, budget_usd=1e6)
    answer = plan_on(ARCH, NODE, wishes, Pricing(TODAY))
    assert answer.on_time is False and answer.in_budget is True
    assert any("misses the deadline" in w for w in answer.warnings)


def test_a_price_of_ones_own() -> None:
    answer = plan_on(ARCH, NODE, Wishes(tokens=1e9), Pricing(TODAY, usd_per_hour=1.5))
    assert answer.best is not None and answer.best.price is not None
    assert answer.best.price.expected == 1.5 and answer.best.price.provider == "given"


def test_old_prices_say_so() -> None:
    answer = plan_on(ARCH, NODE, Wishes(tokens=1e9), Pricing(TODAY + datetime.timedelta(days=400)))
    assert any("days old" in w for w in answer.warnings)


def test_nothing_fits_is_an_answer() -> None:
    answer = make_plan("llama-3.1-70b", "1x4090", Wishes(tokens=1e9), today=TODAY)
    assert answer.best is None and answer.search.fitting == 0
    document = answer_document(answer)
    assert document["best"] is None
    assert answer.smallest.memory_bytes.expected > answer.smallest.device_bytes


def test_a_limit_without_work_is_refused() -> None:
    with pytest.raises(InputError, match="tokens"):
        make_plan(ARCH, NODE, Wishes(deadline_s=3600.0))


def test_without_gpus_and_work_20_tokens_a_parameter_are_planned() -> None:
    goal = make_plan(ARCH).goal
    assert goal.wishes.tokens == 20 * count_parameters(ARCH).total
    assert "20 for each parameter" in goal.assumed[0]


@pytest.mark.parametrize(("task", "tokens"), [("lora", 10e6), ("qlora", 10e6), ("full", 200e6)])
def test_fine_tuning_without_tokens_is_as_long_as_such_runs_are(task: str, tokens: float) -> None:
    plan = make_plan("qwen2.5-1.5b", "2xA100", asked := Wishes(task=task))
    assert bool(plan.goal.wishes.lora_rank) == (task != "full") and plan.goal.wishes.quantized_base == (task == "qlora")
    assert plan.tokens == tokens and plan.goal.assumed[0].endswith("(--tokens)")
    given = make_plan("qwen2.5-1.5b", "2xA100", replace(asked, tokens=tokens))
    assert plan.best is not None and given.best is not None and plan.best.time_s == given.best.time_s


def test_without_tokens_times_are_for_a_billion() -> None:
    answer = plan_on(ARCH, NODE, Wishes(), Pricing(TODAY))
    assert answer.best is not None and answer.tokens == 1e9
    assert math.isfinite(answer.best.time_s.expected)


@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_of_a_known_tool_has_a_command(stack: str) -> None:
    s = Strategy(dp=4, tp=2, micro_batch=2, accumulation=8, sharding="zero1", recompute="full", stack=stack)
    tool = tool_of(stack)
    on_tpu = tool is not None and "google" in tool.vendors
    words = command(Job(ARCH, find_cluster("8xTPU-v5p") if on_tpu else NODE, s, 4096))
    if tool is None:
        assert words == [] and stack not in {"megatron-core", "compiled-fsdp", "eager", "compiled", "deepspeed", "hf-fsdp"}
        return
    if on_tpu:
        assert command(Job(ARCH, NODE, s, 4096)) == [] and len(words) > 1
    else:
        assert {"--nproc-per-node 8", "--standalone"} <= set(words) and {"torchrun", "tune run"} & set(words)
    assert not any("None" in w or not w.strip() for w in words)


def test_flags_of_several_hosts_meet() -> None:
    words = command(Job(ARCH, find_cluster("16xH100-SXM"), Strategy(dp=16), 4096))
    assert "--nnodes 2" in words and any("$HEAD_NODE" in w for w in words)


def test_a_tight_plan_is_shown_a_roomier_one(plan: Plan[TrainingEstimate]) -> None:
    assert plan.best is not None
    e = plan.best.estimate
    whole = Estimate(e.device_bytes, e.device_bytes, e.device_bytes, "fitted")
    full = replace(e, memory_bytes=whole, needed_bytes=whole)
    roomy = replace(
        e,
        memory_bytes=e.memory_bytes.scaled(0.5),
        needed_bytes=e.needed_bytes.scaled(0.5),
        step_time_s=e.step_time_s.scaled(1.02),
        strategy=e.strategy.with_(recompute="selective"),
    )
    found = SearchResult((full, roomy), (), e, 2, 2, 0.0, (), plan.goal)
    tight = replace(plan.best, estimate=full, tuned=full)
    (said,) = safer(tight, found)
    assert said.startswith("for 2.0 % more time, ") and "selective recompute leaves" in said
    assert safer(replace(plan.best, estimate=roomy), found) == []
    assert safer(tight, replace(found, ranked=(full,))) == []


def test_layouts_in_words() -> None:
    assert layout(Strategy()) == "one device, micro-batch 1"
    s = Strategy(dp=4, tp=2, sharding="zero3", recompute="full", recompute_every=2, offload_optimizer=True)
    assert layout(s) == "tp 2 x dp 4, micro-batch 1, zero3, full recompute of 1 in 2, optimizer offload"
    assert [percent(x) for x in (0.004, 0.031, 0.12, 2.5)] == ["0.4 %", "3.1 %", "12 %", "3.5x"]


@pytest.mark.parametrize("model", ["gemma-2-9b", "phi-2", "nemotron-h-8b"])
def test_a_model_that_the_tool_has_no_setting_for_is_planned_for_one_that_has(model: str) -> None:
    """Megatron-LM's pretrain_gpt.py has no gated gelu, no parallel block and no layers of two kinds."""
    wishes = Wishes(tokens=1e11)
    best = answer_document(make_plan(model, "8xH100-SXM", wishes))["best"]
    assert best["tool_lacks"] and best["stack_instead"] == "compiled-fsdp"
    instead = answer_document(make_plan(model, "8xH100-SXM", replace(wishes, stack=best["stack_instead"])))["best"]
    assert instead["tool_lacks"] == [] and "stack_instead" not in instead
    llama = answer_document(make_plan("llama-3.1-8b", "8xH100-SXM", wishes))["best"]
    assert llama["tool_lacks"] == [] and "stack_instead" not in llama
