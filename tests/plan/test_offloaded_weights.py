"""FSDP's offload moves the weights with the optimizer: what stays on the device, what the host holds, what it costs."""

from __future__ import annotations

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.api import fit, make_plan
from gpuwise.plan.explain import layout
from gpuwise.plan.goal import Wishes
from gpuwise.predict.step.training import TrainingEstimate, estimates
from gpuwise.units import GIB
from gpuwise.workload.strategy import Strategy


def under(stack: str, *, offload: bool = True, lora: int = 0, model: str = "llama-2-7b", on: str = "2x4090") -> TrainingEstimate:
    cluster = find_cluster(on)
    s = Strategy(
        stack=stack, micro_batch=2, dp=cluster.n_accelerators, sharding="zero3", recompute="full", offload_optimizer=offload
    )
    s = s.with_(lora_rank=lora, quantized_base=bool(lora), master_weights=False, gradient_dtype="bf16")
    return estimates(find_model(model), cluster, [s], 2048)[0]


@pytest.mark.parametrize("stack", ["hf-fsdp", "torchtune", "compiled-fsdp", "eager-fsdp"])
def test_no_weights_stay_on_the_device(stack: str) -> None:
    on_device, on_host = under(stack, offload=False), under(stack)
    parts, before = on_host.memory_parts, on_device.memory_parts
    assert before["weights"] > 6e9 and parts.get("weights", 0) == parts.get("gradients", 0) == parts.get("optimizer", 0) == 0
    freed = sum(before[name] for name in ("weights", "gradients", "optimizer"))
    assert on_device.needed_bytes.expected - on_host.needed_bytes.expected == pytest.approx(freed, rel=0.15)


def test_deepspeed_keeps_them() -> None:
    assert under("deepspeed").memory_parts["weights"] > 6e9


def test_frozen_weights_lie_in_host_memory_and_travel_each_pass() -> None:
    plain, moved = under("hf-fsdp", offload=False, lora=16), under("hf-fsdp", lora=16)
    weights = plain.memory_parts["weights"]
    assert moved.host_bytes > 2 * 0.8 * weights > 10 * plain.host_bytes
    assert moved.breakdown_s["offload"] > 0 == plain.breakdown_s.get("offload", 0)


def test_70b_under_qlora_trains_on_two_cards_of_24_gb() -> None:
    """As published with FSDP and CPU offload: 14.9 GiB reserved (github.com/AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md)."""
    wishes = Wishes(tokens=1e9, seq_len=2048, global_batch=4, lora_rank=64, quantized_base=True, stack="hf-fsdp")
    plan = make_plan("llama-2-70b", "2x4090", wishes)
    assert plan.best is not None and "weights and optimizer offload" in layout(plan.best.estimate.strategy)
    asked = fit("llama-2-70b", "2x4090", Wishes(seq_len=2048, lora_rank=16, quantized_base=True))
    assert any(c.estimate.fits and "weights and optimizer in host memory" in c.name for c in asked.combinations)


def test_the_recipe_of_torchtune_for_70b_is_met() -> None:
    """Full fine-tuning on 8 A100 with FSDP2's offload: 13.9 GiB, 196 tokens/s a GPU (pytorch/torchtune README at 0031bfb)."""
    cluster = find_cluster("8xA100-80GB-SXM")
    s = Strategy(stack="torchtune", micro_batch=2, dp=8, sharding="zero3", recompute="full", offload_optimizer=True)
    s = s.with_(master_weights=False, gradient_dtype="bf16", fused_loss=True)
    e = estimates(find_model("llama-3.1-70b"), cluster, [s], 2048)[0]
    assert e.allocated_bytes.expected / GIB == pytest.approx(13.9, rel=0.25)
    assert 2 * 2048 / e.step_time_s.expected == pytest.approx(196, rel=0.25)
