"""Iterations of serving engines: laws, and published times per output token."""

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.costs import engine_costs
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.iteration import (
    Iterations,
    device_times,
    iteration_time,
    one_iteration,
    product_work,
    shared_prefill,
    with_engine,
)


def columns(sequences: list[int], q_len: int, kv_len: int) -> Iterations:
    s = np.array(sequences, np.int64)
    return Iterations(s, np.full_like(s, q_len), np.full_like(s, kv_len))


def seconds(model: str, on: str, config: EngineConfig, sequences: list[int], kv_len: int = 1536) -> list[float]:
    arch, system = find_model(model), find_cluster(on).system
    return [iteration_time(arch, system, config, n, 1, kv_len).expected for n in sequences]


@pytest.mark.parametrize(
    ("model", "on", "config", "sequences", "milliseconds"),
    [
        # InferenceX, 1024 in and 1024 out, mean time per output token at low concurrency (prefills play
        # little part)
        ("llama-3.1-70b", "1xB200-SXM", EngineConfig("trtllm", "fp8", kv_dtype="fp8"), 4, 14.6),
        ("llama-3.1-70b", "8xB200-SXM", EngineConfig("trtllm", "fp8", kv_dtype="fp8", tp=8), 4, 5.4),
        ("gpt-oss-120b", "8xH200-SXM", EngineConfig("vllm", "bf16", "mxfp4", "fp8", tp=8, moe_tp=8), 4, 3.6),
        (
            "deepseek-r1",
            "8xH200-SXM",
            EngineConfig("sglang", "fp8_block", kv_dtype="fp8", tp=8, moe_tp=8),
            4,
            10.3,
        ),
        ("kimi-k2", "8xH200-SXM", EngineConfig("vllm", "bf16", "int4_wo", tp=8, moe_tp=8), 4, 10.3),
    ],
)
def test_published_decode(model: str, on: str, config: EngineConfig, sequences: int, milliseconds: float) -> None:
    assert seconds(model, on, config, [sequences])[0] * 1e3 == pytest.approx(milliseconds, rel=0.35)


def test_a_step_is_without_the_layers_of_a_drafter() -> None:
    """An engine without speculative decoding loads no multi-token prediction (vllm model_executor/models/qwen3_next_mtp.py is
    a model of its own)."""
    arch, system = find_model("qwen3.6-35b-a3b"), find_cluster("gb10").system
    assert arch.prediction_layers
    with_it, without = (one_iteration(a, system, EngineConfig(), 1, 1, 512) for a in (arch, replace(arch, prediction_layers=0)))
    assert with_it.kernels_s == without.kernels_s


def test_shared_experts_come_through_the_same_memory() -> None:
    """Nemotron 3 Nano on a DGX Spark, vLLM of August 2026: 29.1 tokens/s in 16 bits (local/speed.parquet); six routed experts
    of 20 MB in each of 23 layers, and a shared one of 40."""
    arch, system = find_model("nemotron-3-nano-30b"), find_cluster("gb10").system
    assert arch.moe is not None and arch.moe.shared_ffn
    alone = replace(arch, moe=replace(arch.moe, n_shared=0, shared_ffn=0))
    both, routed = (one_iteration(a, system, EngineConfig(), 1, 1, 512).kernels_s[0] for a in (arch, alone))
    shared = 23 * 2 * 2688 * 3712 * 2 / system.accelerator.memory_bandwidth_bytes_per_s
    assert 0.5 * shared < both - routed < 1.5 * shared
    assert both == pytest.approx(1 / 29.1, rel=0.15)


def test_measured_decode_on_a_card_for_games() -> None:
    """vLLM 0.19 on one RTX 4090 while nothing is read: 16 sequences of 1,430 tokens write 800 tokens a second
    (casys-kaist/LLMServingSim, bench/examples/RTX4090/Llama-3.1-8B: engine-side throughput, second by second)."""
    assert seconds("llama-3.1-8b", "rtx-4090", EngineConfig(), [16], 1430)[0] == pytest.approx(16 / 800, rel=0.15)


def test_a_larger_batch_takes_longer_but_less_than_in_proportion() -> None:
    time = seconds("llama-3.1-8b", "1xH100-SXM5-80GB", EngineConfig(), [1, 16, 128])
    assert time[0] < time[1] < time[2] < 128 * time[0]


