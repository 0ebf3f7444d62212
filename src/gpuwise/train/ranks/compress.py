# pyright: basic
"""Gradients in fewer bytes, as DDP exchanges them. What comes of it is another precision, or with PowerSGD another training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.meter import Meter

WARM_STEPS = 2
"""Before PowerSGD compresses (the least that its error feedback takes, PyTorch 2.7 to 2.13)."""
LARGEST = 2.0**15
"""Largest sum in fp16 (maximum 65,504)."""


def compression(layout: Layout, group: Any, meter: Meter) -> tuple[Any, Callable[..., Any]]:
    """State and hook for ``register_comm_hook``; the hook sums over the ranks and divides nothing."""
    if layout.compress == "fp16":
        return group, lambda group, bucket: _halved(group, bucket, meter)
    if layout.compress == "powersgd":
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=WARM_STEPS)
        n, hook = dist.get_world_size(group), powerSGD_hook.powerSGD_hook
        # torch's divides by the ranks
        return state, lambda state, bucket: hook(state, bucket).then(lambda done: done.value().mul_(n))
    return group, lambda group, bucket: meter.bucket(group, bucket)


def _halved(group: Any, bucket: Any, meter: Meter) -> Any:
    """Sums in fp16, of gradients scaled by a power of two that all ranks agree on: they are sums over tokens, and large."""
    whole = bucket.buffer()
    largest = whole.abs().max().float().reshape(1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    peak = float(largest) * dist.get_world_size(group)
    factor = 2.0 ** torch.floor(torch.log2(torch.tensor(LARGEST / peak))).item() if peak > 0 else 1.0
    half = (whole * factor).half()
    future = meter.exchanged(group, half)
    return future.then(lambda done: whole.copy_(done.value()[0]).div_(factor))
