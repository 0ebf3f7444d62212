"""Whether torch can use a GPU here, without starting the driver."""

from __future__ import annotations

import torch


def has_cuda() -> bool:
    """Whether there are GPUs that torch can use, asked of NVML: ``torch.cuda.is_available()`` starts the driver, after which a
    script's own CUDA_VISIBLE_DEVICES is not read and its forked processes cannot use a GPU."""
    return torch.cuda.device_count() > 0
