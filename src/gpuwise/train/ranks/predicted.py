# pyright: basic
"""Collectives of a step before it runs: how many, of how many bytes, from the shapes of a model's parameters and its layout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.parallel.adapters import added_columns, added_rows
from gpuwise.train.ranks.parallel.halves import head_width, out_features
from gpuwise.train.ranks.parallel.stages import Stage
from gpuwise.train.ranks.parallel.tensor import NORMS, DividedLayers, head_names
from gpuwise.train.ranks.wrap import bucket_assignment, local_of
from gpuwise.workload.capture.repeats import largest_kind, repeated_blocks, unshared_blocks

TOTALS_BYTES, NORM_BYTES = 4 * 8, 8
"""Bytes that the loop communicates once per step: loss, count and requests; and for clipping a norm."""
COUNT_BYTES = 8
"""Bytes of a communicated number of tokens."""
Counts = dict[str, list[int]]


def collectives(
    model: nn.Module,
    layout: Layout,
    *,
    clips: bool,
    totals_bytes: int = TOTALS_BYTES,
    stage: Stage | None = None,
    row: int = 0,
    tokens: int = 0,
    apart: Mapping[str, nn.Parameter] = MappingProxyType({}),
    divided: DividedLayers | None = None,
) -> Counts:
    """Number and bytes by kind on each rank, of a step whose micro-batches are all there (DDP: from the second step on, when it
    has its buckets). Bytes as :class:`gpuwise.train.ranks.meter.Meter` counts them.
    ``totals_bytes``: of the numbers that are exchanged once a step. ``model`` as it is before it is given to DDP or FSDP2.
    ``stage``: this rank's of a pipeline, and ``row`` what layers pass on of one sample; ``tokens`` of one, with shared rows
    or divided experts. All are exact where all samples are as long. ``apart``: parameters of divided experts; ``divided``: what
    tensor ranks have parts of."""
    found: Counts = {}
    if layout.n_ranks > 1:
        found["all-reduce"] = [1 + clips, totals_bytes + clips * NORM_BYTES]
    if stage is not None:
        n_sends = layout.n_micro * ((stage.index > 0) + (not stage.is_last))
        _add(found, "send", n_sends, n_sends * layout.micro_batch * row * 4)
        for name, parameter in model.named_parameters():
            if name in stage.holders:
                parts = layout.shard_group if layout.sharding == "hybrid" else layout.dp if layout.sharding != "none" else 1
                rows = local_of(parameter).shape[0]
                own = min(
                    max(rows - math.ceil(rows / parts) * (dist.get_rank() // layout.tp % parts), 0), math.ceil(rows / parts)
                )
                _add(found, "all-reduce", 1, own * math.prod(local_of(parameter).shape[1:]) * 4)
    if layout.cp > 1:
        _shared_rows(found, model, layout, tokens)
    blocks = largest_kind(repeated_blocks(model)) if stage is None else stage.blocks
    if divided is not None:
        _tensor(found, model, layout, row, divided, blocks, stage)
    if apart:
        _experts(found, layout, tokens, apart, model.config, blocks, divided)
    if layout.n_replicas == 1:
        return found
    others = {id(p) for p in apart.values()}
    trained = [p for p in model.parameters() if p.requires_grad and id(p) not in others]
    if layout.sharding == "none":
        n_buckets = len(bucket_assignment(trained[::-1]))
        _add(found, "all-reduce", n_buckets, sum(p.numel() * p.element_size() for p in trained))
        return found
    width = layout.shard_group if layout.sharding == "hybrid" else layout.n_replicas
    n, held = layout.n_micro, 2 if layout.precision == "bf16" else 4
    units = _units(model, width, None if stage is None else stage.blocks, others)
    for elements, moved, is_block in units:
        again = is_block and layout.sharding != "zero2"
        times = 2 * n if again else n if stage is None else kept_gathers(n, layout.pp - stage.index)
        _add(found, "all-gather", times, times * elements * held)
        if not moved:
            continue
        _add(found, "reduce-scatter", n, n * moved * 4)
        if layout.sharding == "hybrid":
            _add(found, "all-reduce", n, n * moved * 4 // width)
    return found


def _shared_rows(found: Counts, model: nn.Module, layout: Layout, tokens: int) -> None:
    """Keys and values of every layer together, forward (again where it is recomputed) and their gradients back."""
    config: Any = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    whole = math.ceil(tokens / layout.cp) * layout.cp
    held = 2 if layout.precision == "bf16" else 4
    n_bytes = 2 * rows_of(layout) * (heads // layout.tp) * whole * width * held
    times = config.num_hidden_layers * layout.n_micro
    again = len(range(0, config.num_hidden_layers, layout.recompute_every)) * layout.n_micro if layout.recompute == "full" else 0
    _add(found, "all-gather", times + again, (times + again) * n_bytes)
    _add(found, "reduce-scatter", times, times * n_bytes)


def _tensor(
    found: Counts,
    model: nn.Module,
    layout: Layout,
    row: int,
    divided: DividedLayers,
    blocks: Sequence[nn.Module],
    stage: Stage | None,
) -> None:
    """Collectives of each half of a layer with split weights: its sum, and that of its input's gradients. The head's columns
    are gathered."""
    every = blocks[:: layout.recompute_every] if layout.recompute == "full" else []
    n, width, held = layout.n_micro, 0, 2 if layout.precision == "bf16" else 4
    # FSDP2 takes whole gradients of every micro-batch
    sums, part = (n, held) if layout.sharding != "none" and layout.n_replicas > 1 else (1, 4)
    for block in blocks:
        rows = divided.rows[block]
        width = out_features(block.get_submodule(rows[0]))
        again = n * any(b is block for b in every)
        moved = len(rows) - (len(divided.unmoved.intersection(rows)) if block is blocks[0] and not (stage and stage.index) else 0)
        times = n * (len(rows) + moved) + again * len(divided.needed.intersection(rows))
        _add(found, "all-reduce", times, times * _hidden_bytes(layout, row, width))
        for factor in added_columns(block):
            _add(found, "all-reduce", sums, sums * factor.numel() * part)
        for rank in added_rows(block):
            _add(found, "all-reduce", n + again, (n + again) * _hidden_bytes(layout, row, width) // width * rank)
        norms = [(block.get_submodule(name.rpartition(".")[0]), m) for name, m in block.named_modules() if name in NORMS]
        for attention, parameter in ((a, p) for a, m in norms for p in m.parameters()):
            elements = parameter.numel()
            if elements <= head_width(attention):
                if parameter.requires_grad:
                    _add(found, "all-reduce", sums, sums * elements * part)
                continue
            # of all heads together: its mean, the gradient of that, and of the weights, each computed in fp32 of a part
            tokens = n * _hidden_bytes(layout, row, width) // width // held
            _add(found, "all-reduce", n + again, (tokens + tokens * again // n) * 4)
            _add(found, "reduce-scatter", n, tokens * elements * 4)
            if parameter.requires_grad:
                _add(found, "all-gather", sums, sums * elements * part)
    for head in (getattr(model, name) for name in head_names(model)):
        if not isinstance(head.weight, DTensor) or not (stage is None or stage.is_last):
            continue
        n_bytes = _hidden_bytes(layout, row, width)
        _add(found, "all-gather", n, n * n_bytes // width * out_features(head))
        _add(found, "all-reduce", n, n * n_bytes)


def _hidden_bytes(layout: Layout, row: int, width: int) -> int:
    """Bytes of a micro-batch's hidden state between layers."""
    held = 2 if layout.precision == "bf16" else 4
    return rows_of(layout) * math.ceil(row // width / layout.cp) * width * held


def _experts(
    found: Counts,
    layout: Layout,
    tokens: int,
    apart: Mapping[str, nn.Parameter],
    config: Any,
    blocks: Sequence[nn.Module],
    divided: DividedLayers | None,
) -> None:
    """For each layer with experts: token counts, the all-to-all there and back, and the gradients of both. Tensor ranks gather
    the results of their shares, and their gradients."""
    layers = {name.rpartition(".")[0]: p for name, p in apart.items()}
    n_each, width = config.num_experts_per_tok, config.hidden_size
    held = 2 if layout.precision == "bf16" else 4
    n_rows = rows_of(layout) * math.ceil(tokens / layout.cp)
    most = math.ceil(n_rows / layout.tp)
    own = min(max(n_rows - most * (dist.get_rank() % layout.tp), 0), most)
    every = blocks[:: layout.recompute_every] if layout.recompute == "full" else []
    inside = {id(p) for block in every for p in block.parameters()}
    for name, parameter in layers.items():
        again = layout.n_micro * (id(parameter) in inside)
        times = layout.n_micro + again
        _add(found, "all-to-all", times, times * parameter.shape[0] * COUNT_BYTES)
        exchanges = 2 * (times + layout.n_micro)
        _add(found, "all-to-all", exchanges, exchanges * own * n_each * width * held)
        if divided is not None:
            again *= any(name.endswith(f".{of}") for of in divided.needed)
            elements = layout.n_micro * (2 * width + n_each) + again * width
            _add(found, "all-gather", 3 * layout.n_micro + again, elements * most * layout.tp * held)
    if layout.n_replicas * layout.tp > layout.ep:
        for parameter in apart.values():
            if parameter.requires_grad:
                _add(found, "all-reduce", 1, local_of(parameter).numel() * 4)


def rows_of(layout: Layout) -> int:
    """Samples in a micro-batch where all are as large."""
    return min(layout.micro_batch, math.ceil(layout.global_batch / layout.dp))


def kept_gathers(n_micro: int, ahead: int) -> int:
    """How often weights are gathered that stay after a forward pass and go after a backward pass, in 1F1B with ``ahead`` forward
    passes before the first backward pass."""
    warm = min(n_micro, ahead)
    order = "F" * warm + "BF" * (n_micro - warm) + "B" * warm
    here, times = False, 0
    for each in order:
        times += not here
        here = each == "F"
    return times


def _units(model: nn.Module, width: int, blocks: list[nn.Module] | None, apart: Set[int]) -> list[tuple[int, int, bool]]:
    """Elements of what FSDP2 gathers together, each parameter's rows made a multiple of the ranks: blocks, then the rest, which
    stages in the middle have not; of what of it has gradients; and whether it is a block."""
    blocks = unshared_blocks(model, repeated_blocks(model) if blocks is None else blocks)
    groups: list[Sequence[nn.Parameter]] = [[p for p in block.parameters() if id(p) not in apart] for block in blocks]
    inside = {id(p) for block in blocks for p in block.parameters()} | apart
    rest = [p for p in model.parameters() if id(p) not in inside]

    def elements(group: Sequence[nn.Parameter]) -> int:
        shapes = [local_of(p).shape for p in group]
        return sum(math.ceil(s[0] / width) * width * math.prod(s[1:]) for s in shapes)

    units = [(group, True) for group in groups] + [(rest, False)]
    return [(elements(group), elements([p for p in group if p.requires_grad]), is_block) for group, is_block in units if group]


def _add(found: Counts, kind: str, n: int, n_bytes: int) -> None:
    counts = found.setdefault(kind, [0, 0])
    counts[0] += n
    counts[1] += n_bytes
