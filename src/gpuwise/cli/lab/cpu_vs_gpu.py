"""``gpuwise lab cpu-vs-gpu``: one product, measured on this machine, predicted on any GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.options import Whole
from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
else:
    Shown = options_shown("lab cpu-vs-gpu")

LARGEST = 16384
"""A product of this size takes a small CPU minutes."""


def cpu_vs_gpu(
    size: Whole = 1024,
    *,
    on: Annotated[list[str] | None, Parameter(metavar="GPUS")] = None,
    against: Annotated[str | None, Parameter(metavar="CPU")] = None,
    shown: Shown | None = None,
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
    from gpuwise.facts.hardware.targets import find_processor
    from gpuwise.lab.versus import compare_product

    processor = None if against is None else find_processor(against)
    rows = compare_product(size, on or ["4090", "A100-80GB", "H100-SXM"], processor)
    from gpuwise.report.answers.lessons import versus_answer

    report({"size": size, "flop": 2 * size**3, "rows": [r.to_document() for r in rows]}, versus_answer, shown, json=json)
    return 0
