"""A device's own memory: copy (b = a) and triad (a = b + s c), as STREAM counts them: bytes read and written."""

# pyright: basic
from __future__ import annotations

from typing import Any

from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.prepared_case import Check, PreparedCase
from gpuwise.machine.bench.subjects import Subject, has_torch
from gpuwise.machine.bench.torch_timing import _host_sampler, copies_needed, sampler

SCALE = 3.0


def make_stream(case: BenchCase, subject: Subject) -> PreparedCase:
    """Prepare a copy or triad of arrays of ``bytes`` each."""
    size = int(case.parameters["bytes"])
    if not has_torch():
        return _numpy_stream(case.variant, size)
    import torch

    if case.variant == "copy":
        sets = copies_needed(subject, 2.0 * size)
        arrays = [_bytes(torch, size, subject) for _ in range(sets)]

        def launch(i: int) -> None:
            source, target = arrays[i]
            target.copy_(source)

        def check() -> Check:
            launch(0)
            same = bool(torch.equal(*arrays[0]))
            return Check(same, 0.0 if same else float("inf"), f"{size:,} bytes")

        traffic_bytes = 2.0 * size
    else:
        sets = copies_needed(subject, 3.0 * size)
        count = max(1, size // 4)
        generator = torch.Generator(device=subject.torch_name).manual_seed(7)
        arrays = [tuple(torch.rand(count, device=subject.torch_name, generator=generator) for _ in range(3)) for _ in range(sets)]

        def launch(i: int) -> None:
            a, b, c = arrays[i]
            torch.add(b, c, alpha=SCALE, out=a)

        def check() -> Check:
            launch(0)
            a, b, c = arrays[0]
            n = min(count, 2**20)
            true = b[:n].cpu().double() + SCALE * c[:n].cpu().double()
            # a product and a sum, each rounded once
            error = float(((a[:n].cpu().double() - true).abs() / (2.0**-23 * (true.abs() + SCALE))).max())
            return Check(error <= 1.0, error, f"{n:,} elements")

        traffic_bytes = 3.0 * 4 * count
    sample, how = sampler(subject, launch, sets)

    def close() -> None:
        arrays.clear()
        if subject.kind == "cuda":
            torch.cuda.empty_cache()

    return PreparedCase(sample, traffic_bytes, check, close, how)


def _bytes(torch: Any, size: int, subject: Subject) -> tuple[Any, Any]:
    """A source of counted words and a target that does not hold them."""
    words = max(1, size // 4)
    source = torch.arange(words, dtype=torch.int32, device=subject.torch_name)
    return source, torch.full_like(source, -1)


def _numpy_stream(variant: str, size: int) -> PreparedCase:
    import numpy as np

    count = max(1, size // 4)
    b = np.arange(count, dtype=np.float32)
    a = np.empty_like(b)
    c = np.ones_like(b)

    def launch(_: int) -> None:
        if variant == "copy":
            np.copyto(a, b)
        else:
            np.multiply(c, np.float32(SCALE), out=a)
            np.add(a, b, out=a)

    def check() -> Check:
        launch(0)
        true = b if variant == "copy" else b + np.float32(SCALE) * c
        same = bool(np.array_equal(a, true))
        return Check(same, 0.0 if same else float("inf"), f"{count:,} elements")

    # numpy writes and reads the product in between: five passes where one loop makes three
    traffic_bytes = (2.0 if variant == "copy" else 5.0) * 4 * count
    how = {"timed by": "host clock", "library": "numpy", "threads": 1}
    return PreparedCase(_host_sampler(launch, 1), traffic_bytes, check, conditions=how)
