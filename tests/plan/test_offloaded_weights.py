"""Weights in host memory beside the optimizer, by FSDP or ZeRO-3: what stays on the device, what is on the host, the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.api import make_fit, make_plan
from gpuwise.plan.explain import layout
from gpuwise.plan.goal import Wishes
from gpuwise.predict.step.times import host_update_bytes_per_s
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


def test_the_root_of_fsdp_gathers_both_ends() -> None:
    """Yi 34B, QLoRA on 2x 4090 (AnswerDotAI/fsdp_qlora): 23.05 GiB, 22.98 in twice the batch with weights on the host."""
    whole = under("hf-fsdp", offload=False, lora=64, model="yi-34b").memory_parts
    apart = under("compiled-fsdp", offload=False, lora=64, model="yi-34b").memory_parts
    assert whole["activations"] > apart["activations"]
    on_host = under("hf-fsdp", lora=64, model="yi-34b").memory_parts
    ends, layers = 2 * 64000 * 7168 * 2.0, 2 * 0.5 * 34e9 / 60
    assert on_host["communication"] == pytest.approx((ends + layers) / 2, rel=0.1)


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
    offloaded = make_plan("llama-2-70b", "2x4090", replace(wishes, fixed={"offload_optimizer": True, "micro_batch": 2}))
    assert offloaded.best is not None and offloaded.best.estimate.strategy.optimizer == "adamw"
    asked = make_fit("llama-2-70b", "2x4090", Wishes(seq_len=2048, lora_rank=16, quantized_base=True))
    assert any(c.estimate.fits and "weights and optimizer in host memory" in c.name for c in asked.combinations)


def test_the_recipe_of_torchtune_for_70b_is_met() -> None:
    """Full fine-tuning on 8 A100 with FSDP2's offload: 13.9 GiB, 196 tokens/s a GPU (pytorch/torchtune README at 0031bfb)."""
    cluster = find_cluster("8xA100-80GB-SXM")
    s = Strategy(stack="torchtune", micro_batch=2, dp=8, sharding="zero3", recompute="full", offload_optimizer=True)
    s = s.with_(master_weights=False, gradient_dtype="bf16", fused_loss=True)
    e = estimates(find_model("llama-3.1-70b"), cluster, [s], 2048)[0]
    assert e.allocated_bytes.expected / GIB == pytest.approx(13.9, rel=0.25)
    assert 2 * 2048 / e.step_time_s.expected == pytest.approx(196, rel=0.25)


def zero3(*, offload: bool = True, **more: object) -> TrainingEstimate:
    cluster = find_cluster("8xA100-80GB-SXM")
    s = Strategy(stack="deepspeed", micro_batch=2, dp=8, accumulation=4, sharding="zero3", recompute="full")
    s = s.with_(offload_optimizer=True, offload_parameters=offload).with_(**more)
    return estimates(find_model("llama-2-7b"), cluster, [s], 2048)[0]


def test_zero3_moves_the_weights_where_it_is_asked_to() -> None:
    on_device, on_host = zero3(offload=False), zero3()
    weights = on_device.memory_parts["weights"]
    assert weights > 1.6e9 and on_host.memory_parts["weights"] == 0
    freed = on_device.needed_bytes.expected - on_host.needed_bytes.expected
    assert freed == pytest.approx(weights, rel=0.1)
    assert on_host.host_bytes - on_device.host_bytes == pytest.approx(8 * weights, rel=0.05)
    assert on_host.breakdown_s["offload"] == pytest.approx(on_device.breakdown_s["offload"], rel=0.25)


