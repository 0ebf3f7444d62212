"""A task on a processor beside its simulation on a GPU, and the size from which the GPU is faster, launch and copies included.

The processor is ``predict.cpu``: cores x SIMD at their clock, caches and memory in what published measurements reach. Both
sides begin with data in memory: an array that has just been used, and that a cache holds, is read 2 to 8 times as fast. A call
of a library whose code is in no cache begins ``COLD_CALL_S`` later, on both sides; it is not in their times. A gather reads a
cache line of 64 bytes for every element, a transposition takes four times a copy. A launch is the host's time to issue a
kernel, and copies are those of ``gpuwise op``, each issued as a launch is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.lab.documents import cache_note, roofline_document
from gpuwise.lab.simulation import Simulation, simulate_task
from gpuwise.lab.tasks import HEAD, Launch, Task, launch_of
from gpuwise.lab.versus import copies_s, launch_s
from gpuwise.predict import cpu as processor

LINE_BYTES = 64
"""Cache line of a processor."""
TRANSPOSE_SHARE = 0.25
"""Share of a copy's rate that a tiled transposition reaches: a tile reads short pieces of many pages, without prefetching.
PyTorch on one core of a Xeon (Emerald Rapids): 3.0 to 3.3 of 12.3 GB/s at 2,048 to 8,192. Check, an EPYC (Zen 4) with cold
caches: 6.5 of 22 to 27 GB/s at 1,024 and 4,096."""
COLD_CALL_S = 30e-6
"""Until a library's code and tables have come from memory, before it computes or launches. PyTorch's add, product and softmax of
64 numbers on one thread of an EPYC (Zen 3), where nothing is forked: 1.5 to 4 us in a loop, 20 to 50 after 96 MB were written.
Check, 16 threads of a Xeon (Sapphire Rapids) with cold caches: smallest sizes 57 to 91 us, where this and the fork make 40."""
CROSSOVER_ISSUES = 15_000
CROSSOVER_SIZES = 4


@dataclass(frozen=True, slots=True)
class Side:
    """One size on both: seconds."""

    size: int
    cpu_s: float
    kernel_s: float
    launch_s: float
    """The host issues the kernel."""
    copy_s: float

    @property
    def gpu_s(self) -> float:
        """The data lives on the GPU."""
        return self.kernel_s + self.launch_s

    @property
    def gpu_and_copies_s(self) -> float:
        """The data comes from the CPU and goes back."""
        return self.gpu_s + self.copy_s


@dataclass(frozen=True, slots=True)
class Crossover:
    """Size from which the GPU is faster; None if it is not up to the largest size, or at every size."""

    sides: tuple[Side, ...]
    size: float | None
    size_with_copies: float | None

    def to_document(self) -> dict[str, Any]:
        rows = [
            {"size": s.size, "cpu_s": s.cpu_s, "kernel_s": s.kernel_s, "launch_s": s.launch_s, "copy_s": s.copy_s}
            for s in self.sides
        ]
        return {"sizes": rows, "crossover": self.size, "crossover_with_copies": self.size_with_copies}


def cpu_time(task: Task, launch: Launch, size: int, cpu: Cpu) -> processor.CpuTime:
    """The task as a good library does it on all cores."""
    if task.name.startswith("matmul"):
        return processor.matmul_time(cpu, "fp32", size, size, size)
    if task.name.startswith("attention"):
        return processor.attention_time(cpu, "fp32", 1, 1, size, HEAD, causal=False)
    if task.name == "chain":
        return processor.chain_time(cpu, size)
    moved = launch.copied_bytes
    if task.name == "gather":
        moved += size * (LINE_BYTES - 4)
    if task.name.startswith("transpose"):
        moved /= TRANSPOSE_SHARE
    return processor.stream_time(cpu, moved, 0.0)


def cpu_document(cpu: Cpu, time: processor.CpuTime, launch: Launch) -> dict[str, Any]:
    """The processor's side with a timeline: cores that each do their part, after the fork."""
    seconds, cores = time.time_s.expected, cpu.cores + cpu.efficiency_cores
    per_clock = None if cpu.allcore_hz is None else cpu.peak("fp32") / (cpu.allcore_hz * cores)
    fork = max(seconds - time.compute_s - time.memory_s, 0.0)
    return {
        "device": cpu.name,
        "time_s": seconds,
        "bound": time.bound if max(time.compute_s, time.memory_s) >= 0.5 * seconds else "latency",
        "cores": cores,
        "flop_per_clock_and_core": per_clock,
        "clock_hz": cpu.allcore_hz,
        "compute_s": time.compute_s,
        "memory_s": time.memory_s,
        "fork_s": fork,
        "flop": launch.flop,
        "timeline": [{"core": c, "start_s": fork, "end_s": seconds} for c in range(time.busy_cores)],
    }


