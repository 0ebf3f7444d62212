"""The time of a captured step as a person reads it: where it goes, and the ten operations that cost most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwise.cli.out import console, section
from gpuwise.units import format_duration

if TYPE_CHECKING:
    from rich.console import Console

    from gpuwise.predict.step.capture_time import CapturedTime

BOUND_WORDS = {
    "NOTHING": "host only",
    "TENSOR_CORE": "tensor cores",
    "CUDA_CORE": "cores",
    "BANDWIDTH": "memory",
    "LAUNCH": "kernel start",
    "HOST": "the host",
    "COMMUNICATION": "transfers",
}


def show_step_time(time: CapturedTime, to: Console | None = None) -> None:
    """Print the step's time, what bounds it, and its costliest operations."""
    out = to or console()
    e = time.step_time_s
    out.print(
        f"  {format_duration(e.expected)} a step [{format_duration(e.low)} to {format_duration(e.high)}], {e.basis}"
        f"{', compiled' if time.compiled else ''}"
    )
    out.print(f"  {time_words(time)}", style="dim")
    section(out, "The operations that cost most", _table(time, out.width))


def time_words(time: CapturedTime) -> str:
    """One line: busy share, kernels, and the two or three phases by their share."""
    total = max(time.device_total_s, 1e-30)
    phases = ", ".join(f"{name} {100 * s / total:.0f} %" for name, s in time.phase_s.items())
    late = f", waits for the host {100 * time.launch_bound_share:.0f} %" if time.launch_bound_share >= 0.005 else ""
    return f"device busy {100 * time.gpu_busy_share:.0f} %{late}; {time.kernels:,} kernels; {phases}"


def _table(time: CapturedTime, width: int) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    wide = width >= 100
    table.add_column("operation", overflow="ellipsis", no_wrap=True, max_width=30 if wide else 23)
    for name, least in (("calls", 5), ("time", 7), ("share", 6)):
        table.add_column(name, justify="right", no_wrap=True, min_width=least)
    table.add_column("bound by", no_wrap=True, min_width=12)
    table.add_column("where", overflow="ellipsis", no_wrap=True, max_width=26 if wide else 16)
    if wide:
        table.add_column("TFLOP/s", justify="right", no_wrap=True, min_width=7)
        table.add_column("shapes", overflow="ellipsis", no_wrap=True, style="dim")
    for o in time.top:
        row = [o.op, f"{o.count:,}", format_duration(o.time_s), f"{100 * o.share:.1f} %", BOUND_WORDS[o.bound.name]]
        row.append(o.module or "-")
        rate = f"{o.flop_per_s / 1e12:.3g}" if o.flop_per_s else "-"
        table.add_row(*row, *([rate, o.shapes] if wide else []))
    return table


def step_time_json(time: CapturedTime) -> dict[str, Any]:
    """What ``--json`` says of a step's time."""
    return {
        "step_time_s": time.step_time_s.as_dict(),
        "device_s": time.device_total_s,
        "host_s": time.host_total_s,
        "gpu_busy_share": time.gpu_busy_share,
        "launch_bound_share": time.launch_bound_share,
        "kernels": time.kernels,
        "flop": time.flop,
        "compiled": time.compiled,
        "by_family_s": dict(time.family_s),
        "by_phase_s": dict(time.phase_s),
        "by_bound_s": dict(time.bound_s),
        "top": [
            {
                "op": o.op,
                "family": o.family,
                "calls": o.count,
                "time_s": o.time_s,
                "share": o.share,
                "bound": o.bound.name.lower(),
                "flop_per_s": o.flop_per_s,
                "flop_per_byte": o.intensity,
                "module": o.module,
                "shapes": o.shapes,
            }
            for o in time.top
        ],
    }
