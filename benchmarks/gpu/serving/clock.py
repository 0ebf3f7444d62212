"""A run again and again for about a second: its time, the clock and the watts meanwhile, and what the power limit leaves of large
products."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from timing import Rows, attempt, device, wall_s

HELD_S = 0.8
IDLE_S = 0.25
"""Before each, so that its first runs begin at a cool clock."""
EVERY_S = 0.005
AHEAD = 3
"""Runs queued at most."""
POWER_INSTANT = 186
"""NVML_FI_DEV_POWER_INSTANT, milliwatts; the plain reading is a mean of the last second."""
PRODUCTS = (
    ("bf16", 8192, 8192, 8192),
    ("bf16", 2048, 24576, 4096),
    ("fp8", 8192, 8192, 8192),
    ("bf16", 512, 24576, 4096),
    ("bf16", 4096, 4096, 4096),
    ("bf16", 8192, 4096, 12288),
    ("tf32", 8192, 8192, 8192),
)
"""Format, rows, columns, depth."""
COPIED_BYTES = 2 << 30


class Watch:
    """Clock and watts of the GPU, read by a thread of its own between ``begin`` and ``end``."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float, float]] = []
        self.stopped = threading.Event()
        self.thread: threading.Thread | None = None

    def begin(self) -> None:
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            self.gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
            self.nvml = pynvml
            self.joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(self.gpu) / 1000.0
            self.began = time.perf_counter()
            self.thread = threading.Thread(target=self._read, daemon=True)
            self.thread.start()

    def _read(self) -> None:
        nvml = self.nvml
        while not self.stopped.is_set():
            with contextlib.suppress(Exception):
                mhz = float(nvml.nvmlDeviceGetClockInfo(self.gpu, nvml.NVML_CLOCK_SM))
                self.samples.append((time.perf_counter(), mhz, self._watts()))
            self.stopped.wait(EVERY_S)

    def _watts(self) -> float:
        value = self.nvml.nvmlDeviceGetFieldValues(self.gpu, [POWER_INSTANT])[0]
        return float(value.value.uiVal) / 1000.0

    def end(self) -> dict[str, float]:
        """Of the second half: the median clock and mean watts; of all of it the watts of the counter of joules."""
        if self.thread is None:
            return {}
        self.stopped.set()
        self.thread.join()
        found: dict[str, float] = {}
        with contextlib.suppress(Exception):
            used = self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.gpu) / 1000.0 - self.joules
            found["counter_w"] = used / (time.perf_counter() - self.began)
            found["limit_w"] = self.nvml.nvmlDeviceGetEnforcedPowerLimit(self.gpu) / 1000.0
        if self.samples:
            half = self.samples[len(self.samples) // 2 :]
            found |= {"mhz": statistics.median(s[1] for s in half), "watts": statistics.fmean(s[2] for s in half)}
            found |= {"least_mhz": min(s[1] for s in self.samples), "most_w": max(s[2] for s in self.samples)}
        return found


def held(run: Callable[[], Any], seconds: float = HELD_S, idle_s: float = IDLE_S) -> dict[str, Any]:
    """``run`` after rest and then for ``seconds``, one after the other: seconds of the first eight, of the second half
    (``held_s``), and of every tenth part with clock and watts."""
    import torch

    if not torch.cuda.is_available():
        return {"held_s": wall_s(run, 1, 0.0)}
    run()
    torch.cuda.synchronize()
    time.sleep(idle_s)
    watch = Watch()
    watch.begin()
    events = [torch.cuda.Event(enable_timing=True)]
    began = time.perf_counter()
    events[0].record()
    while time.perf_counter() - began < seconds or len(events) < 5:
        run()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        if len(events) > AHEAD:
            events[-AHEAD].synchronize()
    torch.cuda.synchronize()
    about = watch.end()
    each = [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]
    parts: list[list[float]] = []
    wide = sum(each) / 10.0
    at, part, bound = 0.0, [], wide
    for one in each:
        at += one
        part.append(one)
        if at >= bound - 1e-9:
            near = [s for s in watch.samples if began + bound - wide <= s[0] < began + at]
            now = [statistics.fmean(s[i] for s in near) for i in (1, 2)] if near else [math.nan, math.nan]
            parts.append([round(at, 4), statistics.median(part), *(round(x, 1) if math.isfinite(x) else -1.0 for x in now)])
            part, bound = [], at + wide
    return {
        "held_s": statistics.median(each[len(each) // 2 :]),
        "least_s": min(each),
        "runs": len(each),
        "first_s": each[:8],
        **about,
        "parts": parts,
    }


def paced(run: Callable[[], Any], seconds: float = HELD_S) -> dict[str, Any]:
    """``run`` awaited, then rest for as long as it took: the median of the second half."""
    import torch

    if not torch.cuda.is_available():
        return {}
    watch = Watch()
    watch.begin()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 4:
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
        time.sleep(found[-1])
    return {"paced_s": statistics.median(found[len(found) // 2 :]), **{f"paced_{k}": v for k, v in watch.end().items()}}


def product_name(dtype: str, m: int, n: int, k: int) -> str:
    return f"product {dtype} {m} x {n} x {k}"


def predict_clock(accelerator: Any) -> dict[str, Any]:
    """Of every product: seconds in a step and in a burst, clock over boost and watts."""
    from gpuwise.predict.kernels.clock import mean_power_w, sustained_fraction, work_energy_j
    from gpuwise.predict.kernels.conditions import SERVING, STEP
    from gpuwise.predict.kernels.single import matmul, stream

    found: dict[str, Any] = {}

    def add(name: str, dtype: str, flop: float, moved: float, step_s: float, burst_s: float) -> None:
        energy = work_energy_j(accelerator, [dtype], [flop], [moved], [step_s])
        watts = None if energy is None else mean_power_w(accelerator, float(energy[0]), step_s)
        busy = flop / accelerator.peak(dtype) / burst_s
        found[name] = {"step_s": step_s, "burst_s": burst_s, "watts": watts.expected if watts else None}
        found[name]["clock"] = float(sustained_fraction(accelerator, busy, dtype))

    for dtype, m, n, k in PRODUCTS:
        step, burst = (float(matmul(accelerator, dtype, m, n, k, conditions=c).time_s[0]) for c in (STEP, SERVING))
        width = {"fp8": 1, "tf32": 4}.get(dtype, 2)
        moved = (m * k + n * k) * width + m * n * (4 if dtype == "tf32" else 2)
        add(product_name(dtype, m, n, k), dtype, 2.0 * m * n * k, moved, step, burst)
    copied = float(stream(accelerator, COPIED_BYTES, COPIED_BYTES).time_s[0])
    add("copy of 2 GiB", "bf16", 0.0, 2.0 * COPIED_BYTES, copied, copied)
    return found


def measure_clock(rows: Rows) -> None:
    """Large products and a copy, each for a while."""
    import torch

    where = device()
    size = 64 if rows.tiny else 1

    def operands(m: int, n: int, k: int, dtype: Any) -> tuple[Any, Any]:
        return torch.randn(m, k, device=where).to(dtype), torch.randn(n, k, device=where).to(dtype)

    def product(dtype: str, m: int, n: int, k: int, *, zeros: bool = False) -> Callable[[], Any]:
        m, n, k = (max(x // size, 16) for x in (m, n, k))
        kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp8": torch.float8_e4m3fn}
        a, b = operands(m, n, k, kinds[dtype])
        if zeros:
            a, b = torch.zeros_like(a), torch.zeros_like(b)
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        one = torch.ones((), device=where)
        again = max(round(4e-3 * 5e14 / (2.0 * m * n * k)), 1) if where == "cuda" else 1

        def run() -> None:
            for _ in range(again):
                if dtype == "fp8":
                    torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
                else:
                    a @ b.t()

        run.again = again  # type: ignore[attr-defined]
        return run

    def timed(run: Callable[[], Any]) -> dict[str, Any]:
        again = getattr(run, "again", 1)
        found = held(run)
        return found | {"again": again, "each_s": found["held_s"] / again}

    for shape in PRODUCTS:
        attempt(rows, product_name(*shape), lambda shape=shape: timed(product(*shape)))
        if shape == PRODUCTS[0]:
            zeros = product_name(*shape) + " of zeros"
            attempt(rows, zeros, lambda shape=shape: timed(product(*shape, zeros=True)), product_name(*shape))

    def copy() -> Callable[[], Any]:
        source = torch.randn((COPIED_BYTES >> (16 if rows.tiny else 0)) // 4, device=where)
        into = torch.empty_like(source)
        return lambda: into.copy_(source)

    attempt(rows, "copy of 2 GiB", lambda: timed(copy()))
