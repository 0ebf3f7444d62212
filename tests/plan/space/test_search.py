from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuwise.errors import LayoutError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.changes.neighbours import neighbours
from gpuwise.plan.goal import Goal, Wishes, make_goal
from gpuwise.plan.space import search
from gpuwise.plan.space.rules import check_strategy
from gpuwise.plan.space.search import (
    HALF_GRADIENTS,
    HALF_MOMENTS,
    WORTH_HALF_GRADIENTS,
    completed,
    estimate_all,
    find_fastest,
    find_in,
    find_strategies,
    setting_of,
)
from gpuwise.plan.space.strategies import default_space
from gpuwise.plan.space.sweep import SQUEEZED, TIGHT
from gpuwise.predict.columns import base_of
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.workload.strategy import Strategy

ARCH, NODE = find_model("llama-3.1-8b"), find_cluster("8xH100-SXM")


def _goal(**wishes: object) -> Goal:
    return make_goal(ARCH, NODE, Wishes(**wishes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def goal() -> Goal:
    return _goal(tokens=1e9, task="pretrain")


def test_ranked_are_distinct_layouts_that_fit_fastest_first(goal: Goal) -> None:
    found = find_strategies(goal)
    times = [e.step_time_s.expected for e in found.ranked]
    assert times == sorted(times) and len(times) > 2
    layouts = {(e.strategy.tp, e.strategy.pp, e.strategy.cp, e.strategy.ep, e.strategy.dp) for e in found.ranked}
    assert len(layouts) == len(found.ranked)
    assert all(e.fits for e in found.ranked)
    assert found.n_strategies > 500 and 0 < found.n_fit < found.n_strategies
    for e in found.ranked:
        check_strategy(setting_of(goal, e.strategy), e.strategy)


def test_fixed_degrees_are_held() -> None:
    found = find_strategies(_goal(fixed={"tp": 4, "recompute": "full"}))
    assert {e.strategy.tp for e in found.ranked} == {4}
    assert {e.strategy.recompute for e in found.ranked} == {"full"}


def test_offload_is_searched_only_when_nothing_fits_without() -> None:
    roomy = find_strategies(_goal())
    assert not any(e.strategy.offload_optimizer or e.strategy.offload_activations for e in roomy.ranked)
    arch = find_model("llama-2-13b")
    tight = make_goal(arch, find_cluster("2xA100-SXM-80GB"), Wishes(seq_len=2048, global_batch=16))
    found = find_strategies(tight)
    assert found.ranked and found.ranked[0].strategy.offload_optimizer
    assert "offload" in found.notes[0]


def test_moments_of_experts_are_in_bf16_where_gradients_alone_do_not_keep_them_on_the_device() -> None:
    """Nemotron 3 Nano on 16 H100, which Megatron-Bridge times at 0.66 s a step: on the host it would take 5.8."""
    fixed = {"tp": 1, "pp": 1, "ep": 8, "dp": 16, "micro_batch": 1, "recompute": "selective", "sharding": "zero1"}
    wishes = Wishes(seq_len=8192, global_batch=16, precision=("bf16",), stack="megatron-core", fixed=fixed)
    goal = make_goal(find_model("nemotron-3-nano-30b-a3b"), find_cluster("2x8xH100-SXM"), wishes)
    found, fastest = find_strategies(goal), find_fastest(goal)
    first = found.ranked[0]
    assert HALF_MOMENTS in found.notes and not first.strategy.offload_optimizer
    assert (first.strategy.optimizer, first.strategy.gradient_dtype) == ("adamw-bf16", "bf16")
    assert fastest is not None and fastest.estimate is not None and fastest.estimate.strategy == first.strategy
    assert find_strategies(replace(goal, wishes=replace(wishes, optimizer="adamw"))).ranked[0].strategy.optimizer == "adamw"


def test_gradients_are_in_bf16_where_only_that_keeps_the_optimizer_on_the_device() -> None:
    arch, hosts = find_model("llama-2-70b"), find_cluster("2x8xH100-SXM")
    asked: dict[str, Any] = {"tokens": 1e7, "task": "pretrain", "seq_len": 4096, "global_batch": 32}
    short = find_strategies(make_goal(arch, hosts, Wishes(**asked)))
    kept = find_strategies(make_goal(arch, hosts, Wishes(**asked, gradient_dtype="fp32")))
    first, offloaded = short.ranked[0], kept.ranked[0]
    assert first.strategy.gradient_dtype == "bf16" and not first.strategy.offload_optimizer and HALF_GRADIENTS in short.notes
    assert offloaded.strategy.offload_optimizer and HALF_GRADIENTS not in kept.notes
    assert first.step_time_s.expected * WORTH_HALF_GRADIENTS <= offloaded.step_time_s.expected
    fastest = find_fastest(make_goal(arch, hosts, Wishes(**asked)))
    assert fastest is not None and fastest.estimate is not None and fastest.estimate.strategy == first.strategy
    # a step of 4M tokens hides the host: nothing is gained
    long = find_strategies(make_goal(arch, hosts, Wishes(tokens=1e8, task="pretrain")))
    assert long.ranked[0].strategy.offload_optimizer and long.ranked[0].strategy.gradient_dtype == "fp32"


def test_an_impossible_layout_names_its_rule() -> None:
    with pytest.raises(LayoutError) as caught:
        find_strategies(_goal(fixed={"tp": 3}))
    assert caught.value.rule == "heads"


def test_a_batch_too_small_for_the_cluster_is_no_layout() -> None:
    with pytest.raises(LayoutError):
        find_strategies(_goal(global_batch=3, fixed={"dp": 8}))


def test_the_nearest_batch_and_counts_that_work_are_named_and_work() -> None:
    cluster = find_cluster("13x8xH100-SXM")
    goal = make_goal(find_model("gpt2"), cluster, Wishes(global_batch=100))
    with pytest.raises(LayoutError) as caught:
        find_strategies(goal)
    assert caught.value.hint == "the nearest that work: --global-batch 104, or 96 or 112 accelerators"
    assert find_strategies(replace(goal, global_batch=104)).n_strategies
    for n in (96, 112):
        assert find_strategies(replace(goal, cluster=replace(cluster, n_accelerators=n))).n_strategies


@pytest.mark.parametrize(("model", "card"), [("llama-3.2-1b", "1xRTX 4090"), ("bert-large", "1xRTX 3090")])
def test_what_is_recommended_fits_when_its_step_is_replayed(model: str, card: str) -> None:
    """The columns called the fastest strategy of both fitting, and its replayed step did not."""
    alone = make_goal(find_model(model), find_cluster(card), Wishes(stack="compiled"))
    found = find_strategies(alone)
    assert found.ranked and all(e.fits for e in found.ranked)
    fastest = find_in(alone, default_space)
    assert fastest is not None and fastest.fits


def test_find_in_returns_the_fastest(goal: Goal) -> None:
    best = find_in(goal, default_space)
    assert best is not None
    assert best.step_time_s.expected == find_strategies(goal).ranked[0].step_time_s.expected


def test_completed_takes_the_plainest_values(goal: Goal) -> None:
    plain = completed(goal, goal.bases[0])
    assert (plain.dp, plain.tp, plain.sharding, plain.recompute) == (8, 1, "none", "none")
    assert plain.global_batch == goal.global_batch


def test_base_of_forgets_only_columns() -> None:
    s = Strategy(precision="fp16", tp=4, sharding="zero3", lora_rank=8)
    assert base_of(s) == Strategy(precision="fp16", lora_rank=8)


def test_neighbours_are_allowed_and_one_change_away(goal: Goal) -> None:
    best = find_strategies(goal).ranked[0]
    near = neighbours(goal, best)
    assert {n.changes[0].name for n in near} >= {"tensor_parallel", "checkpointing", "sharding"}
    for n in near:
        check_strategy(setting_of(goal, n.estimate.strategy), n.estimate.strategy)
        assert n.estimate.strategy != best.strategy
        assert n.slower == pytest.approx(n.estimate.step_time_s.expected / best.step_time_s.expected - 1)
    sure = [n for n in near if n.fits and n.estimate.fit_probability >= 0.9 and n.changes[0].name != "offload_optimizer"]
    for n in sure:
        tight = not n.estimate.fits_at_ease or n.estimate.headroom_bytes < TIGHT * n.estimate.device_bytes
        assert n.slower is not None and n.slower > (1 / SQUEEZED - 1 if tight else -1e-6)


def test_the_best_alone_is_that_of_the_whole_search(goal: Goal) -> None:
    whole, alone = find_strategies(goal), find_strategies(goal, only_best=True)
    assert alone.ranked == whole.ranked[:1] and not alone.front
    assert (alone.n_strategies, alone.n_fit) == (whole.n_strategies, whole.n_fit)


def test_the_best_alone_is_found_with_fewer_estimates_where_the_fastest_does_not_fit_as_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goal = make_goal(find_model("gpt2-xl"), find_cluster("1xRTX 3090"), Wishes(stack="eager"))
    made: list[int] = []

    def counted(*given: Any) -> tuple[TrainingEstimate, ...]:
        made.append(len(given[1]))
        return estimate_all(*given)

    monkeypatch.setattr(search, "estimate_all", counted)
    whole, n_whole = find_strategies(goal), sum(made)
    alone, n_alone = find_strategies(goal, only_best=True), sum(made) - n_whole
    assert alone.ranked == whole.ranked[:1] and 1 < n_alone < n_whole
