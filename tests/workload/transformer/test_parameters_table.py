"""The counted parameters and the op table describe the same model: forward matmul FLOP is 2 x parameters x
tokens."""

import numpy as np
import pytest

from gpuwise.facts.models.catalogue import models
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.step import OpTable
from gpuwise.workload.transformer.parameters import count_parameters
from gpuwise.workload.transformer.tables import transformer_tables

DECODERS = [
    "gpt2",
    "gpt3-175b",
    "gpt-j-6b",
    "pythia-12b",
    "bloom-176b",
    "falcon-7b",
    "falcon-40b",
    "mpt-30b",
    "llama-3.1-8b",
    "llama-3.1-405b",
    "mistral-7b",
    "mixtral-8x7b",
    "gemma-2-27b",
    "gemma-3-4b",
    "phi-2",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "qwen3-235b-a22b",
    "deepseek-v2-lite",
    "deepseek-v3",
    "dbrx-132b",
    "gpt-oss-120b",
    "llama-4-maverick",
    "grok-1",
    "nemotron-4-340b",
    "olmo-2-7b",
    "command-r-35b",
    "starcoder-15b",
    "glm-4.5",
    "kimi-k2",
]


def _matmul_flop(table: OpTable) -> float:
    rows = np.isin(table.kind, [Kind.MATMUL, Kind.GROUPED]) & (table.phase == Phase.FORWARD)
    return float((table.flop * table.count)[rows].sum())


@pytest.mark.parametrize("name", DECODERS)
def test_forward_matmuls_use_each_active_parameter_once(name: str) -> None:
    """Within 0.4 %: norms and biases are counted parameters but no matmul. A prediction block adds its layer, the
    projection of two hidden states to one, and the logits again."""
    arch = models()[name]
    point = Point(
        micro_batch=1,
        seq_len=256,
        precision="bf16",
        stack=find_stack("megatron-core"),
    )
    tables = transformer_tables(arch, point)
    flop = sum(_matmul_flop(table) * tables.layer_counts[kind] for kind, table in tables.layers.items())
    flop += _matmul_flop(tables.embedding) + _matmul_flop(tables.head)
    count = count_parameters(arch)
    block = (count.moe_layer or count.layer).active + 2 * arch.hidden**2 + arch.vocab * arch.hidden
    expected = count.active_embedding_free + arch.prediction_layers * block
    assert flop / point.tokens == pytest.approx(2 * expected, rel=0.004)
