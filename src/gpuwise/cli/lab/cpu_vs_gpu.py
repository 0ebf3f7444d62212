"""``gpuwise lab cpu-vs-gpu``: one product, measured on this machine, predicted on any GPU."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from gpuwise.cli.options import Whole
from gpuwise.errors import InputError

LARGEST = 16384
"""A product of this size takes a small CPU minutes."""


def cpu_vs_gpu(
    size: Whole = 1024,
    *,
    on: Annotated[list[str] | None, Parameter(metavar="GPUS")] = None,
    against: Annotated[str | None, Parameter(metavar="CPU")] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare one matrix product: measured on this CPU, predicted on any GPU.

    Both matrices are fp32, of size x size. NumPy computes the product here (and PyTorch, on a GPU of this machine). GPUs are
    predicted as by `gpuwise op`.

    Parameters
    ----------
    size
        Side of the matrices: 1024.
    on
        A GPU to predict; several times for several (4090, A100-80GB, H100-SXM).
    against
        A CPU to predict, too: EPYC 9654, or this (the CPU of this machine, as measured by gpuwise bench).
    json
        One JSON document on the last line of stdout.
    """
    if size > LARGEST:
        raise InputError(
            f"a product of {size:,} would take minutes here", hint=f"up to {LARGEST:,}; gpuwise op matmul predicts more"
        )
    from gpuwise.machine.bench.host_threads import use_every_core

    use_every_core()  # before numpy
    from gpuwise.lab.versus import compare_product
    from gpuwise.plan.one_op import find_processor

    processor = None if against is None else find_processor(against)
    rows = compare_product(size, on or ["4090", "A100-80GB", "H100-SXM"], processor)
    if json:
        from gpuwise.cli.out import print_json

        print_json({"size": size, "flop": 2 * size**3, "rows": [r.to_document() for r in rows]})
    else:
        _show(size, rows)
    return 0


def _show(size: int, rows: Any) -> None:
    from rich.text import Text

    from gpuwise.cli.out import console, table_of
    from gpuwise.units import format_duration, format_rate

    to = console()
    flop = 2.0 * size**3
    work = f"{format_rate(flop, 'FLOP')}, {format_rate(12 * size * size, 'B')} to move"
    to.print(Text.assemble((f"fp32 product of {size:,} x {size:,}", "bold"), f": {work}"))
    table = table_of(
        ("device", "how", "time", "rate", "with copies", "faster"), left=("device", "how"), wrap=("device",), gives_way=("how",)
    )
    for r in rows:
        copies = "" if r.copy_s is None else format_duration(r.time_s + r.launch_s + r.copy_s)
        rate = format_rate(flop / r.time_s, "FLOP/s")
        table.add_row(r.device, r.basis, format_duration(r.time_s), rate, copies, f"{rows[0].time_s / r.with_copies_s:.3g}x")
    to.print(table)
    for r in rows:
        to.print(f"  {r.device}: {r.why}", style="dim")
    to.print("  faster: than the first row, launch and copies included", style="dim")
