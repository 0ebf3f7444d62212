"""The analytic front end: a transformer's dimensions to op tables, without torch, in well under a millisecond a layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.facts.models.architecture import Architecture, Encoder
from gpuwise.workload.adapters import DEFAULT_TARGETS
from gpuwise.workload.blocks.ends import embedding
from gpuwise.workload.blocks.kinds import KINDS, LATENT, REPEATED_APART, layer_kinds
from gpuwise.workload.blocks.point import QUANTIZED, Point
from gpuwise.workload.blocks.rows import Rows
from gpuwise.workload.row_codes import FUSED_ATTENTION, Kind, Phase
from gpuwise.workload.step import OpTable, OpTableBuilder
from gpuwise.workload.transformer.layers import head, layer


@dataclass(frozen=True, slots=True)
class TransformerTables:
    """One op table per kind of layer and the ends of the model, for one micro-batch on one rank.

    ``layer_counts`` says how many layers of each kind the model has, in order of first appearance.
    """

    layers: Mapping[str, OpTable]
    layer_counts: Mapping[str, int]
    encoder: OpTable | None
    encoder_layers: int
    embedding: OpTable
    head: OpTable


@lru_cache(maxsize=64)
def _layer_counts(arch: Architecture) -> Mapping[str, int]:
    """Layers of each kind, in the order in which kinds appear."""
    return Counter(layer_kinds(arch))


def transformer_tables(arch: Architecture, point: Point) -> TransformerTables:
    """Op tables of ``arch`` at ``point``: each distinct layer once, the embedding and the head."""
    counts = _layer_counts(arch)
    tables: dict[str, OpTable] = {}
    for kind in counts:
        rows = Rows(OpTableBuilder(), point)
        layer(rows, arch, kind)
        tables[kind] = rows.to.build()
    rows = Rows(OpTableBuilder(), point)
    embedding(rows, arch)
    encoder = _encoder_table(arch, point)
    encoder_layers = arch.encoder.n_layers if arch.encoder else 0
    return TransformerTables(tables, counts, encoder, encoder_layers, rows.to.build(), head_table(arch, point))


def head_table(arch: Architecture, point: Point) -> OpTable:
    """Op table of the model's head alone."""
    rows = Rows(OpTableBuilder(), point)
    head(rows, arch)
    return rows.to.build()


def _encoder_table(arch: Architecture, point: Point) -> OpTable | None:
    if arch.encoder is None:
        return None
    rows = Rows(OpTableBuilder(), replace(point, seq_len=arch.encoder.seq_len))
    layer(rows, encoder_side(arch, arch.encoder), "dense")
    return rows.to.build()


def encoder_side(arch: Architecture, encoder: Encoder) -> Architecture:
    """The encoder of ``arch`` as a separate model."""
    return replace(
        arch,
        kind="encoder",
        encoder=None,
        n_layers=encoder.n_layers,
        hidden=encoder.hidden,
        ffn=encoder.ffn,
        heads=encoder.heads,
        kv_heads=encoder.heads,
        head_dim=encoder.head_dim,
    )


def recomputed_share(table: OpTable, selective_recompute: str) -> NDArray[np.float64]:
    """[R] share of each row's forward that a layer's backward runs again under selective recompute; 0 in the backward.

    ``core-attention`` repeats the attention core (Korthikanti, arXiv 2205.05198). ``per-op`` keeps the attention and
    every second product in the order query, key, value, output, gate, up, down, and repeats the others with all that is
    no product (torchtitan activation_checkpoint.py); the last product is not repeated, as nothing reads its result.
    """
    forward = table.phase == Phase.FORWARD
    if selective_recompute == "core-attention":
        return np.where(forward & selected_modules(table.name), 1.0, 0.0)
    if selective_recompute == "norms":
        norms = _flagged(table.name, lambda name: name.endswith("norm"))
        return np.where(forward & (selected_modules(table.name) | norms), 1.0, 0.0)
    is_saved = np.isin(table.kind, [int(k) for k in (Kind.MATMUL, Kind.GROUPED, Kind.ATTENTION, Kind.COLLECTIVE)])
    share = np.where(forward & ~is_saved, 1.0, 0.0)
    products = np.flatnonzero(forward & (table.kind == Kind.MATMUL)).tolist()
    down = {table.name[i]: int(table.shape[i, 3]) for i in products}
    grouped = 1.0
    for i in np.flatnonzero(forward & (table.kind == Kind.ATTENTION)).tolist():
        grouped = float(table.shape[i, 4] / table.shape[i, 3])
    for i in products:
        where, _, name = table.name[i].rpartition(".")
        if name == "qkv":
            share[i] = grouped / (1.0 + 2.0 * grouped)
        elif name == "out":
            share[i] = 1.0
        elif name == "up":
            share[i] = 0.5 if table.shape[i, 2] == 2 * down.get(f"{where}.down", 0) else 0.0
    return share


