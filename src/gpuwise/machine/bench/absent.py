"""Reason why no GPU can be measured, as a sentence: no card, no PyTorch, one without CUDA, or one that reaches none."""

from __future__ import annotations

from collections.abc import Iterable

from gpuwise.errors import GpuwiseError
from gpuwise.machine.bench.subjects import has_torch
from gpuwise.machine.devices.backend import Devices

DOCTOR = "`gpuwise doctor` says why"


def no_gpu_reason(backends: Iterable[Devices]) -> str:
    """The reason, with the cards a driver knows of; for a machine where PyTorch reaches no GPU."""
    names: list[str] = []
    for backend in backends:
        try:
            names += [identity.name for identity in backend.identities()]
        except GpuwiseError:
            continue
    if not has_torch():
        return (
            f"the driver has {_count_text(names)}, and there is no PyTorch to measure with" if names else "no driver knows of one"
        )
    if not names:
        return "no driver knows of one"
    import torch

    runtime = torch.version.cuda or torch.version.hip
    why = "reaches none of it" if runtime else "is a build for the processor only"
    return f"the driver has {_count_text(names)}, PyTorch {torch.__version__} {why}: {DOCTOR}"


def _count_text(names: list[str]) -> str:
    return ", ".join(f"{n} x {name}" if (n := names.count(name)) > 1 else name for name in dict.fromkeys(names))
