"""The key-value cache against what vLLM logged at its start, and against the sizes dimensions give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.memory.kv_cache import (
    ELEMENT_BYTES,
    PAGED,
    CacheLayout,
    kv_cache_bytes,
    kv_page_bytes,
    kv_pages,
    kv_pool_tokens,
)
from gpuwise.units import GIB

SLOTS = CacheLayout("fp16", page_tokens=256, chunk_tokens=512, spare_pages=0, grouped=False, window_everywhere=False)
"""As llama.cpp's."""
LLAMA = find_model("llama-3.1-8b")
MODELS = ("llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "mistral-7b", "deepseek-v3", "t5-base", "qwen3-30b-a3b")

# vLLM 0.19.0 on an H100, start logs (llm-d-incubation/llm-d-planner@d3121e0 accuracy/results/v0.19.0/results_raw.csv):
# model, cache format, tensor parallel, memory of the cache in GiB, blocks, tokens
LOGGED = (
    ("codellama-7b", "bf16", 1, 61.66, 7891, 126_256),
    ("deepseek-v2-lite", "bf16", 1, 43.61, 94_097, 1_505_552),
    ("gemma-2-2b", "bf16", 1, 66.47, 83_770, 670_160),
    ("gemma-3-12b", "bf16", 1, 47.72, 48_867, 130_304),
    ("gemma-3-4b", "bf16", 1, 62.51, 204_817, 468_144),
    ("llama-3.1-8b", "fp8", 1, 58.11, 59_502, 952_032),
    ("llama-3.1-8b", "fp32", 1, 42.80, 10_956, 175_296),
    ("llama-3.1-8b", "bf16", 2, 63.76, 65_293, 1_044_688),
    ("qwen2.5-7b", "bf16", 4, 67.34, 315_205, 5_043_280),
    ("qwen3-30b-a3b", "bf16", 1, 15.41, 10_518, 168_288),
)


@pytest.mark.parametrize(("model", "dtype", "tp", "pool_gib", "blocks", "tokens"), LOGGED)
def test_blocks_that_vllm_logged(model: str, dtype: str, tp: int, pool_gib: float, blocks: int, tokens: int) -> None:
    layout = replace(PAGED, dtype=dtype, tp=tp)
    arch, pool = find_model(model), pool_gib * GIB
    assert pool / kv_page_bytes(arch, layout) == pytest.approx(blocks, rel=2e-4)  # the pool is rounded to 0.01 GiB
    assert kv_pool_tokens(arch, pool, layout) == pytest.approx(tokens, rel=2e-4)


@pytest.mark.parametrize(("model", "sequences"), [("gemma-2-2b", 81.73), ("gemma-3-12b", 15.88), ("gemma-3-4b", 57.05)])
def test_sequences_of_8192_tokens_that_vllm_logged(model: str, sequences: float) -> None:
    """Its figure takes the whole sequence as computed at once: window layers keep all of it, and a page to spare."""
    blocks = next(row[4] for row in LOGGED if row[0] == model)
    at_once = replace(PAGED, chunk_tokens=8192)
    assert blocks / kv_pages(find_model(model), 8192, at_once) == pytest.approx(sequences, rel=2e-3)


def test_sizes_that_dimensions_give() -> None:
    assert kv_cache_bytes(LLAMA, 131_072) == 131_072 * 131_072  # 128 KiB a token
    latent = find_model("deepseek-v3")
    assert kv_cache_bytes(latent, 1, PAGED.unpadded) == 61 * (512 + 64) * 2  # arXiv 2412.19437: 70 KB a token
    assert kv_cache_bytes(latent, 4096, replace(PAGED, tp=8)) == kv_cache_bytes(latent, 4096)
    gemma = find_model("gemma-3-27b")
    seen = 10 * 8192 + 52 * 1024
    assert kv_cache_bytes(gemma, 8192, PAGED.unpadded) == 2 * 16 * 128 * 2 * seen
    # 52 window layers in six groups of ten, each with a page more than its window
    assert kv_cache_bytes(gemma, 8192) == 2 * 16 * 128 * 2 * 10 * (8192 + 6 * (1024 + 16))
    # llama.cpp: 1024 + 512 cells, a multiple of 256
    assert kv_cache_bytes(gemma, 8192, SLOTS) == 2 * 16 * 128 * 2 * (10 * 8192 + 52 * 1536)


def test_kv_heads_are_replicated_where_ranks_are_more() -> None:
    one = float(kv_cache_bytes(LLAMA, 4096))
    split = [float(kv_cache_bytes(LLAMA, 4096, replace(PAGED, tp=t))) / one for t in (2, 4, 8, 16)]
    assert split == [1 / 2, 1 / 4, 1 / 8, 1 / 8]


def test_a_window_of_every_layer_is_vllm_s_own() -> None:
    mistral = find_model("mistral-7b")
    assert kv_cache_bytes(mistral, 32_768) < kv_cache_bytes(mistral, 32_768, SLOTS) / 7
    assert kv_cache_bytes(mistral, 32_768, SLOTS) == 4.0 * 32 * 8 * 128 * 32_768


def test_a_decoder_behind_an_encoder_keeps_the_encoder_s_keys_and_values_too() -> None:
    whisper = find_model("whisper-large-v3")
    assert whisper.encoder is not None
    per_token = 2 * whisper.n_layers * whisper.heads * whisper.head_dim * 2
    assert kv_cache_bytes(whisper, 448, PAGED.unpadded) == per_token * (448 + whisper.encoder.seq_len)
    assert kv_cache_bytes(whisper, 0) == 0
    assert kv_cache_bytes(find_model("bert-base"), 512) == 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", [PAGED, SLOTS, PAGED.unpadded])
def test_more_tokens_never_take_less_and_padding_never_takes_from_it(model: str, layout: CacheLayout) -> None:
    arch, lengths = find_model(model), np.arange(0, 20_000, 7)
    size = kv_cache_bytes(arch, lengths, layout)
    assert size.shape == lengths.shape and (np.diff(size) >= 0).all()
    assert (size >= kv_cache_bytes(arch, lengths, layout.unpadded) * (1 - 1e-12)).all()
    assert size.tolist() == [float(kv_cache_bytes(arch, int(n), layout)) for n in lengths]


@pytest.mark.parametrize("dtype", sorted(ELEMENT_BYTES))
def test_bytes_follow_the_format(dtype: str) -> None:
    wide = float(kv_cache_bytes(LLAMA, 1000, replace(PAGED, dtype="fp32")))
    assert kv_cache_bytes(LLAMA, 1000, replace(PAGED, dtype=dtype)) == wide * ELEMENT_BYTES[dtype] / 4


def test_what_is_no_cache_is_refused() -> None:
    with pytest.raises(UnknownNameError):
        CacheLayout(dtype="bf17")
    with pytest.raises(InputError):
        CacheLayout(tp=0)
    with pytest.raises(InputError):
        kv_cache_bytes(LLAMA, -1)


@pytest.mark.parametrize(("keys", "mib"), [("q4_1", 294), ("q5_0", 301), ("q5_1", 308), ("fp16", 448)])
def test_keys_of_another_format_than_values(keys: str, mib: float) -> None:
    """Of Llama 3.2 3B at 4,096 tokens beside fp16 values, as llama.cpp's logs state it (28 layers of 8 heads of 128)."""
    layouts = [CacheLayout(dtype, page_tokens=256, spare_pages=0, grouped=False) for dtype in (keys, "fp16")]
    cache = sum(float(kv_cache_bytes(find_model("llama-3.2-3b"), 4096, layout)) for layout in layouts) / 2
    assert cache / 2**20 == pytest.approx(mib, rel=1e-3)
