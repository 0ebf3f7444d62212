"""Answers of the lab as plain values: an occupancy with its chart, a task on a GPU beside a CPU with both rooflines."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.lab.residency import Occupancy, changes, naive_blocks, occupancy_chart
from gpuwise.units import MIB, format_rate

if TYPE_CHECKING:
    from gpuwise.lab.kernel_files import KernelUse
    from gpuwise.lab.simulation import Simulation

CHART_BLOCKS = (32, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024)
CHART_REGISTERS = (16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 168, 255)


def occupancy_document(o: Occupancy, device: str, use: KernelUse | None = None, *, chart: bool = False) -> dict[str, Any]:
    """Every field, what limits it, what to change, and with ``chart`` the share of warps by registers (rows) and block size."""
    fields = {name: None if value == math.inf else value for name, value in asdict(o).items()}
    drawn = None
    if chart:
        drawn = {
            "blocks": list(CHART_BLOCKS),
            "registers": list(CHART_REGISTERS),
            "occupancy": [list(row) for row in occupancy_chart(o, CHART_BLOCKS, CHART_REGISTERS)],
        }
    return {
        "device": device,
        **fields,
        "warps_per_block": o.warps_per_block,
        "active_warps": o.active_warps,
        "max_warps": o.max_warps,
        "occupancy": o.occupancy,
        "binding": list(o.binding),
        "naive_blocks": naive_blocks(o),
        "changes": [asdict(c) for c in changes(o)],
        "kernel": None if use is None else asdict(use),
        "chart": drawn,
    }


def cache_note(made: Simulation, moved_bytes: float, a: Accelerator) -> str | None:
    """Reason why a task's rate may be above that of memory: the part of its data in the last-level cache; None if it is not."""
    rate = moved_bytes / made.time_s
    if rate <= a.memory_bandwidth_bytes_per_s or not a.l2_bytes:
        return None
    most, moved, crossing = a.memory_bandwidth_bytes_per_s, moved_bytes, dram_bytes(made)
    reached, specified, below = (format_rate(r, "B/s") for r in (rate, most, crossing / made.time_s))
    return (
        f"{reached} is above the {specified} of memory: {format_rate(crossing, 'B')} of {format_rate(moved, 'B')} cross it,"
        f" at {below}; what is written last stays in the {a.l2_bytes / MIB:.3g} MiB L2 cache"
    )


def dram_bytes(made: Simulation) -> float:
    """Bytes that a simulated launch takes from memory and writes to it."""
    return made.counters["dram_bytes"] * made.blocks / made.blocks_timed


def roofline_document(made: Simulation, flop: float, a: Accelerator, cpu: Cpu, cpu_s: float) -> dict[str, Any] | None:
    """Position of a task in the rooflines of a GPU and a CPU: ``min(peak, bandwidth x flop / bytes)`` (Williams, Waterman and
    Patterson 2009). Bytes are the simulated kernel's traffic from the GPU's memory; None for a task without arithmetic."""
    peak, moved = a.peak_flop_per_s.get("fp32"), dram_bytes(made)
    if not flop or not moved or peak is None:
        return None
    intensity = flop / moved
    devices = (
        (a.name, peak, a.memory_bandwidth_bytes_per_s, made.time_s),
        (cpu.name, cpu.peak("fp32"), cpu.memory_bandwidth_bytes_per_s, cpu_s),
    )
    return {
        "flop": flop,
        "dram_bytes": moved,
        "flop_per_byte": intensity,
        "devices": [
            {
                "device": name,
                "peak_flop_per_s": top,
                "memory_bytes_per_s": bandwidth,
                "ridge_flop_per_byte": top / bandwidth,
                "roof_flop_per_s": min(top, bandwidth * intensity),
                "flop_per_s": flop / seconds,
            }
            for name, top, bandwidth, seconds in devices
        ],
    }
