"""Samples a second from a PyTorch data loader: 256 x 256 pixels in 8 bits, cut to 224, flipped, normalised, batched.

Decoding is excluded: the benchmark measures the loader, its processes and the host's memory on decoded pixels.
"""

# pyright: basic
from __future__ import annotations

import time
from typing import Any

from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.prepared_case import Check, NotHereError, PreparedCase
from gpuwise.machine.bench.subjects import Subject, has_torch

IMAGES, SIDE, CUT, BATCH = 64, 256, 224, 32
SAMPLE_BATCHES = 4
SLOW_BATCH_S = 0.3
"""A batch that takes longer than this is a sample of its own."""


class Images:
    """A map-style data set; the first value of an image is its number."""

    def __init__(self, length: int) -> None:
        import torch

        self.length = length
        generator = torch.Generator().manual_seed(3)
        self.pixels = torch.randint(0, 256, (IMAGES, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> tuple[Any, int]:
        import torch

        image = self.pixels[number % IMAGES]
        top, left = number * 7 % (SIDE - CUT), number * 13 % (SIDE - CUT)
        part = image[:, top : top + CUT, left : left + CUT]
        if number % 2:
            part = part.flip(-1)
        return (part.to(torch.float32) / 255.0 - 0.5) / 0.25, number


def make_loader(case: BenchCase, subject: Subject) -> PreparedCase:
    """A loader with ``workers`` processes. Raises NotHereError without PyTorch or with more processes than cores."""
    if not has_torch():
        raise NotHereError("the loader is PyTorch's", hint="pip install 'gpuwise[torch]'")
    import torch
    from torch.utils.data import DataLoader

    workers = int(case.parameters["workers"])
    if workers > subject.units:
        raise NotHereError(f"{workers} workers want more than the {subject.units} cores there are")
    data = Images(10**6)
    before = torch.get_num_threads()
    loader = DataLoader(data, batch_size=BATCH, num_workers=workers, prefetch_factor=2 if workers else None)  # type: ignore[arg-type]
    batches = iter(loader)
    next(batches)
    began = time.perf_counter()
    next(batches)
    count = 1 if time.perf_counter() - began > SLOW_BATCH_S else SAMPLE_BATCHES
    newest: list[tuple[Any, Any]] = []

    def sample() -> float:
        start = time.perf_counter()
        for _ in range(count):
            last = next(batches)
        seconds = (time.perf_counter() - start) / (count * BATCH)
        newest[:] = [last]
        return seconds

    def check() -> Check:
        images, numbers = newest[0]
        same = all(bool(torch.equal(images[i], data[int(numbers[i])][0])) for i in range(len(numbers)))
        return Check(same, 0.0 if same else float("inf"), f"{len(numbers)} images")

    def close() -> None:
        nonlocal batches
        batches = iter(())  # drops the loader's processes
        torch.set_num_threads(before)

    return PreparedCase(sample, 1.0, check, close, {"timed by": "host clock", "batch": BATCH})
