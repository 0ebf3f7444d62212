"""Single operations of PyTorch: predicted from the captured operation, measured by events.

``cold``: the L2 is overwritten before each call, as ``gpuwise op`` takes it for a
training step. ``hot``: ten calls in a row. A spin kernel ahead of the first event lets the host run ahead, so that launches
cost nothing.
"""

from __future__ import annotations

import time
from typing import Any

import card_operations
from card_operations import OPERATIONS, Call, randn
from card_rows import GPU, Rows, spread
from card_shapes import SHAPES

REPEATS, IN_A_ROW = 15, 10
FLUSH_BYTES = 256 << 20
SPIN_CYCLES, LONG_SPIN_CYCLES = 2_000_000, 30_000_000
SUSTAINED = ("gemm-bf16-8192", "gemm-bf16-4096", "attention-prefill-4x32x8x4096")
SUSTAINED_S = 0.6


ALL = OPERATIONS | SHAPES
"""What is predicted; the first were measured before the second were chosen."""


# --- predictions ---


def predict(name: str) -> dict[str, Any]:
    """Device seconds of one operation on the card, as own code is timed: of a training step, and of a burst with a warm L2."""
    import numpy as np

    from gpuwise import capture
    from gpuwise.facts.hardware.naming import USUAL, find_accelerator
    from gpuwise.predict.kernels.conditions import Conditions
    from gpuwise.predict.kernels.registry import kernel_times
    from gpuwise.predict.step.capture_time import signature_times, step_rows

    card = find_accelerator(GPU, prefer=USUAL)
    captured = capture(
        ALL[name],
        optimizer=None,
        train=False,
        capability=(9, 0),
        device_name="NVIDIA H100 80GB HBM3",
        total_memory_bytes=int(card.memory_bytes),
    )
    span = captured.steps[-1]
    times = signature_times(captured, card)
    of_each = captured.op_signature[span.first_op : span.end_op]
    used, count = np.unique(of_each, return_counts=True)
    hot = kernel_times(step_rows(captured), card, Conditions(cold=False, sustained=False, emulated=True)).time_s
    names = [captured.signatures[int(i)].op for i in used.tolist()]
    return {
        "predicted_s": float((times.time_s[used] * count).sum()),
        "predicted_hot_s": float((hot * count).sum()),
        "basis": times.basis,
        "log_sigma": float(np.average(times.log_sigma[used], weights=np.maximum(times.time_s[used] * count, 1e-12))),
        "operations": {n: int(c) for n, c in zip(names, count.tolist(), strict=True)},
    }


# --- measurement ---


class Timing:
    """Seconds of calls between two events on the card; on a processor, of the wall clock."""

    def __init__(self) -> None:
        import torch

        self.torch, self.real = torch, card_operations.DEVICE == "cuda"
        self.flushed = torch.empty(FLUSH_BYTES if self.real else 1024, dtype=torch.int8, device=card_operations.DEVICE)

    def seconds(self, call: Call, times: int, *, cold: bool, spin: int) -> float:
        if not self.real:
            began = time.perf_counter()
            for _ in range(times):
                call()
            return (time.perf_counter() - began) / times
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(spin)
        if cold:
            self.flushed.zero_()
        first.record()
        for _ in range(times):
            call()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e-3 / times

    def wait(self) -> None:
        if self.real:
            self.torch.cuda.synchronize()


def measure(name: str, timing: Timing) -> dict[str, Any]:
    """Medians of the real operation."""
    import torch

    torch.manual_seed(1)
    call = ALL[name]()
    spin = LONG_SPIN_CYCLES if name.startswith("adamw") else SPIN_CYCLES
    for _ in range(3):
        call()
    timing.wait()
    cold = [timing.seconds(call, 1, cold=True, spin=spin) for _ in range(REPEATS)]
    hot = [timing.seconds(call, IN_A_ROW, cold=False, spin=spin) for _ in range(3)]
    found: dict[str, Any] = {"cold": spread(cold), "hot": spread(hot)}
    if name in SUSTAINED:
        found["sustained_s"] = _sustained(call, timing)
    return found


def _sustained(call: Call, timing: Timing) -> float:
    """Seconds a call in a run of ``SUSTAINED_S``: its second half, at the clock it has settled at by then."""
    halves: list[float] = []
    for _ in range(2):
        began, n = time.perf_counter(), 0
        while time.perf_counter() - began < SUSTAINED_S / 2:
            for _ in range(20):
                call()
            timing.wait()
            n += 20
        halves.append((time.perf_counter() - began) / n)
    return halves[-1]


