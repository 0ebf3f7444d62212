"""Activation bytes of one micro-batch on one rank: what layers and ends keep, and how much more their worst
moment needs.

A search has millions of strategies but only hundreds of points; these numbers are made once for each point.
Shapes: T tokens of the micro-batch on this rank, H hidden, F ffn, V vocabulary; e bytes an element of
activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.blocks.kinds import leading_layers
from gpuwise.workload.blocks.point import QUANTIZED, Point
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.stacks.memory import MemoryRules
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.step import OpTable
from gpuwise.workload.strategy import RECOMPUTES
from gpuwise.workload.transformer.tables import TransformerTables, saved_bytes, transformer_tables

F64 = NDArray[np.float64]
Bytes = TypeVar("Bytes", float, F64)
MATMUL, GROUPED, ATTENTION, COLLECTIVE = (int(k) for k in (Kind.MATMUL, Kind.GROUPED, Kind.ATTENTION, Kind.COLLECTIVE))
FORWARD, BACKWARD = int(Phase.FORWARD), int(Phase.BACKWARD)


@dataclass(frozen=True, slots=True)
class SavedBytes(Generic[Bytes]):
    """Bytes of one point (``float``), or of many as arrays [P] with one entry a point (``F64``).

    ``layer[policy]``: bytes a layer saves for its backward, the mean over all but the leading dense layers of an expert model;
    ``lead_extra[policy]``: additional (or fewer) bytes of those layers, which are in the first stage. ``excess[policy]``:
    bytes at the peak of one layer's backward beyond the saved bytes of all layers (recomputed activations, gradients of
    activations, gathered inputs). ``boundary``: the activation between layers. ``embedding`` and ``head``: bytes the ends
    save, without the loss; ``loss``: the logits and their copies at the peak of the loss, ``head_logits`` the part of them
    left at the head's backward; ``head_excess``: the head's gathered input and its gradients then. ``weight_cache``: permanent
    weight-shaped buffers of the stack. ``matrix``: elements of the rank's largest weight matrix; ``head_matrix``: of the
    output projection.
    """

    layer: dict[str, Bytes]
    lead_extra: dict[str, Bytes]
    excess: dict[str, Bytes]
    boundary: Bytes
    embedding: Bytes
    head: Bytes
    loss: Bytes
    head_logits: Bytes
    head_excess: Bytes
    weight_cache: Bytes
    matrix: Bytes
    head_matrix: Bytes


def saved_of_points(arch: Architecture, points: Sequence[Point], rules: MemoryRules | None = None) -> SavedBytes[F64]:
    """Activation bytes of ``arch`` at each point; ``rules`` in place of the stack's own."""
    return collect([point_saved(arch, p, transformer_tables(arch, p), rules) for p in points])


def collect(saved: Sequence[SavedBytes[float]]) -> SavedBytes[F64]:
    """Columns of several points."""
    arrays: dict[str, object] = {}
    for f in fields(SavedBytes):
        if f.name in ("layer", "lead_extra", "excess"):
            arrays[f.name] = {p: np.array([getattr(s, f.name)[p] for s in saved]) for p in RECOMPUTES}
        else:
            arrays[f.name] = np.array([getattr(s, f.name) for s in saved])
    return SavedBytes(**arrays)  # type: ignore[arg-type]


def point_saved(
    arch: Architecture, point: Point, tables: TransformerTables, rules: MemoryRules | None = None
) -> SavedBytes[float]:
    """Bytes that ``tables`` (of ``arch`` at ``point``) save, and need at their peaks."""
    rules = rules or find_stack(point.stack.name).memory
    boundary = point.shard_tokens * arch.hidden * point.stream_bytes
    layered = [(t, tables.layer_counts[kind]) for kind, t in tables.layers.items()]
    if tables.encoder is not None:
        layered.append((tables.encoder, tables.encoder_layers))
    n_lead = leading_layers(arch)
    selective = point.stack.selective_recompute
    keeps = {p: [saved_bytes(t, p, selective, boundary) for t, _ in layered] for p in RECOMPUTES}
    # the leading layers are of the first kind: layer kinds are in order of appearance
    counts = [count - (n_lead if i == 0 else 0) for i, (_, count) in enumerate(layered)]
    layer = {p: sum(k * n for k, n in zip(keeps[p], counts, strict=True)) / sum(counts) for p in RECOMPUTES}
    lead_extra = {p: n_lead * (keeps[p][0] - layer[p]) for p in RECOMPUTES}
    # the layer whose backward runs has all its activations in memory, recomputed or saved
    working = [_backward_excess(t, boundary) for t, _ in layered]
    excess = {
        p: max(all_ - layer_saved + more for all_, layer_saved, more in zip(keeps["none"], keeps[p], working, strict=True))
        for p in RECOMPUTES
    }
    everything = [t for t, _ in layered]
    return SavedBytes(
        layer,
        lead_extra,
        excess,
        boundary,
        _saved_sum(tables.embedding),
        _saved_sum(tables.head, but="head.loss"),
        *_loss_bytes(arch, point, rules),
        _head_excess(arch, point),
        _weight_cache(everything, rules, point),
        max((_largest_matrix(t, arch if point.quantized_base else None) for t in everything), default=0.0),
        _largest_matrix(tables.head),
    )


def _saved_sum(table: OpTable, but: str = "") -> float:
    kept = table.saved_bytes * table.count
    if but:
        kept = kept[[n != but for n in table.name]]
    return float(kept.sum())


