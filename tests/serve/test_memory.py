"""Device memory of a served model: laws, and sizes that are published."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.facts.hardware.systems import default_system
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.memory.kv_cache import PAGED, kv_cache_bytes
from gpuwise.serve.engines.engine import ENGINES, LOCAL_ENGINE, EngineConfig, tensor_parallel
from gpuwise.serve.engines.llama_cpp import LAYOUT
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.formats import weight_bytes
from gpuwise.serve.memory import UNIFIED_SHARE, ServingMemory, cache_layout, local_memory, most_bytes, rank_weights, stage_ends
from gpuwise.serve.replica import EngineReplica
from gpuwise.serve.simulate import Server
from gpuwise.units import GIB

EIGHT = find_model("llama-3.1-8b")


def engine_memory(arch: Architecture, card: Accelerator, config: EngineConfig, *, sequences: int, context: int) -> ServingMemory:
    return EngineReplica(arch, default_system(card), config).memory(sequences, context)


@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from([1, 2, 4, 8]))
def test_memory_grows_with_sequences_and_shrinks_with_ranks(a: int, b: int, tp: int) -> None:
    card = accelerators()["h100-sxm-80gb"]
    small, large = sorted((a, b))
    less = engine_memory(EIGHT, card, EngineConfig(tp=tp), sequences=small, context=2048)
    more = engine_memory(EIGHT, card, EngineConfig(tp=tp), sequences=large, context=2048)
    assert less.total <= more.total
    assert engine_memory(EIGHT, card, EngineConfig(tp=2 * tp), sequences=small, context=2048).total < less.total


def test_local_weights_are_the_size_of_their_files() -> None:
    card = accelerators()["rtx-4090"]
    q4 = local_memory(ENGINES[LOCAL_ENGINE], EIGHT, card, "Q4_K_M", n_devices=1, context=4096)
    assert q4.weights == pytest.approx(4.92e9, rel=0.02)  # Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf is 4.92 GB
    f16 = local_memory(ENGINES[LOCAL_ENGINE], EIGHT, card, "F16", n_devices=1, context=4096)
    assert f16.weights == pytest.approx(16.07e9, rel=0.01)


def test_the_cache_is_the_one_every_command_prints() -> None:
    gemma, card = find_model("gemma-3-27b"), accelerators()["rtx-4090"]
    held = engine_memory(gemma, card, EngineConfig(weights="int4_wo"), sequences=3, context=32768)
    assert held.cache == 3 * float(kv_cache_bytes(gemma, 32768)) and held.fits is (held.total <= held.most)
    local = local_memory(ENGINES[LOCAL_ENGINE], gemma, card, "Q4_K_M", n_devices=1, context=32768)
    assert local.cache == float(kv_cache_bytes(gemma, 32768, LAYOUT))
    assert cache_layout("bf16") is PAGED and cache_layout("F16") is LAYOUT


def test_ranks_hold_the_weights_once() -> None:
    card = accelerators()["h100-sxm-80gb"]
    mixtral = find_model("mixtral-8x7b")
    alone, split = (engine_memory(mixtral, card, tensor_parallel(mixtral, "bf16", n), sequences=0, context=1024) for n in (1, 4))
    assert alone.weights == weight_bytes(mixtral, "bf16") and split.weights == pytest.approx(alone.weights / 4)
    data = EngineConfig(attention_dp=4, moe_tp=1, moe_ep=4)
    beside = engine_memory(mixtral, card, data, sequences=4, context=1024)
    assert split.weights < beside.weights < alone.weights  # attention whole on every rank, experts split
    assert beside.cache == float(kv_cache_bytes(mixtral, 1024))  # one of four sequences


def test_what_a_program_may_take() -> None:
    card, shared = accelerators()["rtx-4090"], accelerators()["apple-m2-ultra"]
    empty = engine_memory(EIGHT, card, EngineConfig(), sequences=0, context=1)
    pool = Server(EIGHT, default_system(card), EngineConfig()).memory
    assert (empty.most, empty.weights, empty.workspace) == (pool.requested, pool.weights, pool.other)
    assert pool.pool == empty.most - empty.weights - empty.workspace
    local = local_memory(ENGINES[LOCAL_ENGINE], EIGHT, shared, "Q8_0", n_devices=1, context=4096)
    assert local.most == UNIFIED_SHARE * shared.memory_bytes
    # 102 of 128 GB were free on a DGX Spark that had just started, 51.6 of 64 on a Jetson Orin
    for name, free_gib in (("gb10", 101.8), ("jetson-agx-orin-64gb", 51.6)):
        assert most_bytes(accelerators()[name]) / GIB == pytest.approx(free_gib, rel=0.01)


@pytest.mark.parametrize(
    ("card", "loaded_gib"),
    [("h100-sxm-80gb", 64.38), ("a100-sxm-80gb", 65.97)],
    ids=["Triton, issue 33155", "Marlin, issue 23278"],
)
def test_experts_in_mxfp4_are_as_wide_as_their_kernels_tiles(card: str, loaded_gib: float) -> None:
    arch = find_model("gpt-oss-120b")
    config = EngineConfig("vllm", "bf16", "mxfp4", version="0.11.0")
    held = rank_weights(arch, config, accelerators()[card])
    assert held / GIB == pytest.approx(loaded_gib, rel=0.004)
    assert rank_weights(arch, config) / GIB == pytest.approx(60.8, rel=0.004)  # as its files


def test_layers_with_a_window_give_blocks_back_since_vllm_0_10() -> None:
    arch, system = find_model("gpt-oss-20b"), default_system(accelerators()["h100-sxm-80gb"])
    old, new = (Server(arch, system, EngineConfig("vllm", "bf16", "mxfp4", version=v)).memory for v in ("0.9.2", "0.11.0"))
    assert old.blocks_of(8000) == old.blocks == new.blocks
    long = [new.blocks_of(tokens) / new.blocks for tokens in (64, 1000, 8000, 100_000)]
    assert long == sorted(long)
    # half of its layers keep 128 tokens: of long sequences nearly twice as many have room
    assert long[0] == 1.0 and 1.8 < long[-1] < 2.0
    mixed = new.blocks_of([64, 100_000], [1.0, 1.0])
    assert new.blocks_of(64) < mixed <= new.blocks_of(100_000)


def test_a_model_without_a_window_has_the_blocks_of_its_pool() -> None:
    memory = Server(EIGHT, default_system(accelerators()["h100-sxm-80gb"]), EngineConfig("vllm", version="0.19.0")).memory
    assert memory.blocks_of([10, 100_000]) == memory.blocks


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "llama-3.2-1b"])
@pytest.mark.parametrize("tp", [1, 2])
def test_two_stages_hold_the_model_once_and_a_shared_table_twice(name: str, tp: int) -> None:
    arch = find_model(name)
    split = tensor_parallel(arch, "bf16", tp)
    whole, staged = (tp * pp * rank_weights(arch, replace(split, pp=pp)) for pp in (1, 2))
    first, last = (2.0 * n for n in stage_ends(arch))
    assert whole == pytest.approx(weight_bytes(arch, "bf16"))
    copy = first if arch.tied_embeddings else 0.0
    # the fullest of two, twice: half of the layers and the larger end
    assert staged == pytest.approx(whole + copy + abs(last - first))


@pytest.mark.parametrize(
    ("name", "gpu", "version", "settings", "tokens"),
    [
        ("llama-3.1-8b", "rtx-3090", "0.6.4", Settings(max_model_len=20_000), 31_232),
        ("codellama-7b", "h100-sxm-80gb", "0.19.0", Settings(memory_share=0.95), 126_256),
        ("qwen3-30b-a3b", "h100-sxm-80gb", "0.19.0", Settings(memory_share=0.95), 168_288),
    ],
    ids=["whole prompts, issue 10517", "layers, llm-d-planner", "experts, llm-d-planner"],
)
def test_a_cache_holds_the_tokens_that_vllm_logs(name: str, gpu: str, version: str, settings: Settings, tokens: int) -> None:
    server = Server(find_model(name), default_system(accelerators()[gpu]), EngineConfig("vllm", version=version), settings)
    assert server.memory.tokens == pytest.approx(tokens, rel=0.015)


@pytest.mark.parametrize(
    ("name", "gpu", "context", "gib"),
    [
        ("qwen2.5-1.5b", "t4", 32_768, 2.02),
        ("llama-3.1-8b", "h100-sxm-80gb", 8192, 1.19),
        ("qwen2.5-1.5b", "rtx-4060", 4096, 1.39),
    ],
)
def test_activations_of_the_first_engine_are_those_it_logs(name: str, gpu: str, context: int, gib: float) -> None:
    """PyTorch activation peak memory of public start logs of V0: whole prompts of 32,768 tokens, else the sampler."""
    settings = Settings(max_model_len=context)
    server = Server(find_model(name), default_system(accelerators()[gpu]), EngineConfig("vllm", version="0.6.6"), settings)
    assert server.memory.parts.activations / GIB == pytest.approx(gib, rel=0.02)