def _kernel_names(call: Call) -> list[str]:
    """Kernels of one call with their microseconds, by the profiler of torch."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return [f"{e.device_time_total:.2f} us x{e.count} {e.key[:100]}" for e in seen.key_averages()][:10]


def truths(timing: Timing, rows: Rows) -> None:
    """Three figures of ``gpuwise bench`` measured without it, under the same keys."""
    import torch

    def product() -> dict[str, Any]:
        n = 8192 // card_operations.SHRINK
        a, b = randn(n, n), randn(n, n)
        torch.matmul(a, b)
        taken = [timing.seconds(lambda: torch.matmul(a, b), 1, cold=False, spin=SPIN_CYCLES) for _ in range(15)]
        long = _sustained(lambda: torch.matmul(a, b), timing)
        rate = 2.0 * n**3
        return {"value": rate / spread(taken)["median_s"], "sustained_value": rate / long, "unit": "FLOP/s", **spread(taken)}

    def copy() -> dict[str, Any]:
        a = torch.ones((1 << 30) // card_operations.SHRINK, dtype=torch.int8, device=card_operations.DEVICE)
        b = torch.empty_like(a)
        b.copy_(a)
        taken = [timing.seconds(lambda: b.copy_(a), 1, cold=False, spin=SPIN_CYCLES) for _ in range(15)]
        return {"value": 2 * a.numel() / spread(taken)["median_s"], "unit": "B/s", **spread(taken)}

    def to_device(pinned: bool) -> dict[str, Any]:
        a = torch.ones((256 << 20) // card_operations.SHRINK, dtype=torch.int8)
        a = a.pin_memory() if pinned and timing.real else a
        b = torch.empty_like(a, device=card_operations.DEVICE)
        b.copy_(a)
        taken = list[float]()
        for _ in range(10):
            timing.wait()
            began = time.perf_counter()
            b.copy_(a, non_blocking=True)
            timing.wait()
            taken.append(time.perf_counter() - began)
        return {"value": a.numel() / spread(taken)["median_s"], "unit": "B/s", **spread(taken)}

    rows.run("truth/matmul-bf16-8192x8192x8192", product)
    rows.run("truth/memory-copy-1024MiB", copy)
    rows.run("truth/copy-h2d-pinned-256MiB", lambda: to_device(True))
    rows.run("truth/copy-h2d-pageable-256MiB", lambda: to_device(False))


def main(rows: Rows, predictions: dict[str, Any], *, further: bool = False) -> None:
    """The operations, then the truths of the bench; ``further``: the further shapes instead of both."""
    import torch

    timing = Timing()

    def floor() -> dict[str, Any]:
        x = torch.zeros(32, device=card_operations.DEVICE)
        x.add_(1)
        taken = [timing.seconds(lambda: x.add_(1), 1, cold=True, spin=SPIN_CYCLES) for _ in range(REPEATS)]
        return {"cold": spread(taken), "torch": torch.__version__, "device": _device_name()}

    rows.run("kernels/event-floor", floor)
    ordered = sorted(SHAPES if further else OPERATIONS, key=lambda n: n.split("-")[0] in ("adamw", "max"))
    for name in ordered:
        predicted = predictions.get(f"kernels/{name}", {})

        def one(name: str = name, predicted: dict[str, Any] = predicted) -> dict[str, Any]:
            found = measure(name, timing)
            if predicted.get("predicted_s"):
                found["over_measured"] = predicted["predicted_s"] / float(found["cold"]["median_s"])
            return {**predicted, **found}

        if rows.left_s() < 6.0:
            rows.write(f"kernels/{name}", skipped="no time left")
            continue
        rows.run(f"kernels/{name}", one, 12.0 if name.startswith("adamw") else 6.0)  # torch's optimizers import its compiler
        if timing.real:
            torch.cuda.empty_cache()
    if not further:
        truths(timing, rows)
    for name in ordered if timing.real else []:  # last: the profiler must not be there while others are timed
        if rows.left_s() > 3.0:
            rows.run(f"names/{name}", lambda name=name: {"kernels": _kernel_names(ALL[name]())}, 3.0)
            torch.cuda.empty_cache()


def _device_name() -> str:
    import torch

    return torch.cuda.get_device_name(0) if card_operations.DEVICE == "cuda" else "cpu"
