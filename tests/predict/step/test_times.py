"""Laws of the training step."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.facts.hardware.naming import find_accelerator, find_cluster
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.columns import Columns
from gpuwise.predict.comm.groups import data_group, expert_data_group, expert_group, largest_divisor, tensor_group
from gpuwise.predict.parallel.shards import stages
from gpuwise.predict.stack_costs import find_stack_costs
from gpuwise.predict.step.evaluate import evaluate
from gpuwise.predict.step.times import (  # pyright: ignore[reportPrivateUsage]
    SATURATION_DOUBLINGS,
    ParameterCopies,
    StepTimes,
    _parameter_copies,
    _update,
    stragglers,
)
from gpuwise.predict.step.training import estimates
from gpuwise.workload.optimizer import update_traffic_bytes
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.transformer.parameters import count_parameters

LLAMA = find_model("llama-3.1-8b")
EIGHT = find_cluster("8xH100-SXM").system


def step(strategy: Strategy, system: System = EIGHT, seq_len: int = 4096) -> StepTimes:
    return evaluate(LLAMA, system, Columns.from_strategies([strategy]), seq_len).times


layouts = st.builds(
    lambda tp, pp, sharding, recompute, micro: Strategy(
        tp=tp, pp=pp, dp=max(1, 8 // (tp * pp)), accumulation=8, sharding=sharding, recompute=recompute, micro_batch=micro
    ),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["none", "zero1", "zero3"]),
    st.sampled_from(["none", "selective", "full"]),
    st.integers(1, 4),
)


@given(layouts)
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_the_parts_sum_to_the_step(strategy: Strategy) -> None:
    t = step(strategy)
    parts = [
        t.compute_s,
        t.recompute_s,
        t.communication_s,
        t.launch_s,
        t.bubble_s,
        t.data_parallel_s,
        t.optimizer_s,
        t.offload_s,
        t.framework_s,
    ]
    assert sum(p.item() for p in parts) == pytest.approx(t.step_s.item(), rel=1e-9)
    assert all(p.item() >= -1e-9 for p in parts)


@given(layouts)
@settings(max_examples=settings().max_examples, deadline=None)
def test_more_work_is_never_faster(strategy: Strategy) -> None:
    once = step(strategy).step_s.item()
    assert step(strategy.with_(accumulation=strategy.accumulation + 1)).step_s.item() > once
    assert step(strategy, seq_len=8192).step_s.item() > once
    if strategy.recompute == "none":
        assert step(strategy.with_(recompute="full")).step_s.item() > once


@given(layouts)
@settings(max_examples=settings().max_examples, deadline=None)
def test_a_faster_link_or_network_is_never_slower(strategy: Strategy) -> None:
    slow = replace(EIGHT, link_bytes_per_s=EIGHT.link_bytes_per_s / 2)
    assert step(strategy, slow).step_s.item() >= step(strategy).step_s.item()


def test_one_row_or_many_gives_the_same_numbers() -> None:
    some = [Strategy(tp=t, dp=8 // t, accumulation=4, micro_batch=m, sharding="zero1") for t in (1, 2, 4, 8) for m in (1, 2)]
    together = evaluate(LLAMA, EIGHT, Columns.from_strategies(some), 4096).times.step_s
    alone = [step(s).step_s.item() for s in some]
    np.testing.assert_allclose(together, alone, rtol=1e-9)


def test_overlap_switched_off_costs_time() -> None:
    tp = Strategy(tp=8, accumulation=8, sharding="zero1")
    assert step(tp.with_(overlap_tp=False)).step_s.item() > step(tp).step_s.item()
    dp = Strategy(dp=8, sharding="zero1")
    assert step(dp.with_(overlap_dp=False)).step_s.item() > step(dp).step_s.item()


def test_stragglers_saturate_and_follow_the_network_to_the_first_power() -> None:
    doublings = np.arange(0.0, 14.0)
    waiting = stragglers(doublings, 50e9)
    assert waiting[0] == 0.0 and waiting.max() < SATURATION_DOUBLINGS
    assert (np.diff(waiting) > 0).all() and (np.diff(waiting, 2) < 0).all()
    assert stragglers(doublings, 25e9) == pytest.approx(2 * waiting)


def test_an_older_release_is_slower_on_a_new_device_only() -> None:
    costs = find_stack_costs("megatron-core")
    gb200, a100 = (find_cluster(n).accelerator for n in ("4xGB200", "8xA100-80GB-SXM"))
    old, new = Strategy(release=costs.first_release), Strategy()
    assert costs.under(old, gb200).memory_slowdown > costs.under(new, gb200).memory_slowdown
    assert costs.under(old, a100).memory_slowdown == costs.under(new, a100).memory_slowdown


@given(n=st.integers(1, 512), limit=st.integers(1, 72))
def test_largest_divisor(n: int, limit: int) -> None:
    found = largest_divisor(np.array([n]), np.array([min(n, limit)])).item()
    assert n % found == 0 and found <= limit
    assert not any(n % d == 0 for d in range(found + 1, min(n, limit) + 1))


@given(
    tp=st.sampled_from([1, 2, 4, 8]), cp=st.sampled_from([1, 2]), dp=st.sampled_from([8, 16, 32]), ep=st.sampled_from([1, 4, 8])
)
def test_groups_tile_the_ranks(tp: int, cp: int, dp: int, ep: int) -> None:
    t, c, d, e = (np.array([x]) for x in (tp, cp, dp, ep))
    assert tensor_group(EIGHT, t).size.item() == tp
    assert data_group(EIGHT, t, c, d).size.item() * tp == tp * cp * dp
    assert expert_group(EIGHT, e).size.item() * expert_data_group(EIGHT, t, c, d, e).size.item() == tp * cp * dp
    for group in (tensor_group(EIGHT, t), data_group(EIGHT, t, c, d), expert_group(EIGHT, e)):
        assert group.size.item() % group.local.item() == 0 and group.local.item() <= EIGHT.domain_size


def test_a_python_loop_over_the_parameters_waits_for_its_launches() -> None:
    arch, one = find_model("bert-large"), find_cluster("1xH100-SXM").system
    runs = {p: Strategy(precision=p, stack="apex", micro_batch=8, fused_attention=False) for p in ("tf32", "fp16")}
    looped, fused = (
        float(np.squeeze(evaluate(arch, one, Columns.from_strategies([s]), 384).times.optimizer_s)) for s in runs.values()
    )
    tensors, operations = 24 * 16 + 7, 14
    assert looped > tensors * operations * 5e-6  # a launch and a dispatch each take the host more than that
    assert fused < 0.2 * looped


def test_a_graph_of_the_whole_iteration_leaves_the_host_no_work() -> None:
    costs, h100 = find_stack_costs("megatron-core"), find_accelerator("H100-SXM5-80GB")
    partial, full = (costs.under(Strategy(cuda_graphs=g), h100) for g in ("partial", "full"))
    assert partial.step_overhead_s == costs.step_overhead_s > 0.0 and partial.launch_s > 0.0
    assert full.step_overhead_s == full.stall_s == full.launch_s == 0.0
    assert full.matmul_slowdown == partial.matmul_slowdown


def test_tensor_transfers_hide_behind_products_over_a_device_link_only() -> None:
    costs, a100 = find_stack_costs("megatron-core"), find_cluster("8xA100-80GB-SXM").system
    cards = find_cluster("8xRTX-5070-Ti").system
    assert a100.linked and not cards.linked
    assert costs.on(a100, Strategy(tp=2), 8).tp_overlap > 0
    assert costs.on(cards, Strategy(tp=2), 8).tp_overlap == 0


def test_an_optimizer_on_the_device_streams_its_state_once() -> None:
    """No faster than memory at its data sheet's rate, and not as slow as twice."""
    arch, system = find_model("llama-3.1-8b"), find_cluster("8xH100-SXM").system
    c = Columns.from_strategies([Strategy(stack="megatron-core", dp=8, sharding="zero1")])
    seconds = float(np.max(_update(arch, system, c, stages(arch, c, 32.0), per_op=False)))
    moved = count_parameters(arch).total / 8 * update_traffic_bytes(c.base, find_stack("megatron-core").fused_optimizer)
    least = moved / system.accelerator.memory_bandwidth_bytes_per_s
    assert least <= seconds <= 2 * least


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
def test_parameters_on_the_host_come_back_a_layer_at_a_time_to_every_rank_its_part(model: str) -> None:
    """ZeRO-3 with weights on the host: twice the ranks copy half as much each; the backward brings the layer back and its
    gradients to the host."""
    arch, made = find_model(model), list[ParameterCopies]()
    for n in (8, 16):
        c = Columns.from_strategies(
            [Strategy(stack="deepspeed", dp=n, sharding="zero3", offload_parameters=True, offload_optimizer=True)]
        )
        system = find_cluster(f"{n}xH100-SXM").system
        copies = _parameter_copies(arch, system, c, stages(arch, c, float(arch.n_layers)))
        assert copies is not None
        made.append(copies)
    one, two = made
    for name in ("forward_s", "backward_s"):
        assert float(np.max(getattr(two, name))) == pytest.approx(float(np.max(getattr(one, name))) / 2, rel=0.05)
    layer = count_parameters(arch).layers / arch.n_layers / 8 * 2  # two bytes each
    at_least = layer / (find_cluster("8xH100-SXM").system.accelerator.pcie_bytes_per_s or math.inf)
    assert at_least <= float(np.max(one.forward_s)) <= 4 * at_least
    assert float(np.max(one.ends_s)) > float(np.max(one.forward_s)) > 0


