"""What the batch finder found, as a person reads it; and what makes a batch fit that did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwise.text import capital
from gpuwise.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from gpuwise.train.tune.batch.fitting import Fitting
    from gpuwise.train.tune.batch.merging import MergedBatch
    from gpuwise.train.tune.batch.sizes import Run, Sizes
    from gpuwise.train.tune.search import Result


def show_batches(out: Console, result: Result) -> None:
    """Nothing where neither was at stake."""
    if result.fitting is not None:
        show_fitting(out, result.fitting)
    if result.sizes is not None:
        show_sizes(out, result.sizes, taken="batch" in result.levers)


def show_fitting(out: Console, fitting: Fitting) -> None:
    """The levers without which the script does not run."""
    from gpuwise.cli.out import section

    section(
        out, f"The script's batch of {fitting.own} does not fit", _table(fitting.runs, fitting.own, column="samples at a time")
    )
    if fitting.part is not None:
        (_, parts), *_ = fitting.levers
        out.print(
            f"It fits in {parts} parts of {fitting.part} samples, of which one is held at a time (micro_batches = {parts}). "
            f"The batch of {fitting.own} and its gradient are held."
        )
    else:
        out.print(f"It fits with blocks that recompute: {'; '.join(fitting.notes)}.")
    if fitting.parity is not None:
        out.print(f"On batches that fit both ways: {fitting.parity.words}.")
    elif fitting.part is not None:
        out.print("Not compared: no batch of two samples fits without it.")
    out.print(f"Memory: {fitting.capacity}.")


def show_sizes(out: Console, sizes: Sizes, *, taken: bool) -> None:
    """Every size that was run, and the two that count."""
    from gpuwise.cli.out import section

    if sizes.why is not None:
        out.print()
        out.print(f"No other batch was found: {sizes.why}.")
    if not sizes.runs:
        return
    section(out, "Batches (changes the maths)", _table(sizes.runs, sizes.own, sizes.largest, sizes.chosen))
    if sizes.why is None:
        out.print(f"Largest that fits: {sizes.largest} ({sizes.ends}). Memory: {sizes.capacity}. {capital(sizes.longest)}.")
        out.print(_chosen(sizes, taken=taken))
    if sizes.blocks is not None:
        out.print(f"{capital(sizes.blocks)}.")
    if sizes.words:
        out.print(sizes.words)
    if sizes.merged is not None:
        _merged(out, sizes.merged)


def _chosen(sizes: Sizes, *, taken: bool) -> str:
    if sizes.gain is None:
        return f"Worth taking: {sizes.own}, the script's own; none that was run is faster by enough."
    more = "".join(f", {name} = {value}" for name, value in sizes.levers)
    end = "It is taken." if taken else "It is not taken; --accept-batch takes it."
    return f"Worth taking: {sizes.chosen}{more}: {sizes.gain.words} the samples a second of {sizes.own}. {end}"


def _merged(out: Console, merged: MergedBatch) -> None:
    gain = "not measured" if merged.ratio is None else f"{merged.ratio:.2f}x the samples a second, from one run each"
    out.print(
        f"Merged at the same global batch: a batch of {merged.batch} with a step every {merged.accumulation} in place of "
        f"{merged.was}: {gain}."
    )
    for line in merged.lines:
        out.print(f"  {line}", soft_wrap=True)


def _table(
    runs: Sequence[Run], batch: int, largest: int | None = None, chosen: int | None = None, column: str = "batch"
) -> RenderableType:
    from gpuwise.cli.out import table_of

    table = table_of((column, "memory", "samples a second", ""), under="")
    for run in runs:
        marks = [
            word
            for word, size in (("the script's own", batch), ("largest", largest), ("worth taking", chosen))
            if size == run.batch and (run.fits or word == "the script's own")
        ]
        marks += [*run.levers, *(() if run.fits else ("does not fit",))]
        memory = "unknown" if run.memory_bytes is None else format_bytes(run.memory_bytes)
        table.add_row(str(run.batch), memory, "" if run.rate is None or not run.fits else f"{run.rate:.4g}", ", ".join(marks))
    return table