def side(task: Task, launch: Launch, size: int, simulation: Simulation, a: Accelerator, cpu: Cpu) -> Side:
    """One size on both; half of the copied bytes are taken to go each way."""
    seconds = cpu_time(task, launch, size, cpu).time_s.expected
    copies = copies_s(a, launch.copied_bytes / 2, launch.copied_bytes / 2)
    return Side(size, seconds, simulation.time_s, launch_s(), copies)


def beside_document(
    task: Task, launch: Launch, size: int, simulation: Simulation, a: Accelerator, cpu: Cpu, *, with_crossover: bool
) -> dict[str, Any]:
    """A simulated task beside a CPU, with the parts of both times, the rooflines, and ``with_crossover`` the sizes around."""
    both = side(task, launch, size, simulation, a, cpu)
    units = (a.compute_units or 1) * (a.boost_hz or 1.0)
    return {
        "text": task.text,
        "size": size,
        "items": size**task.power,
        "item": task.item,
        "cpu": cpu_document(cpu, cpu_time(task, launch, size, cpu), launch),
        "flop_per_clock_and_multiprocessor": a.peak("fp32") / units,
        "first_call_s": COLD_CALL_S,
        "launch_s": both.launch_s,
        "copy_s": both.copy_s,
        "flop": launch.flop,
        "copied_bytes": launch.copied_bytes,
        "cache": cache_note(simulation, launch.copied_bytes, a),
        "crossover": crossover(task, a, cpu).to_document() if with_crossover else None,
        "roofline": roofline_document(simulation, launch.flop, a, cpu, both.cpu_s),
    }


def crossover(task: Task, a: Accelerator, cpu: Cpu) -> Crossover:
    """Sizes from small to usual on both, and where their times cross (between two sizes: on a log scale)."""
    step = task.multiple
    sizes = [max(step, int(n) // step * step) for n in np.geomspace(max(task.small // 4, step), task.usual, CROSSOVER_SIZES)]
    sides: list[Side] = []
    for n in dict.fromkeys(sizes):
        launch = launch_of(task, n)
        made = simulate_task(task, launch, a, timed_issues=CROSSOVER_ISSUES)
        sides.append(side(task, launch, n, made, a, cpu))
    bare = _crossing([(s.size, s.cpu_s / s.gpu_s) for s in sides])
    return Crossover(tuple(sides), bare, _crossing([(s.size, s.cpu_s / s.gpu_and_copies_s) for s in sides]))


def crossing_sentences(document: Mapping[str, Any]) -> list[str]:
    """Sentences from a crossover's document: the faster device by size, with the data on the GPU and with the copies."""
    made = list[str]()
    for words, name, parts in (
        ("with the data on the GPU", "crossover", ("kernel_s", "launch_s")),
        ("with the copies", "crossover_with_copies", ("kernel_s", "launch_s", "copy_s")),
    ):
        ahead = [row["cpu_s"] > sum(row[p] for p in parts) for row in document["sizes"]]
        if document[name] is not None:
            made.append(f"{words}: the GPU is faster from about {document[name]:,.0f} on")
        elif all(ahead):
            made.append(f"{words}: the GPU is faster at every size here")
        elif any(ahead):
            last = max(row["size"] for row, won in zip(document["sizes"], ahead, strict=True) if won)
            made.append(f"{words}: the GPU is faster up to about {last:,} only, where starting the CPU's threads weighs most")
        else:
            made.append(f"{words}: the CPU is faster at every size here")
    return made


def _crossing(speedups: list[tuple[int, float]]) -> float | None:
    """The size at which the GPU's speed-up passes 1."""
    for (small, before), (large, after) in itertools.pairwise(speedups):
        if before < 1 <= after:
            share = math.log(1 / before) / math.log(after / before)
            return float(small * (large / small) ** share)
    return None