def _element_bytes(dtype: str) -> float:
    """Bytes of an element of the activations a row of this arithmetic works on."""
    return FORMAT_BYTES["bf16" if dtype in QUANTIZED or dtype == "tf32" else dtype]


def _backward_excess(table: OpTable, boundary: float) -> float:
    """Bytes that the backward of one layer needs at its peak beyond those its forward saved.

    Rows run backwards. At row i the gradient of its output and that of its input are alive besides the residual stream's
    gradient, and all bytes saved by the rows after i are free again:

        excess = boundary + max_i (output_i + input_i - sum_{j > i} kept_j)

    Sizes come from matmuls [M, K] x [K, N] (input M K, output M N) and attention (q, k, v; out); between two
    of them the pointwise rows hold the gradients of both sides.
    """
    forward = np.flatnonzero((table.phase == FORWARD) & (table.kind != COLLECTIVE))[::-1]
    # one pass over plain numbers: a search asks this for every one of its points
    columns = (table.kind, table.shape[:, 1:4], table.bytes_read, table.bytes_written)
    kinds, shapes, reads, writes = (c[forward].tolist() for c in columns)
    keeps = (table.saved_bytes * table.count)[forward].tolist()
    worst, freed, below, freed_below = 0.0, 0.0, 0.0, 0.0
    for i, kind, shape, read_bytes, written_bytes, row_saved in zip(
        forward.tolist(), kinds, shapes, reads, writes, keeps, strict=True
    ):
        heavy = True
        if kind in (MATMUL, GROUPED) and ".lora_" not in table.name[i]:
            m, n, k = shape
            e = _element_bytes(str(table.dtype[int(i)]))
            output, input_bytes = float(m * n) * e, float(m * k) * e
        elif table.name[i] in ("moe.permute", "moe.unpermute"):
            # rows on their way to and from the experts: gradients of both sides of the exchange
            output, input_bytes = written_bytes, read_bytes
        elif kind == ATTENTION:
            # the fused backward accumulates dq in fp32 (flash-attention flash_api.cpp, dq_accum)
            output, input_bytes = written_bytes, 2.0 * read_bytes
        else:
            heavy, output, input_bytes = False, 0.0, 0.0
        if heavy:
            # first the pointwise rows from the product after this one, whose saved inputs are still there
            worst = max(worst, output + below - freed_below, output + input_bytes - freed)
            below, freed_below = input_bytes, freed + row_saved
        freed += row_saved
    return boundary + max(worst, 0.0)


def _loss_bytes(arch: Architecture, point: Point, rules: MemoryRules) -> tuple[float, float]:
    """Logits [T, V/t] and their copies at the worst moment of the loss, and at the backward of the head: a loss that
    widened them has narrowed their gradient by then."""
    if not arch.lm_head:
        return 0.0, 0.0
    logits = float(point.tokens * -(-arch.vocab // point.tp))
    half, wide = (rules.chunked_half, 0.0) if point.fused_loss else (rules.loss_half, rules.loss_fp32)
    whole = logits * (half * point.element_bytes + wide * 4.0)
    return whole, min(whole, logits * (half + 1.0) * point.element_bytes) if wide else whole


def _head_excess(arch: Architecture, point: Point) -> float:
    """The gradient of the head's input, and under sequence parallelism its gathered input and scattered
    gradient."""
    full = point.tokens * arch.hidden * point.element_bytes
    shard = point.shard_tokens * arch.hidden * point.element_bytes
    return full if point.shard_tokens == point.tokens else 2 * full + shard


def _matmuls(table: OpTable) -> NDArray[np.bool_]:
    return (table.kind == MATMUL) | (table.kind == GROUPED)


def _weights(table: OpTable) -> set[tuple[int, int]]:
    """Shapes (rows, columns) of the weights whose gradients a layer computes, the router's apart."""
    shapes: set[tuple[int, int]] = set()
    for i in np.flatnonzero(_matmuls(table) & (table.phase == BACKWARD)):
        name = table.name[i]
        if not name.endswith(".wgrad") or ".lora_" in name or name.startswith("moe.router"):
            continue
        shape = table.shape[i]
        grouped = table.kind[i] == GROUPED
        shapes.add((int(shape[2]), int(shape[3])) if grouped else (int(shape[1]), int(shape[2])))
    return shapes


def _weight_cache(tables: Sequence[OpTable], rules: MemoryRules, point: Point) -> float:
    """One dummy weight gradient for each distinct shape, in the parameters' format."""
    if rules.weight_gradient != "cached":
        return 0.0
    shapes = set[tuple[int, int]]().union(*(_weights(t) for t in tables))
    return sum(rows * columns for rows, columns in shapes) * point.element_bytes


def _largest_matrix(table: OpTable, modules: Architecture | None = None) -> float:
    """Elements of the largest weight matrix a forward product of ``table`` reads (one expert of a grouped product); of one of
    the ``modules``' own matrices where one product covers several."""
    rows = np.flatnonzero(_matmuls(table) & (table.phase == FORWARD))
    sizes = (table.shape[rows, 2] * table.shape[rows, 3]).astype(np.float64)
    if modules is not None and not modules.fused_projections:
        q = modules.heads / (modules.heads + 2 * modules.kv_heads)
        share = {"qkv": q, "up": 0.5 if modules.gated_mlp else 1.0}
        sizes *= [share.get(table.name[i].rpartition(".")[2], 1.0) for i in rows.tolist()]
    return float(sizes.max(initial=0))
