# pyright: basic
"""Size of a batch in samples and tokens, however its tensors are nested."""

from __future__ import annotations

from typing import Any

import torch

from gpuwise.workload.capture.ops.nested import tensors_in


def size_of(batch: Any) -> tuple[int, int]:
    """Samples (first dimension of the first tensor found) and tokens (elements of the first two-dimensional integer one)."""
    samples = tokens = 0
    for tensor in tensors_in(batch):
        if not samples and tensor.dim() > 0:
            samples = int(tensor.shape[0])
        if not tokens and tensor.dim() == 2 and not tensor.is_floating_point() and tensor.dtype != torch.bool:
            tokens = tensor.numel()
        if samples and tokens:
            break
    return samples, tokens
