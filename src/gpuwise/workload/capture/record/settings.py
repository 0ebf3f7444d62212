# pyright: basic
"""What torch was set to when the step ran."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from gpuwise.workload.capture.captured import Settings, Signature
from gpuwise.workload.row_codes import Kind


def optimizer_name(optimizer: Any) -> str:
    """``AdamW/foreach``, ``SGD/fused``, ``Adam/for-loop``."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    fused, foreach = group.get("fused"), group.get("foreach")
    name = type(optimizer).__name__
    if not type(optimizer).__module__.startswith("torch.optim"):
        return f"{name}/custom"
    if fused:
        return f"{name}/fused"
    if foreach is None and "foreach" in group:
        from torch.optim.optimizer import _default_to_fused_or_foreach

        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        foreach = _default_to_fused_or_foreach(parameters, bool(group.get("differentiable")), use_fused=False)[1]
    return f"{name}/foreach" if foreach else f"{name}/for-loop"


def settings_now(optimizers: tuple[str, ...], signatures: Sequence[Signature], **options: Any) -> Settings:
    """Torch's switches as they are now; ``given`` fills what only the capture knows."""
    return Settings(
        torch_version=torch.__version__,
        matmul_tf32=bool(torch.backends.cuda.matmul.allow_tf32),
        cudnn_tf32=bool(torch.backends.cudnn.allow_tf32),
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        deterministic=torch.are_deterministic_algorithms_enabled() or bool(torch.backends.cudnn.deterministic),
        channels_last=_channels_last(signatures),
        optimizers=optimizers,
        allocator_conf=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        **options,
    )


def _channels_last(signatures: Sequence[Signature]) -> bool:
    """Whether more convolutions read channels-last images than not."""
    votes = 0
    for signature in signatures:
        if signature.kind is Kind.CONVOLUTION and signature.inputs and len(signature.inputs[0].shape) in (4, 5):
            shape, stride = signature.inputs[0].shape, signature.inputs[0].stride
            if shape[1] > 1:
                votes += 1 if stride[1] == 1 else -1
    return votes > 0
