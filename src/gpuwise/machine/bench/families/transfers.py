"""Copies between host and device, page-locked and not, and from one device to the next. Rates are one direction."""

from __future__ import annotations

from typing import Any

from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.prepared_case import Check, NotHereError, PreparedCase
from gpuwise.machine.bench.subjects import Subject

SAMPLE_S = 0.004


def make_transfer(case: BenchCase, subject: Subject) -> PreparedCase:
    """Prepare a copy of ``bytes`` between host and device (``h2d-pinned``, ``d2h-pageable`` ...)."""
    import torch

    size = int(case.parameters["bytes"])
    direction, _, kind = case.variant.partition("-")
    pinned = kind == "pinned"
    host = torch.arange(max(1, size // 4), dtype=torch.int32)
    if pinned:
        host = host.pin_memory()
    device = torch.full_like(host, -1, device=subject.torch_name)
    source, target = (host, device) if direction == "h2d" else (device, host)
    if direction == "d2h":
        device.copy_(host)
        host.fill_(-1)
    return _between(torch, source, target, size, (subject.index,), asynchronous=pinned)


def make_peer(case: BenchCase, subject: Subject) -> PreparedCase:
    """Prepare a copy from this GPU to the next one, cyclically. Raises NotHereError with one GPU only."""
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        raise NotHereError("there is one GPU")
    other = (subject.index + 1) % count
    size = int(case.parameters["bytes"])
    source = torch.arange(max(1, size // 4), dtype=torch.int32, device=subject.torch_name)
    target = torch.full_like(source, -1, device=f"cuda:{other}")
    prepared = _between(torch, source, target, size, (subject.index, other), asynchronous=True)
    direct = bool(torch.cuda.can_device_access_peer(subject.index, other))
    return PreparedCase(
        prepared.sample,
        prepared.amount,
        prepared.check,
        prepared.close,
        {**prepared.conditions, "to": other, "peer access": direct},
    )


def _between(torch: Any, source: Any, target: Any, size: int, devices: tuple[int, ...], *, asynchronous: bool) -> PreparedCase:
    """Copies timed between events of the first device, after both are idle."""
    torch.cuda.set_device(devices[0])
    repeats = 1

    def copies(n: int) -> float:
        for index in devices:
            torch.cuda.synchronize(index)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(n):
            target.copy_(source, non_blocking=asynchronous)
        end.record()
        for index in devices:
            torch.cuda.synchronize(index)
        return start.elapsed_time(end) / 1e3 / n

    one = min(copies(1) for _ in range(3))
    repeats = max(1, min(1000, int(SAMPLE_S / max(one, 1e-7)) + 1))

    def check() -> Check:
        same = bool(torch.equal(source.cpu(), target.cpu()))
        return Check(same, 0.0 if same else float("inf"), f"{size:,} bytes")

    return PreparedCase(lambda: copies(repeats), float(size), check, conditions={"timed by": "CUDA events"})