def test_longer_context_and_wider_weights_take_longer() -> None:
    short, long = (seconds("llama-3.1-8b", "1xH100-SXM5-80GB", EngineConfig(), [64], kv)[0] for kv in (512, 16384))
    assert short < long
    narrow = seconds("llama-3.1-8b", "1xH100-SXM5-80GB", EngineConfig(weights="fp8"), [4])[0]
    assert narrow < seconds("llama-3.1-8b", "1xH100-SXM5-80GB", EngineConfig(), [4])[0]


def test_weights_bound_one_sequence() -> None:
    system = find_cluster("1xH100-SXM5-80GB").system
    weights_s = 2 * (8.03e9 - 128256 * 4096) / system.accelerator.memory_bandwidth_bytes_per_s
    done = device_times(find_model("llama-3.1-8b"), system, EngineConfig(), columns([1], 1, 64))
    assert weights_s < done.kernels_s[0] < 2 * weights_s
    assert done.communication_s[0] == 0


def test_tensor_parallel_splits_kernels_and_communicates() -> None:
    model, one, four = (
        find_model("llama-3.1-70b"),
        find_cluster("1xH100-SXM5-80GB"),
        find_cluster("4xH100-SXM5-80GB"),
    )
    alone = device_times(model, one.system, EngineConfig(weights="fp8"), columns([16], 1, 1024))
    split = device_times(model, four.system, EngineConfig(weights="fp8", tp=4), columns([16], 1, 1024))
    assert split.kernels_s[0] < 0.5 * alone.kernels_s[0]
    assert split.communication_s[0] > 0


def test_prefill_is_near_its_arithmetic() -> None:
    system = find_cluster("1xH100-SXM5-80GB").system
    done = device_times(find_model("llama-3.1-8b"), system, EngineConfig(), columns([1], 8192, 8192))
    flop_s = 2 * 7.0e9 * 8192 / system.accelerator.peak("bf16")
    assert flop_s < done.kernels_s[0] < 3 * flop_s


def test_an_iteration_does_not_depend_on_what_else_is_asked() -> None:
    """Alone twice, the second time after others: the same to the last digit."""
    arch, system = find_model("llama-3.1-8b"), find_cluster("rtx-4090").system
    first = iteration_time(arch, system, EngineConfig(), 1, 1, 4096)
    for n in (2, 3, 64):
        iteration_time(arch, system, EngineConfig(), n, 1, 4096)
    one_iteration.cache_clear()
    assert iteration_time(arch, system, EngineConfig(), 1, 1, 4096) == first


def test_products_of_a_token_multiply_by_every_weight_once() -> None:
    arch = find_model("llama-3.1-8b")
    weights = 8.03e9 - 128256 * 4096  # without the table that is only looked up
    flop, moved = product_work(arch, EngineConfig(), 1, 1)
    assert flop == pytest.approx(2 * weights, rel=0.01) and moved == pytest.approx(2 * weights, rel=0.01)
    many, moved_by_many = product_work(arch, EngineConfig(), 64, 1)
    assert many == pytest.approx(64 * flop) and moved < moved_by_many < 1.1 * moved
    assert product_work(arch, EngineConfig(tp=4), 1, 1)[0] == pytest.approx(flop / 4)


def test_devices_whose_kernels_were_not_measured_have_wider_intervals() -> None:
    arch = find_model("llama-3.1-8b")
    known, sibling = (iteration_time(arch, find_cluster(n).system, EngineConfig(), 1, 1, 4096) for n in ("h100-sxm", "rtx-4090"))
    assert known.basis == "fitted" and known.log_sigma == pytest.approx(engine_costs(EngineConfig()).log_sigma)
    assert sibling.basis != "fitted" and sibling.log_sigma > known.log_sigma


def test_a_prompt_that_shares_its_iterations_adds_no_cost_of_the_engine() -> None:
    arch, system, config = find_model("llama-3.1-8b"), find_cluster("h100-sxm").system, EngineConfig()
    device, costs = one_iteration(arch, system, config, 1, 1000, 1000), engine_costs(config)
    alone = with_engine(device, costs, 1, arch.n_layers)[0]
    host = costs.iteration_s + costs.sequence_s + costs.layer_s * arch.n_layers
    assert alone - host == pytest.approx(device.kernels_s[0] * costs.kernel_slowdown)
    assert shared_prefill(device, costs)[0] == pytest.approx(device.kernels_s[0] * costs.prefill_slowdown)


def test_a_split_the_model_cannot_have() -> None:
    arch, system = find_model("llama-3.1-8b"), find_cluster("1xH100-SXM5-80GB").system
    with pytest.raises(InputError):
        iteration_time(arch, system, EngineConfig(tp=3), 1, 1, 8)
