"""Weights, gradients and optimizer states: sharding never adds, and no byte is lost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.architecture import Architecture, Moe
from gpuwise.predict.columns import Columns
from gpuwise.predict.memory.states import StageStates, stage_states
from gpuwise.predict.parallel.shards import stages
from gpuwise.workload.adapters import DEFAULT_TARGETS
from gpuwise.workload.optimizer import parameter_bytes
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import OPTIMIZERS, Strategy
from gpuwise.workload.transformer.parameters import adapter_parameters, count_parameters

SMALL = Architecture(
    id="small",
    name="small",
    kind="decoder",
    n_layers=12,
    hidden=1024,
    ffn=4096,
    heads=16,
    kv_heads=4,
    head_dim=64,
    vocab=32000,
    max_seq_len=4096,
)
SMALL_MOE = replace(SMALL, id="small-moe", moe=Moe(n_experts=16, n_active=2, expert_ffn=2048))
SYSTEM = find_cluster("8xH100-SXM").system


def states(arch: Architecture, s: Strategy) -> list[StageStates]:
    c = Columns.from_strategies([s])
    return stage_states(arch, SYSTEM.count, c, stages(arch, c, float(arch.n_layers)), find_stack(s.stack).memory)


def test_stages_that_no_strategy_has_are_not_made() -> None:
    assert len(states(SMALL, Strategy(dp=8))) == 1 and len(states(SMALL, Strategy(dp=4, pp=2))) == 3


def fullest(arch: Architecture, s: Strategy) -> float:
    """Weights and optimizer bytes of the stage that has most of them."""
    return max(float((x.weights + x.optimizer).flat[0]) for x in states(arch, s))


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(
    st.sampled_from([SMALL, SMALL_MOE]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([2, 4, 8]),
    st.sampled_from(["megatron-core", "nanotron", "eager-fsdp", "megatron-deepspeed"]),
)
def test_sharding_more_never_needs_more(arch: Architecture, tp: int, pp: int, dp: int, stack: str) -> None:
    s = Strategy(tp=tp, pp=pp, dp=dp, stack=stack, sharding="zero1")
    base = fullest(arch, s)
    assert fullest(arch, s.with_(tp=2 * tp)) <= base
    assert fullest(arch, s.with_(dp=2 * dp)) <= base
    assert fullest(arch, s.with_(pp=2 * pp)) <= base
    by_stage = [fullest(arch, s.with_(sharding=z)) for z in ("none", "zero1", "zero2", "zero3")]
    assert by_stage == sorted(by_stage, reverse=True)
    hybrid = s.with_(sharding="hybrid", shard_group=2)
    assert fullest(arch, s.with_(sharding="zero3")) <= fullest(arch, hybrid)


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(OPTIMIZERS),
    st.sampled_from(["zero1", "zero2", "zero3"]),
)
def test_no_byte_is_lost(dp: int, ep: int, optimizer: str, sharding: str) -> None:
    """The optimizer bytes of all ranks together are those of the whole model, once."""
    ep = min(ep, dp)
    s = Strategy(dp=dp, ep=ep, sharding=sharding, optimizer=optimizer)
    b, count = parameter_bytes(s), count_parameters(SMALL_MOE)
    one = states(SMALL_MOE, s)[0]
    assert float(one.optimizer.flat[0]) * dp == pytest.approx(count.total * (b.master + b.state))
    if sharding == "zero3":
        assert float(one.weights.flat[0]) * dp == pytest.approx(count.total * b.weight)


def test_stages_together_hold_the_model() -> None:
    """Four stages of a model with untied ends: every parameter on exactly one of them."""
    s = Strategy(pp=4, dp=2, sharding="zero1")
    first, middle, last = states(SMALL, s)
    weights = first.weights + 2 * middle.weights + last.weights
    assert float(weights.flat[0]) == pytest.approx(2 * count_parameters(SMALL).total, rel=1e-6)
    tied = replace(SMALL, tied_embeddings=True)
    first, middle, last = states(tied, s)
    held = float((first.weights + 2 * middle.weights + last.weights).flat[0]) / 2
    # a tied embedding is on the first stage and again on the last
    assert held == pytest.approx(count_parameters(tied).total + 32000 * 1024, rel=1e-6)


def test_a_pipeline_of_fully_sharded_weights_gathers_them_all() -> None:
    flat, piped = (states(SMALL, Strategy(dp=8 // pp, pp=pp, sharding="zero3", stack="compiled-fsdp"))[0] for pp in (1, 2))
    assert float(flat.gathered.flat[0]) > 0 and float(piped.gathered.flat[0]) == 0
    layers = np.array([6.0])
    per_layer = count_parameters(SMALL).layers / 12
    assert float(piped.weights.flat[0]) > 2 * per_layer * float(layers[0])


def test_frozen_weights_that_are_cast_stay_in_fp32() -> None:
    half, wide = (states(SMALL, Strategy(lora_rank=8, stack="eager", master_weights=m))[0].weights for m in (False, True))
    trained = adapter_parameters(SMALL, DEFAULT_TARGETS, 8)
    assert float(wide.flat[0]) - 2 * trained == pytest.approx(2 * (float(half.flat[0]) - 2 * trained), rel=1e-6)


def test_four_bit_weights() -> None:
    lora, qlora = (
        states(SMALL, Strategy(lora_rank=8, quantized_base=q, stack="eager", master_weights=False))[0] for q in (False, True)
    )
    ends = 2 * 2 * 32000 * 1024
    saved = float((lora.weights - qlora.weights).flat[0])
    matrices = (float(lora.weights.flat[0]) - ends) / 2
    # 4 bits, an 8-bit scale per 64 and an fp32 one per 256 of those, instead of 16
    assert saved == pytest.approx(matrices * (2 - 0.5 - 1 / 64 - 4 / 64 / 256), rel=0.02)


@pytest.mark.parametrize("stack", ["trainer", "hf-fsdp", "deepspeed"])
def test_a_fused_update_makes_no_temporaries(stack: str) -> None:
    """The Trainer's AdamW is one kernel from PyTorch 2.8, DeepSpeed's always; PyTorch's own default goes pass by pass."""
    assert not any(np.any(stage.updated) for stage in states(SMALL, Strategy(stack=stack)))
    assert any(np.any(stage.updated) for stage in states(SMALL, Strategy(stack="eager")))


@pytest.mark.parametrize(("sharding", "divided"), [("none", (1, 1)), ("zero1", (1, 8)), ("zero2", (8, 8)), ("zero3", (8, 8))])
def test_adapters_states_are_divided_as_others_are(sharding: str, divided: tuple[int, int]) -> None:
    """Gradients from ZeRO-2 on, moments and masters from ZeRO-1 on (arXiv 1910.02054, section 5)."""
    adapted = Strategy(dp=8, stack="deepspeed", sharding=sharding, lora_rank=16, master_weights=False)
    parameters, b = adapter_parameters(SMALL, DEFAULT_TARGETS, 16), parameter_bytes(adapted)
    (found,) = states(SMALL, adapted)
    assert float(np.max(found.gradients)) == pytest.approx(parameters * b.gradient / divided[0], rel=2e-3)
    assert float(np.max(found.optimizer)) == pytest.approx(parameters * (b.master + b.state) / divided[1], rel=2e-3)
