"""What a Hugging Face model runs in eager fp32: the kernels of one forward (and backward) pass, as rows.

The rows follow what PyTorch 2.1 executes for the models of the NeuSight study (transformers,
``attn_implementation`` "eager"): attention as two batched products with the scores written to memory, GELU as
a chain of elementwise kernels, one kernel per add, dropout in training, gradients accumulated into existing
``.grad`` (the study never zeroes them), the loss outside the forward time but its backward inside. Model
dimensions: the study's own configuration files (github.com/sitar-lab/NeuSight,
scripts/asplos/data/DLmodel_configs, MIT).

Shape legend: B batch, S sequence, H hidden, A heads, D head size, F feed-forward, V vocabulary, T = B S
tokens, P = B A S S score elements. Element counts times 4 bytes.
"""

from __future__ import annotations

from dataclasses import replace

from gpuwise.calibrate.neusight import networks
from gpuwise.calibrate.neusight.graph import FP32, EagerOp, Graph
from gpuwise.calibrate.neusight.networks import MODELS, SWITCH_EXPERTS
from gpuwise.errors import UnpredictableError

__all__ = ["MODELS", "EagerOp", "eager_ops", "fused", "parameters"]


BUILDERS = {"bert": networks.bert, "gpt2": networks.gpt2, "opt": networks.opt, "switch": networks.switch}


def eager_ops(model: str, batch: int, seq: int, training: bool, *, shards: int = 1) -> list[EagerOp]:
    """The kernels of one pass of ``model``; ``shards`` > 1 gives one rank's part under tensor parallelism
    (heads, feed-forward and vocabulary divided).

    Raises UnpredictableError for a model outside the study, or one whose sharding it does not have.
    """
    dims = MODELS.get(model)
    if dims is None:
        raise UnpredictableError("unknown model of the study", f"no dimensions for {model!r}")
    if shards > 1:
        if dims.kind != "gpt2" or dims.heads % shards:
            raise UnpredictableError("tensor parallelism only of the study's GPT models")
        dims = replace(dims, heads=dims.heads // shards, ffn=dims.ffn // shards, vocab=-(-dims.vocab // shards))
    graph = Graph(training)
    build = BUILDERS[dims.kind]
    build(graph, dims, float(batch), float(seq))
    return graph.ops


def fused(ops: list[EagerOp]) -> list[EagerOp]:
    """What a compiler that fuses pointwise and row kernels leaves of a forward pass: consecutive streams over
    the same elements become one that reads the first one's input (and the others' second operands) and writes
    the last result."""
    out: list[EagerOp] = []
    for op in ops:
        last = out[-1] if out else None
        same = (
            last is not None
            and last.kind == op.kind == "stream"
            and last.elements == op.elements
            and last.count == op.count
            and op.pattern != "gather"
            and last.pattern != "gather"
        )
        if last is None or not same:
            out.append(op)
            continue
        second_operands = max(op.read - FP32 * op.elements, 0.0)
        pattern = op.pattern if op.pattern in ("softmax", "norm") else last.pattern
        pattern = "elementwise" if pattern in ("broadcast", "transpose") else pattern
        out[-1] = replace(
            last,
            read=last.read + second_operands,
            written=op.written,
            pattern=pattern,
            row=max(last.row, op.row),
        )
    return out


def parameters(model: str) -> float:
    """Parameters of ``model``, biases and norms left out."""
    m = MODELS[model]
    inner = m.heads * m.head_dim
    layer = 4 * m.hidden * inner + 2 * m.hidden * m.ffn
    if m.kind == "switch":  # encoder, decoder with cross attention; experts in every second layer
        layer = 12 * m.hidden * inner + 2 * m.hidden * m.ffn * (1 + SWITCH_EXPERTS)
    return m.layers * layer + m.vocab * m.hidden * (2 if m.kind == "bert" else 1)
