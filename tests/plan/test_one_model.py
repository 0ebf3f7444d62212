"""A generated token and a training run on one device: sizes, what fits, agreement with the plan."""

from __future__ import annotations

import datetime

import pytest

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.cpus import find_cpu
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.targets import find_target
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.api import make_plan
from gpuwise.plan.goal import Wishes
from gpuwise.plan.one_model import decode, train
from gpuwise.serve.replica import ReplicaStep, serve

TODAY = datetime.date(2026, 11, 21)
LLAMA = find_model("llama-3.1-8b")


def test_published_sizes() -> None:
    assert decode(LLAMA, "bf16", [], context=131_072).cache_bytes == 131_072 * 131_072  # 128 KiB a token
    assert decode(LLAMA, "bf16", []).weight_bytes == pytest.approx(16.06e9, rel=1e-3)
    latent = find_model("deepseek-v3")
    # arXiv 2412.19437: 70 KB a token, in pages of 16
    assert decode(latent, "bf16", [], context=1).cache_bytes == 16 * 61 * (512 + 64) * 2


def test_measured_single_streams_are_within_a_fifth() -> None:
    """Llama 3 8B, Q4_K_M and F16 on one RTX 4090: 127.74 and 54.34 tokens/s (XiongjieDai/GPU-Benchmarks-on-LLM-Inference)."""
    for weights, measured in (("Q4_K_M", 127.74), ("F16", 54.34)):
        row = decode(find_model("llama-3-8b"), weights, [find_target("4090")]).rows[0]
        assert row.tokens_per_s is not None and row.tokens_per_s.expected == pytest.approx(measured, rel=0.2)


def test_decoding_is_what_the_replica_says() -> None:
    """The step, the memory and the program of the serving room, split over every GPU named."""
    gemma = find_model("gemma-3-27b")
    row = decode(gemma, "int4_wo", [find_target("4090")], context=32_768).rows[0]
    got = serve(gemma, find_cluster("rtx-4090").system, ("int4_wo",), (1,), context=32_768)
    assert isinstance(got, ReplicaStep) and row.time_s == got.step and row.tokens_per_s == got.tokens_per_s()
    assert (row.needs_bytes, row.has_bytes) == (got.memory.total, got.memory.most)
    assert row.notes[0] == "vLLM" and row.notes[1].startswith("first token of a prompt of 32,768 tokens after ")
    two = decode(LLAMA, "bf16", [find_target("2xh100-sxm")]).rows[0]
    split = serve(LLAMA, find_cluster("2xh100-sxm").system, ("bf16",), (2,), context=1024)
    assert isinstance(split, ReplicaStep) and two.time_s == split.step and two.notes[0] == "vLLM, tensor parallel 2"
    experts = find_model("mixtral-8x7b")
    both = decode(experts, "bf16", [find_target("4xh100-sxm")]).rows[0].time_s
    moe = serve(experts, find_cluster("4xh100-sxm").system, ("bf16",), (4,), context=1024)
    assert isinstance(moe, ReplicaStep) and both == moe.step


def test_a_format_of_an_engine_where_it_does_not_run_is_llama_cpps_nearest() -> None:
    row = decode(find_model("llama-3.2-1b"), "bf16", [find_target("m2-ultra 192GB")]).rows[0]
    same = decode(find_model("llama-3.2-1b"), "F16", [find_target("m2-ultra 192GB")]).rows[0]
    assert row.time_s == same.time_s and row.notes == ("as F16 in llama.cpp",) and same.notes == ()
    with pytest.raises(UnpredictableError):
        decode(find_model("llama-3.2-1b"), "bf16", [find_target("m2-ultra 192GB")], batch=8)


def test_longer_contexts_and_larger_batches_cost() -> None:
    on = [find_target("h100-sxm")]
    short, long = (decode(LLAMA, "bf16", on, context=c).rows[0].time_s for c in (1024, 65_536))
    assert short is not None and long is not None and short.expected < long.expected
    one, many = (decode(LLAMA, "bf16", on, batch=b).rows[0].tokens_per_s for b in (1, 64))
    assert one is not None and many is not None and one.expected < many.expected < 64 * one.expected


def test_what_does_not_fit_has_no_time() -> None:
    row = decode(find_model("llama-3.1-70b"), "bf16", [find_target("h100-sxm")], find_cpu("epyc 9654")).rows[0]
    assert row.time_s is None and row.speedup is None and row.bound == "does not fit"
    assert row.needs_bytes is not None and row.has_bytes is not None and row.needs_bytes > row.has_bytes
    trained = train(find_model("llama-3.1-405b"), 1e9, [find_target("t4")], today=TODAY).rows[0]
    assert trained.time_s is None and trained.bound == "does not fit"


def test_training_on_gpus_is_the_plan() -> None:
    on = find_target("8xh100-sxm")
    row = train(LLAMA, 1e9, [on], today=TODAY).rows[0]
    best = make_plan(LLAMA, "8xh100-sxm", Wishes(tokens=1e9), today=TODAY).best
    assert best is not None and row.time_s == best.time_s and row.cost_usd == best.cost_usd


def test_training_speedup_is_the_ratio_of_times() -> None:
    answer = train(find_model("bert-base"), 1e7, [find_target("t4")], find_cpu("i5-12400"), today=TODAY, seq_len=128)
    gpu, cpu = answer.rows[0], answer.against
    assert cpu is not None and cpu.time_s is not None and gpu.time_s is not None and gpu.speedup is not None
    assert gpu.speedup.expected == pytest.approx(cpu.time_s.expected / gpu.time_s.expected)
    assert cpu.notes[-1] == "in fp32" and cpu.notes[0].startswith("memory is taken as DDR5-4800 x 2")
    amx = train(find_model("bert-base"), 1e7, [find_cpu("xeon 8480+")], today=TODAY, seq_len=128).rows[0]
    assert amx.notes[-1] == "in bf16" and amx.time_s is not None and amx.time_s.expected < cpu.time_s.expected


def test_refusals() -> None:
    on = [find_target("a100")]
    for refused in (
        lambda: decode(find_model("bert-base"), "F16", on),
        lambda: decode(LLAMA, "F16", on, context=200_000),
        lambda: decode(LLAMA, "F16", on, batch=2),
        lambda: decode(LLAMA, "bf16", on, batch=1_000_000),
        lambda: decode(LLAMA, "bf16", [find_target("16xh100-sxm")]),
        lambda: train(LLAMA, 0.0, on, today=TODAY),
        lambda: train(LLAMA, float("nan"), on, today=TODAY),
        lambda: train(LLAMA, 1e9, on, today=TODAY, seq_len=10**6),
    ):
        with pytest.raises(InputError):
            refused()


def test_a_format_without_rates_on_a_device_is_that_of_a_local_program() -> None:
    mac = find_target("M3 Max 64GB")
    for form, local in (("nvfp4", "mlx_nvfp4"), ("mxfp4", "mlx_mxfp4")):
        asked, same = (decode(find_model("qwen3-8b"), name, [mac]).rows[0] for name in (form, local))
        assert asked.time_s == same.time_s
        assert f"as {local} of a local program" in asked.notes