def test_gradients_summed_on_the_host_travel_for_each_micro_batch() -> None:
    once, often = (zero3(offload=False, micro_batch=8 // n, accumulation=n).breakdown_s["offload"] for n in (1, 8))
    assert often > 1.05 * once


def test_a_model_of_61_gib_trains_in_larger_micro_batches_with_its_weights_on_the_host() -> None:
    plan = make_plan("qwen2.5-32b", "1xA100-80GB-SXM", Wishes(tokens=1e7, seq_len=2048))
    assert plan.best is not None and plan.best.estimate.strategy.offload_parameters
    alone = make_plan("qwen2.5-32b", "1xA100-80GB-SXM", Wishes(tokens=1e7, seq_len=2048, fixed={"micro_batch": 1}))
    assert alone.best is not None
    assert alone.best.estimate.step_time_s.expected > 1.3 * plan.best.estimate.step_time_s.expected
    assert any("offload_param" in note for note in plan.warnings)


def test_asking_for_weights_on_the_host_takes_a_stack_that_has_it() -> None:
    wishes = Wishes(tokens=1e8, task="pretrain", seq_len=2048, offload_parameters=True)
    by_zero, by_fsdp = (make_plan("llama-2-7b", on, wishes).best for on in ("1xA100-80GB-SXM", "8xA100-80GB-SXM"))
    assert by_zero is not None and by_zero.estimate.strategy.stack == "deepspeed"
    assert by_fsdp is not None and by_fsdp.estimate.strategy.stack == "compiled-fsdp"
    assert "weights and optimizer offload" in layout(by_zero.estimate.strategy)
    assert "weights and optimizer offload" in layout(by_fsdp.estimate.strategy)


def test_weights_alone_are_kept_in_host_memory_by_zero3() -> None:
    wishes = Wishes(tokens=1e8, task="pretrain", seq_len=2048, fixed={"sharding": "zero3", "micro_batch": 2, "recompute": "full"})
    alone = replace(wishes, offload_parameters=True, fixed={**wishes.fixed, "offload_optimizer": False})
    on = "8xA100-80GB-SXM"
    both, one, none = (
        make_plan("llama-2-7b", on, replace(w, stack="deepspeed")).best
        for w in (replace(wishes, offload_parameters=True), alone, replace(wishes, fixed=alone.fixed))
    )
    assert both is not None and one is not None and none is not None
    e = one.estimate
    assert layout(e.strategy).endswith(", weight offload") and not e.strategy.offload_optimizer
    assert e.memory_parts["weights"] == 0 < e.memory_parts["optimizer"] == none.estimate.memory_parts["optimizer"]
    assert 2 * 6.7e9 < e.host_bytes < both.estimate.host_bytes
    assert none.estimate.step_time_s.expected < e.step_time_s.expected < both.estimate.step_time_s.expected
    default = make_plan("llama-2-7b", on, alone).best
    assert default is not None and default.estimate.strategy.stack == "deepspeed"
    with pytest.raises(InputError, match="does not offload the parameters"):
        make_plan("llama-2-7b", on, replace(alone, stack="hf-fsdp"))


@pytest.mark.parametrize(
    ("on", "parameters", "measured_s"),
    [
        ("1xrtx-pro-6000-blackwell-workstation", 4.02e9, 4.1),
        ("8xH200", 8.03e9, 2.0),
        ("4xA100-80GB-SXM", 6.74e9, 6.5),
        pytest.param("8xA100-40GB-SXM", 7.22e9, 6.7, id="falcon-7b"),
    ],
)
def test_an_update_on_the_host_takes_what_was_measured(on: str, parameters: float, measured_s: float) -> None:
    """PrimeIntellect-ai/prime-rl pull 3210; ml-engineering insights/when-to-upgrade-gpus; DeepSpeed ZenFlow (all three
    fitted); DeepSpeed issue 3901, ZeRO-2 with the optimizer on the host beside ZeRO-3 without (not fitted)."""
    cluster = find_cluster(on)
    n = cluster.n_accelerators
    seconds = parameters / n * 28 / float(host_update_bytes_per_s(cluster.system, n, by_deepspeed=n > 1))
    assert seconds == pytest.approx(measured_s, rel=0.3)


def test_what_is_not_known_of_an_update_on_the_host_widens_the_step() -> None:
    """By the share of the step that the offload takes."""

    def width(n: int) -> tuple[float, float]:
        e = zero3(offload=False, accumulation=n)
        return e.step_time_s.high / e.step_time_s.expected, e.breakdown_s["offload"] / e.step_time_s.expected

    (once, most), (often, least) = width(1), width(64)
    assert most > 3 * least and once > 1.1 * often
