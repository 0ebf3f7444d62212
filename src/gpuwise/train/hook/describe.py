# pyright: basic
"""Descriptions of an optimizer, a model, a loader, a batch and the devices, with the properties that determine their speed."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from gpuwise.workload.capture.ops.nested import tensors_in


def describe_optimizer(optimizer: Any) -> dict[str, Any]:
    """Kind, options of the parameter groups, number, shapes and size of parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    options = {name: optimizer.param_groups[0].get(name) for name in ("fused", "foreach", "capturable", "lr")}
    return {
        "name": type(optimizer).__name__,
        "module": type(optimizer).__module__,
        "n_tensors": len(parameters),
        "shapes": _shapes(parameters),
        "n_parameters": sum(p.numel() for p in parameters),
        "devices": sorted({p.device.type for p in parameters}),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
        **{k: float(v) if isinstance(v, torch.Tensor) else v for k, v in options.items()},
    }


def describe_model(module: Any) -> dict[str, Any]:
    """Kind, size and speed-relevant properties of an outermost module."""
    parameters = list(module.parameters())
    kinds = {type(m).__name__ for m in module.modules()}
    return {
        "name": type(module).__name__,
        "shapes": _shapes(parameters),
        "n_parameters": sum(p.numel() for p in parameters),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
        "devices": sorted({str(p.device) for p in parameters}),
        "convolutions": any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules()),
        "compiled": "OptimizedModule" in kinds or any(getattr(m, "_compiled_call_impl", None) for m in module.modules()),
        "wrapped": sorted(kinds & {"DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"}),
    }


def _shapes(parameters: list[Any]) -> list[list[Any]]:
    """Shapes of tensors, each with how many have it."""
    return [[list(shape), n] for shape, n in Counter(tuple(p.shape) for p in parameters).items()]


def describe_loader(loader: Any) -> dict[str, Any]:
    """The settings of a ``DataLoader``."""
    length = None
    with suppress(TypeError, NotImplementedError, AttributeError):
        length = len(loader.dataset)
    batches = None
    with suppress(TypeError, NotImplementedError, AttributeError, ValueError):
        batches = len(loader)
    names = ("batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "drop_last")
    return {
        "dataset": type(loader.dataset).__name__,
        "n_samples": length,
        "n_batches": batches,
        "sampler": type(getattr(loader, "sampler", None)).__name__,
        "batch_sampler": type(loader.batch_sampler).__name__,
        "collate_fn": getattr(loader.collate_fn, "__qualname__", None),
        **{n: getattr(loader, n, None) for n in names},
    }


def describe_devices() -> list[dict[str, Any]]:
    """The accelerators on which this process holds tensors, as their driver names them; empty for one on the processor."""
    if not torch.cuda.is_initialized():
        return []
    loaders: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count()):
        if not torch.cuda.max_memory_allocated(index):
            continue
        properties = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        loaders.append(
            {
                "index": index,
                "name": properties.name,
                "uuid": None if uuid is None else str(uuid),
                "memory_bytes": properties.total_memory,
                "capability": [properties.major, properties.minor],
            }
        )
    return loaders


def size_of(batch: Any) -> tuple[int, int]:
    """Samples (first dimension of the first tensor) and tokens (elements of the first two-dimensional integer tensor)."""
    samples = tokens = 0
    for tensor in tensors_in(batch):
        if not samples and tensor.dim() > 0:
            samples = int(tensor.shape[0])
        if not tokens and tensor.dim() == 2 and not tensor.is_floating_point() and tensor.dtype != torch.bool:
            tokens = tensor.numel()
        if samples and tokens:
            break
    return samples, tokens