@lru_cache(maxsize=1024)
def selected_modules(names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Rows that Megatron's selective recompute repeats: the attention core, or, in layers with latent attention or experts
    (whose recipes name modules), the up-projections and the experts' activation. Casts of an input belong to it."""
    here = set(names)
    modules = {row for block in REPEATED_APART if block.own_row in here for row in block.repeated}
    if not modules:
        return _flagged(names, lambda name: name.endswith(".core"))
    return _flagged(names, lambda name: name.removesuffix(".quantize") in modules)


def _flagged(names: Sequence[str], predicate: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Flags of the requested names; a table of many points repeats a few dozen names."""
    flags = {name: predicate(name) for name in dict.fromkeys(names)}
    return np.array([flags[name] for name in names], bool)


def saved_bytes(table: OpTable, policy: str, selective_recompute: str, input_bytes: float) -> float:
    """Bytes one layer keeps from forward to backward under ``policy``; ``full`` keeps only its input.

    ``selective`` drops what the attention core keeps inside (``core-attention``: its inputs and output stay), or keeps
    the layer's input, every second matmul's output and the attention's output (``per-op``, torchtitan's default policy).
    """
    if policy == "full":
        return input_bytes
    row_bytes = table.saved_bytes * table.count
    if policy == "none":
        return float(row_bytes.sum())
    if selective_recompute == "norms":
        return _saved_without_norms(table)
    if selective_recompute == "core-attention" and any(block.own_row in table.name for block in REPEATED_APART):
        return _saved_without_modules(table)
    if selective_recompute == "core-attention":
        core = np.array([n.endswith(".core") for n in table.name], bool)
        fused = core & ((table.flag & FUSED_ATTENTION) > 0)
        stays = np.where(core, table.bytes_read, 0.0) + np.where(fused, table.bytes_written, 0.0)
        # at most the bytes saved without recomputation (grouped keys may be saved as they are)
        return float(np.minimum(np.where(core, stays * table.count, row_bytes), row_bytes).sum())
    last = 0.0 if selective_recompute == "per-op-compiled" else 1.0
    return min(_every_second_output(table, last) + input_bytes, float(row_bytes.sum()))


def _saved_without_modules(table: OpTable) -> float:
    """Bytes saved if the modules of :func:`selected_modules` are recomputed: latent attention saves its latents and the core's
    output and statistics, experts the activation's input but not its output."""
    row_bytes = table.saved_bytes * table.count
    latent = LATENT.own_row in table.name
    for i, name in enumerate(table.name):
        if name == "attention.core" and latent and table.flag[i] & FUSED_ATTENTION:
            row_bytes[i] = max(row_bytes[i] - table.bytes_read[i] * table.count[i], 0.0)
        elif name == "moe.down":
            row_bytes[i] = 0.0
    return float(row_bytes.sum())


AFTER_NORM = tuple(row for block in KINDS for row in block.after_norm)
AFTER_ACTIVATION = tuple(row for block in KINDS for row in block.after_activation)


def _saved_without_norms(table: OpTable) -> float:
    """Bytes saved if norms are recomputed too and the activation's input is saved in 8 bits (DeepSeek-V3, arXiv 2412.19437,
    sections 3.2.3 and 3.3.3)."""
    row_bytes = table.saved_bytes * table.count
    is_recomputed = np.isin(table.name, (*AFTER_NORM, *AFTER_ACTIVATION))
    narrow = _flagged(table.name, lambda name: name.endswith(".activation")) & ("moe.up" in table.name)
    element = np.array([FORMAT_BYTES["bf16" if d in QUANTIZED else d] for d in table.dtype])
    less = np.where(is_recomputed, row_bytes, np.where(narrow, row_bytes * (1.0 - 1.0 / element), 0.0))
    return _saved_without_modules(table) - float(less.sum())


def _every_second_output(table: OpTable, last: float) -> float:
    """Bytes of the outputs of every second matmul of a layer (query, value, gate, ``last`` of the last one), and of the
    attention with its fp32 row statistics (torchtitan activation_checkpoint.py)."""
    total = 0.0
    products = (Kind.MATMUL, Kind.GROUPED)
    kinds = table.kind.tolist()
    for i in np.flatnonzero((table.phase == Phase.FORWARD) & np.isin(table.kind, (*products, Kind.ATTENTION))).tolist():
        name, shape = table.name[i], table.shape[i].tolist()
        e = FORMAT_BYTES["bf16" if table.dtype[i] in QUANTIZED else table.dtype[i]]
        if kinds[i] == Kind.ATTENTION:
            batch, q_len, _, heads, kv_heads, head_dim, v_dim = (float(x) for x in shape)
            tokens = batch * q_len
            total += table.bytes_written[i] + 4.0 * tokens * heads + tokens * (heads * head_dim + kv_heads * v_dim) * e
        elif not name.startswith("attention.") and ".lora_" not in name:
            share = last if name.endswith(".down") else 0.5
            total += share * float(shape[1] * shape[2]) * e * table.count[i]
    return total


@lru_cache(maxsize=512)
def model_flop_per_token(
    arch: Architecture,
    seq_len: int,
    *,
    lora_rank: int = 0,
    lora_targets: tuple[str, ...] = DEFAULT_TARGETS,
    packed_document_len: int | None = None,
) -> float:
    """FLOP of forward and backward per trained token, recompute not counted, causal attention counted by its visible half.

    Adapters (``lora_rank``) do without the weight gradients of the frozen weights; packed documents of
    ``packed_document_len`` tokens do not attend to one another.

    For a dense decoder this is 6 x (matmul parameters) + 6 x layers x heads x (qk + v head dim) x pairs / S; the
    numerator of model FLOPs utilisation.
    """
    from gpuwise.workload.stacks.stack import find_stack

    point = Point(
        micro_batch=1,
        seq_len=seq_len,
        precision="bf16",
        stack=find_stack("megatron-core"),
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        packed_document_len=packed_document_len,
    )
    tables = transformer_tables(replace(arch, prediction_layers=0), point)
    total = sum(t.total_flop() * tables.layer_counts[k] for k, t in tables.layers.items())
    total += tables.embedding.total_flop() + tables.head.total_flop()
    if tables.encoder is not None:
        total += tables.encoder.total_flop() * tables.encoder_layers
    return total / point.tokens