def test_adapters_send_their_own_gradients_to_the_host() -> None:
    """LoRA trains a hundredth of the weights: hardly any gradients travel beside the frozen weights."""
    arch, system = find_model("llama-3.1-8b"), find_cluster("8xH100-SXM").system
    whole, adapted = (
        Columns.from_strategies(
            [Strategy(stack="deepspeed", dp=8, sharding="zero3", offload_parameters=True, offload_optimizer=True, lora_rank=rank)]
        )
        for rank in (0, 16)
    )
    all_of_it, few = (_parameter_copies(arch, system, c, stages(arch, c, 32.0)) for c in (whole, adapted))
    assert all_of_it is not None and few is not None
    gradients = float(np.max(all_of_it.backward_s - all_of_it.forward_s))
    assert 0 < float(np.max(few.backward_s - few.forward_s)) < 0.1 * gradients


def test_gathers_through_the_host_hide_little_behind_products_and_those_of_four_bits_are_short() -> None:
    """LoRA of Llama 2 7B on two 4090, FSDP over DDP per sequence: 1.10 measured (AnswerDotAI/fsdp_qlora)."""
    costs, cards, h100 = find_stack_costs("hf-fsdp"), find_cluster("2x4090").system, find_cluster("8xH100-SXM").system
    staged, alone, linked = (costs.on(s, Strategy(), n).contention for s, n in ((cards, 2), (cards, 1), (h100, 2)))
    assert staged > 2 * linked and alone == linked
    arch, on = find_model("llama-2-7b"), find_cluster("2x3090")
    lora = Strategy(stack="hf-fsdp", dp=2, sharding="zero3", recompute="full", lora_rank=64, master_weights=False)
    both = estimates(arch, on, [lora], 512)[0], estimates(arch, on, [lora.with_(quantized_base=True)], 512)[0]
    assert both[1].breakdown_s["communication"] < 0.4 * both[0].breakdown_s["communication"]
