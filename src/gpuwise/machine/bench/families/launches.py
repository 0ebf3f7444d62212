"""Time the host needs to launch one small kernel: singly, and replayed from a CUDA graph."""

from __future__ import annotations

import time

from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.prepared_case import Check, NotHereError, PreparedCase
from gpuwise.machine.bench.subjects import Subject, has_torch
from gpuwise.machine.bench.torch_timing import capture

LAUNCHES = 1000
"""Launches per sample: about as many as fit in the device's queue before the host has to wait."""


def make_launch(case: BenchCase, subject: Subject) -> PreparedCase:
    """A sample issues ``LAUNCHES`` additions of 1 to one number; the number counts them."""
    if not has_torch():
        raise NotHereError("operations are issued by PyTorch", hint="pip install 'gpuwise[torch]'")
    import torch

    x = torch.zeros(1, device=subject.torch_name)
    issued = 0
    graph = None
    if subject.kind == "cuda":
        torch.cuda.set_device(subject.index)
    if case.variant == "graph":
        device = torch.device(subject.torch_name)

        def additions() -> None:
            for _ in range(LAUNCHES):
                x.add_(1.0)

        graph = capture(torch, device, additions)
        torch.cuda.synchronize(device)
        x.zero_()

    def wait() -> None:
        if subject.kind == "cuda":
            torch.cuda.synchronize(subject.index)

    def sample() -> float:
        nonlocal issued
        wait()
        start = time.perf_counter()
        if graph is not None:
            graph.replay()
            wait()
            seconds = time.perf_counter() - start
        else:
            for _ in range(LAUNCHES):
                x.add_(1.0)
            # the host's own time: the device is still at it
            seconds = time.perf_counter() - start
            wait()
        issued += LAUNCHES
        if issued >= 2**22:
            x.zero_()
            issued = 0
        return seconds / LAUNCHES

    def check() -> Check:
        wait()
        error = abs(float(x.item()) - issued)
        return Check(error == 0.0, error, f"{issued:,} additions")

    return PreparedCase(sample, 1.0, check, conditions={"timed by": "host clock"})
