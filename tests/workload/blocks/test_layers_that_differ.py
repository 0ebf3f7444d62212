"""Models whose layers differ in size: global attention with sizes of its own, shared caches, per-layer inputs (Gemma 4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuwise.errors import FieldError
from gpuwise.facts.models.architecture import GlobalAttention, SharedCache
from gpuwise.facts.models.catalogue import find_model
from gpuwise.facts.models.checks import check_architecture
from gpuwise.predict.memory.kv_cache import PAGED, kv_cache_bytes, kv_pool_tokens
from gpuwise.serve.engines.llama_cpp import LAYOUT
from gpuwise.serve.formats import weight_bytes_read
from gpuwise.workload.blocks.kinds import arch_of_layer, block_counts, caching_layers, layer_kinds
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.transformer.parameters import adapter_parameters, count_parameters
from gpuwise.workload.transformer.tables import transformer_tables

MIB = 2**20
BIG, SMALL = find_model("gemma-4-31b"), find_model("gemma-4-e2b")


def widths(kind: str, row: str, name: str = "gemma-4-e2b") -> tuple[int, ...]:
    arch, stack = find_model(name), find_stack("megatron-core")
    rows = transformer_tables(arch, Point(micro_batch=1, seq_len=1024, precision="bf16", stack=stack)).layers[kind]
    return tuple(int(n) for n in rows.shape[list(rows.name).index(row)][:4])


def test_cache_of_gemma_4_e4b_is_that_of_llama_cpp_log() -> None:
    # llama-fit-params, "context 28 MiB" at 512 tokens, one sequence (a MacBook Air M1 of 8 GB)
    assert float(kv_cache_bytes(find_model("gemma-4-e4b"), 512, LAYOUT.unpadded)) == 28 * MIB


@pytest.mark.parametrize("tokens", [1024, 5000, 32_768])
def test_cache_is_the_sum_over_layers(tokens: int) -> None:
    whole = 10 * 2 * 4 * 512 * 2 * tokens
    near = 50 * 2 * 16 * 256 * 2 * min(tokens, 1024)
    assert float(kv_cache_bytes(BIG, tokens, replace(LAYOUT.unpadded, chunk_tokens=0))) == whole + near


def test_layers_that_read_the_cache_of_others_have_none() -> None:
    assert caching_layers(SMALL) == (3, 12)
    alone = replace(SMALL, shared_cache=None)
    assert kv_cache_bytes(SMALL, 100) * 35 == pytest.approx(kv_cache_bytes(alone, 100) * 15, rel=0.1)
    assert kv_pool_tokens(SMALL, 1e9, PAGED) > 1.5 * kv_pool_tokens(alone, 1e9, PAGED)


def test_kinds_of_layers_and_their_sizes() -> None:
    kinds = layer_kinds(SMALL)
    assert kinds[:5] == ["dense.local"] * 4 + ["dense"] and kinds[-5:] == ["dense.local.shared"] * 4 + ["dense.shared"]
    sizes = {kind: arch_of_layer(SMALL, kind) for kind in set(kinds)}
    assert {kind: (a.head_dim, a.ffn) for kind, a in sizes.items()} == {
        "dense": (512, 6144),
        "dense.local": (256, 6144),
        "dense.shared": (512, 12288),
        "dense.local.shared": (256, 12288),
    }
    assert sum(n for block, n in block_counts(SMALL).items() if block.where == "per_layer") == 35


def test_rows_have_the_sizes_of_their_layer() -> None:
    # batch, rows, outputs, inputs
    assert widths("dense", "attention.qkv")[2] == (8 + 2) * 512
    assert widths("dense.local.shared", "attention.qkv")[2] == 8 * 256
    assert widths("dense.shared", "mlp.up")[2] == 2 * 12288
    assert widths("dense", "attention.qkv", "gemma-4-31b")[2] == 32 * 512 + 4 * 512  # one projection for keys and values
    assert widths("dense.local", "attention.qkv", "gemma-4-31b")[2] == (32 + 2 * 16) * 256


def test_a_token_reads_no_table_but_its_own_row() -> None:
    count = count_parameters(SMALL)
    table = SMALL.vocab * SMALL.n_layers * SMALL.per_layer_embedding
    assert weight_bytes_read(SMALL, "F16") == 2.0 * (count.total - table)


def test_adapters_are_on_the_products_that_a_layer_has() -> None:
    per_rank = adapter_parameters(BIG, ("attention",), 1)
    h, local, whole = 5376, (32 + 2 * 16) * 256, (32 + 4) * 512
    inputs = {"local": 3 * h + 32 * 256, "whole": 2 * h + 32 * 512}
    assert per_rank == 50 * (local + inputs["local"] + h) + 10 * (whole + inputs["whole"] + h)


@pytest.mark.parametrize(
    "change",
    [
        {"global_attention": GlobalAttention(32, 5, 512)},
        {"window": None, "global_every": None},
        {"shared_cache": SharedCache(60, 21504)},
    ],
)
def test_sizes_that_no_model_has_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FieldError):
        check_architecture(replace(BIG, **change))
