"""Short convolutions (LFM2) in tables, caches and splits."""

from __future__ import annotations

import pytest

from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.memory.kv_cache import kv_cache_bytes, state_bytes
from gpuwise.serve.engines.llama_cpp import LAYOUT
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.transformer.tables import transformer_tables

ARCH = find_model("lfm2-1.2b")


def test_only_attention_has_a_cache_and_convolutions_have_a_state() -> None:
    state = 10 * 2048 * 2 * 2
    assert state_bytes(ARCH) == state
    assert float(kv_cache_bytes(ARCH, 4096, LAYOUT.unpadded)) == 6 * 2 * 8 * 64 * 2 * 4096 + state


@pytest.mark.parametrize("tp", [1, 2])
def test_flop_of_a_layer_are_those_of_its_products(tp: int) -> None:
    stack, tokens = find_stack("megatron-core"), 512
    point = Point(micro_batch=1, seq_len=tokens, tp=tp, sequence_parallel=tp > 1, precision="bf16", stack=stack)
    rows = transformer_tables(ARCH, point).layers["C-"]
    forward = {name: flop for name, flop, phase in zip(rows.name, rows.flop, rows.phase, strict=True) if phase == rows.phase[0]}
    h = 2048
    assert forward["short_conv.in_proj"] == 2 * tokens * h * 3 * h / tp
    assert forward["short_conv.out_proj"] == 2 * tokens * h * h / tp
    assert forward["short_conv.conv"] == 2 * tokens * (h // tp) * 3
