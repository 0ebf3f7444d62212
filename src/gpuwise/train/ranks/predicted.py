# pyright: basic
"""Collectives of a step before it runs: how many, of how many bytes, from the shapes of a model's parameters and its layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gpuwise.train.levers.modules import repeated_blocks
from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.wrap import local_of

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes of DDP's first bucket and of the others (its defaults, PyTorch 2.7 to 2.13)."""
TOTALS_BYTES, NORM_BYTES = 4 * 8, 8
"""What the loop exchanges once a step: loss, number and requests; and for clipping a norm."""
Counts = dict[str, list[int]]


def collectives(model: nn.Module, layout: Layout, *, clips: bool, totals_bytes: int = TOTALS_BYTES) -> Counts:
    """Number and bytes by kind on each rank, of a step whose micro-batches are all there (DDP: from the second step on, when it
    has its buckets). Bytes as :class:`gpuwise.train.ranks.meter.Meter` counts them; tensor parallel layers exchange inside of
    torch, and are not among them.
    ``totals_bytes``: of the numbers that are exchanged once a step. ``model`` as it is before it is given to DDP or FSDP2."""
    found: Counts = {}
    if layout.n_ranks > 1:
        found["all-reduce"] = [1 + clips, totals_bytes + clips * NORM_BYTES]
    if layout.dp == 1:
        return found
    trained = [p for p in model.parameters() if p.requires_grad]
    if layout.sharding == "none":
        n_buckets = len(bucket_assignment(trained[::-1]))
        _add(found, "all-reduce", n_buckets, sum(p.numel() * p.element_size() for p in trained))
        return found
    width = layout.shard_group if layout.sharding == "hybrid" else layout.dp
    n, held = layout.n_micro, 2 if layout.precision == "bf16" else 4
    units = _units(model, width)
    for at, elements in enumerate(units):
        again = at < len(units) - 1 and layout.sharding != "zero2"
        _add(found, "all-gather", n * (1 + again), n * (1 + again) * elements * held)
        _add(found, "reduce-scatter", n, n * elements * 4)
        if layout.sharding == "hybrid":
            _add(found, "all-reduce", n, n * elements * 4 // width)
    return found


def bucket_assignment(parameters: Sequence[torch.Tensor]) -> list[list[int]]:
    """Numbers of the parameters, in the buckets in which DDP exchanges their gradients."""
    assign: Any = vars(dist)["_compute_bucket_assignment_by_size"]  # DDP's own
    return assign(parameters, [FIRST_BUCKET, BUCKET])[0]


def _units(model: nn.Module, width: int) -> list[int]:
    """Elements of what FSDP2 gathers together, each parameter's rows made a multiple of the ranks: blocks, then the rest."""
    blocks = repeated_blocks(model)
    inside = {id(p) for block in blocks for p in block.parameters()}
    groups: list[Sequence[nn.Parameter]] = [list(block.parameters()) for block in blocks]
    groups.append([p for p in model.parameters() if id(p) not in inside])
    shapes = [[local_of(p).shape for p in group] for group in groups if group]
    return [sum(math.ceil(s[0] / width) * width * math.prod(s[1:]) for s in group) for group in shapes]


def _add(found: Counts, kind: str, n: int, n_bytes: int) -> None:
    counts = found.setdefault(kind, [0, 0])
    counts[0] += n
    counts[1] += n_bytes
