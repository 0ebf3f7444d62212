"""A part of a model in the host's memory: published speeds and laws."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.facts.hardware.cpus import find_cpu
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.hardware.ram import read_ram
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.offload import Split, prompt_time, split_seconds, split_time, split_work
from gpuwise.serve.streams import cache_reads, token_work

MODELS = ("llama-3.3-70b", "qwen3-14b", "gemma-3-12b", "qwen3-30b-a3b", "qwen3.6-35b-a3b", "gpt-oss-120b")
CPUS = ("Ryzen 5 5600", "i5-12400", "i9-13900K", "Core i9-10900X")


@pytest.mark.parametrize(
    ("model", "weights", "card", "cpu", "ram", "layers", "tokens_per_s"),
    [  # llmfit, a card of 8 GB with all experts in RAM; not in the fit
        ("qwen3-30b-a3b", "Q4_K_M", "rtx-2080", "i9-10900X", "ddr4-2933x4", 48, 35.2),
        ("gpt-oss-20b", "MXFP4", "rtx-2080", "i9-10900X", "ddr4-2933x4", 24, 36.4),
    ],
)
def test_published_speeds_with_experts_in_ram(
    model: str, weights: str, card: str, cpu: str, ram: str, layers: int, tokens_per_s: float
) -> None:
    split = Split(expert_layers=layers)
    time = split_time(find_model(model), find_accelerator(card), find_cpu(cpu, read_ram(ram)), weights, split, context=600.0)
    assert 1.0 / time.expected == pytest.approx(tokens_per_s, rel=0.36)


@settings(deadline=None, max_examples=60)
@given(model=st.sampled_from(MODELS), cpu=st.sampled_from(CPUS), context=st.integers(64, 16_000), data=st.data())
def test_more_in_ram_is_never_faster_beside_a_faster_card(model: str, cpu: str, context: int, data: st.DataObject) -> None:
    arch, card, host, constants = find_model(model), find_accelerator("rtx-3090"), find_cpu(cpu), load_json("processor_stream")
    most = arch.n_moe_layers or arch.n_layers
    n = data.draw(st.integers(0, most - 1))
    times = [
        split_seconds(constants, arch, card, host, "Q4_K_M", s, context=float(context))
        for s in (Split(*((0, k) if arch.n_moe_layers else (k, 0))) for k in (n, n + 1))
    ]
    assert times[0].total_s < times[1].total_s and times[1].host_s > times[0].host_s
    assert all(t.device_s + t.host_s + t.crossings_s == pytest.approx(t.total_s) for t in times)


@settings(deadline=None, max_examples=30)
@given(model=st.sampled_from(MODELS), context=st.integers(64, 16_000), data=st.data())
def test_both_parts_are_the_whole(model: str, context: int, data: st.DataObject) -> None:
    arch = find_model(model)
    split = Split(0, data.draw(st.integers(1, arch.n_moe_layers))) if arch.n_moe_layers else Split(data.draw(st.integers(0, 40)))
    parts = split_work(arch, "Q4_K_M", float(context), split)
    whole = token_work(arch, "Q4_K_M", float(context))
    for name in ("weight_bytes", "weights", "cache_bytes", "launches"):
        assert sum(getattr(part, name) for part in parts) == pytest.approx(getattr(whole, name))
        assert all(getattr(part, name) >= 0 for part in parts)


def test_faster_memory_and_less_in_it_are_faster() -> None:
    arch, card = find_model("qwen3-30b-a3b"), find_accelerator("rtx-3060-12gb")
    slow, fast = (find_cpu("Ryzen 9 7950X", read_ram(text)) for text in ("ddr5-4800x1", "ddr5-6000x2"))
    split = Split(expert_layers=24)
    times = [split_time(arch, card, host, "Q4_K_M", split, context=1024.0).expected for host in (slow, fast)]
    assert times[1] < times[0]
    reads = [prompt_time(arch, card, "Q4_K_M", moved, 2048) for moved in (0.0, 4e9, 16e9)]
    seconds = [t.expected for t in reads if t is not None]
    assert len(seconds) == 3 and seconds == sorted(seconds)
    # experts of 16 GB at not quite half of PCIe 4.0's rate, four times, and the card's own time
    assert seconds[2] - seconds[0] == pytest.approx(4 * 16e9 / (0.44 * 31.5e9), rel=0.05)


def test_a_long_cache_on_the_host_costs_a_read_for_each_query_head() -> None:
    """Qwen3.6 27B in Q4_K_M partly on a Ryzen 5 5600X beside an RTX 4070: 4.25 tokens a second after 4,608 tokens, 0.88 after
    131,584 (h1st0ry3D/llm-benchmarks)."""
    arch, card, cpu = find_model("qwen3.6-27b"), find_accelerator("rtx-4070"), find_cpu("Ryzen 5 5600X")
    short, long = (
        split_time(arch, card, cpu, "Q4_K_M", Split(layers=layers), context=context).expected
        for layers, context in ((19, 4608), (34, 131_584))
    )
    assert 1 / short == pytest.approx(4.25, rel=0.1) and 1 / long == pytest.approx(0.88, rel=0.1)


def test_a_short_cache_stays_in_the_processors_own() -> None:
    grouped, alone = find_model("llama-3.1-8b"), find_model("llama-2-7b")
    assert cache_reads(alone, 1e12) == 1.0
    assert 1.0 < cache_reads(grouped, 1e6) < 1.01 and cache_reads(grouped, 1e12) == pytest.approx(4.0, rel=1e-3)
