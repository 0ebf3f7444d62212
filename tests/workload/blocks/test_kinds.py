"""What holds for every kind of block."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gpuwise.facts.models.architecture import LETTERS, Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.blocks.block import Block
from gpuwise.workload.blocks.kinds import CROSS, KINDS, block_counts, blocks_of_layer, blocks_of_letter, layer_kinds
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.transformer.parameters import LayerParameters
from gpuwise.workload.transformer.tables import transformer_tables


def _models() -> list[Architecture]:
    names = ("llama-3.1-8b", "deepseek-v3", "mixtral-8x7b", "nemotron-h-8b", "qwen3-next", "gemma-4-e2b", "lfm2-8b-a1b")
    found = [find_model(name) for name in names]
    assert {type(block) for arch in found for block in block_counts(arch)} == {
        type(block) for block in KINDS if block is not CROSS
    }
    return found


def test_every_letter_of_a_pattern_has_blocks() -> None:
    arch = find_model("nemotron-h-8b")
    assert all(blocks_of_letter(arch, letter) for letter in LETTERS)


@pytest.mark.parametrize("arch", _models(), ids=lambda arch: arch.id)
def test_counts_are_of_all_layers(arch: Architecture) -> None:
    assert sum(block_counts(arch).values()) == sum(len(blocks_of_layer(arch, kind)) for kind in layer_kinds(arch))


@pytest.mark.parametrize("arch", _models(), ids=lambda arch: arch.id)
def test_weights_are_of_known_parts_and_hold_the_products(arch: Architecture) -> None:
    parts = {f.name for f in fields(LayerParameters)}
    for block in block_counts(arch):
        weights = block.parameters(arch)
        assert set(weights) <= parts
        assert 0 < sum(k * n for _, k, n in block.products(arch)) <= sum(weights.values()) or not block.products(arch)


def test_rows_that_a_kind_names_are_rows_it_writes() -> None:
    named = {row: block for block in KINDS for row in _named(block)}
    written: set[str] = set()
    for arch in _models():
        point = Point(micro_batch=1, seq_len=1024, precision="bf16", stack=find_stack("megatron-core"))
        for table in transformer_tables(arch, point).layers.values():
            written.update(table.name)
    assert set(named) - written == set()


def _named(block: Block) -> tuple[str, ...]:
    own = (block.own_row,) if block.own_row else ()
    return (*own, *(block.one_product or ()), *block.repeated, *block.after_norm, *block.after_activation, *block.in_one_kernel)
