"""Weights and rows of attention with grouped queries."""

from dataclasses import replace

from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.blocks.kinds import ATTENTION
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.row_codes import Phase
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.transformer.parameters import count_parameters
from gpuwise.workload.transformer.tables import transformer_tables


def test_an_output_gate_doubles_the_projection_of_the_queries_and_keeps_its_values() -> None:
    plain = find_model("qwen3-8b")
    gated = replace(plain, attention_output_gate=True)
    queries = plain.heads * plain.head_dim
    assert count_parameters(gated).total - count_parameters(plain).total == plain.n_layers * plain.hidden * queries
    assert {n: w for n, _, w in ATTENTION.products(gated)}["q"] == 2 * queries
    point = Point(micro_batch=1, seq_len=4096, precision="bf16", stack=find_stack("megatron-core"))
    one, other = (transformer_tables(arch, point).layers["dense"] for arch in (plain, gated))
    assert other.total_flop(Phase.FORWARD) - one.total_flop(Phase.FORWARD) == 2.0 * 4096 * plain.hidden * queries
    # the gate, and the gated result that the output projection reads
    kept = [float((t.saved_bytes * t.count).sum()) for t in (one, other)]
    assert kept[1] - kept[0] == 2 * 2.0 * 4096 * queries
    assert "attention.gate" in other.name and "attention.gate" not in one.name
