"""``gpuwise capacity --workload`` embed, rerank, vision, speech, image or video: passes in batches, asked and shown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpuwise.interval import P80

if TYPE_CHECKING:
    from gpuwise.serve.passes.batches import Batcher
    from gpuwise.serve.passes.capacity import PassCapacity, PassQuestion
    from gpuwise.serve.passes.kind import Model

ROWS = 12
"""Accelerators shown."""


def batcher_of(text: str | None) -> Batcher:
    """``dynamic``, ``dynamic:32``, ``dynamic:32:5ms`` or ``static:32``. Raises InputError."""
    from gpuwise.cli.options import positive_duration
    from gpuwise.errors import InputError
    from gpuwise.serve.passes.batches import AT_ONCE, Batcher

    if text is None:
        return AT_ONCE
    kind, *rest = text.split(":")
    most = int(rest[0]) if rest and rest[0].isdecimal() else None
    if kind == "static" and most is not None and len(rest) == 1:
        return Batcher(most, float("inf"))
    if kind != "dynamic" or len(rest) > 2 or (rest and most is None):
        raise InputError(
            f"--batching {text!r} cannot be read", hint="dynamic:32, dynamic:32:5ms (wait at most 5 ms), or static:32"
        )
    return Batcher(most, positive_duration(rest[1], "--batching") if len(rest) == 2 else 0.0)


def question_of(
    workload: str, slo: str | None, requests_per_s: float | None, tokens: int | None, batching: str | None, engine: str
) -> PassQuestion:
    """The options as a question. Raises InputError."""
    import datetime

    from gpuwise.serve.load.targets import parse_targets
    from gpuwise.serve.passes.capacity import PassQuestion, usual_target, version_of

    targets = (usual_target(workload),) if slo is None else parse_targets(slo)
    batcher, version = batcher_of(batching), version_of(engine, workload)
    return PassQuestion(workload, targets, datetime.date.today(), requests_per_s, tokens, batcher, version)


def capacity_passes_command(
    arch: Model,
    on: str | None,
    asked: PassQuestion,
    budget: float | None,
    price: float | None,
    provider: str | None,
    *,
    json: bool,
) -> int:
    """Answers the question; exit code 1 where nothing keeps the targets."""
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.serve.passes.capacity import capacity_of_passes

    if on is not None:
        answers = [capacity_of_passes(arch, find_cluster(on, prefer=USUAL), asked, price, provider)]
    else:
        from gpuwise.pick.capacity import rank_passes

        answers = rank_passes(arch, asked, budget)
    if json:
        from gpuwise.cli.out import print_json

        print_json({"forward": [a.document() for a in answers]})
    else:
        _show(answers, asked.workload)
    return 0 if any(a.affordable(budget) for a in answers) else 1


def _show(answers: list[PassCapacity], workload: str) -> None:
    from rich.text import Text

    from gpuwise.cli.out import console, table_of
    from gpuwise.serve.passes.speech import WINDOW_S
    from gpuwise.serve.passes.vision import tensor_bytes
    from gpuwise.units import HOUR_S, KILO, MEGA, format_duration, format_number, format_usd

    to = console()
    if not answers:
        to.print("Nothing that is rented keeps the targets.", style="bold red")
        return
    first = answers[0]
    of = "" if first.items in ("images", "videos") else f" of {first.tokens:,} tokens"
    if first.items == "windows":
        of = f" of {WINDOW_S:g} s of speech, {first.tokens:,} tokens written of each"
    to.print(Text(f"{first.arch.name}: {first.items}{of}, " + ", ".join(t.words for t in first.asked.targets), "bold"))
    to.print()
    unit, seconds, many, count = ("h", HOUR_S, "1000", 1e3) if first.items == "videos" else ("s", 1.0, "M", MEGA)
    table = table_of(
        ["GPU", f"each/{unit}", P80, "one alone", "p50", "p95", "batch", "GPUs", "$/h", f"$/{many}", f"Wh/{many}"],
        left=("GPU",),
        gives_way=(P80, "p50", f"Wh/{many}", "batch", "one alone"),
    )
    for a in answers[:ROWS]:
        p = a.point
        table.add_row(
            a.cluster.accelerator.name,
            "none" if a.each is None else f"{a.each.expected * seconds:,.4g}",
            "-" if a.each is None else f"{format_number(a.each.low * seconds)} to {format_number(a.each.high * seconds)}",
            format_duration(a.alone_s),
            *(["-"] * 3 if p is None else [_time(p.latency(50.0)), _time(p.latency(95.0)), f"{p.mean_batch:.1f}"]),
            str(a.accelerators or "-"),
            "-" if a.usd_per_hour is None else format_usd(a.usd_per_hour),
            "-" if a.usd_per_million is None else format_usd(a.usd_per_million * count / MEGA),
            "-" if a.wh_per_million is None else f"{a.wh_per_million * count / MEGA:,.1f}",
        )
    to.print(table)
    if first.point is None:
        to.print()
        to.print(f"A request alone takes {format_duration(first.alone_s)}: more GPUs do not help.")
    to.print()
    shared = " GPUs share one queue." if any(a.accelerators > 1 for a in answers[:ROWS]) else ""
    to.print(_batches(first) + "; kernels alone, without the network and the reading of files." + shared, style="dim")
    if first.pixels is not None and first.alone_over_http_s is not None:
        kilobytes = tensor_bytes(first.pixels) / KILO
        added = format_duration(first.alone_over_http_s - first.alone_s)
        to.print(
            f"A server adds {added} to an image that it is sent as a tensor of {kilobytes:,.0f} kB over HTTP, on its own host.",
            style="dim",
        )
    if workload in ("embed", "rerank"):
        to.print("`gpuwise pick --for embed` or `--for rerank` compares renting with buying.", style="dim")
    if first.cluster.assumption:
        to.print(f"Assumed: {first.cluster.assumption}.", style="dim")
    sys.stdout.flush()


def _batches(answer: PassCapacity) -> str:
    """How batches form, in words."""
    from gpuwise.units import format_duration

    most, delay = answer.times.sizes[-1], answer.asked.batcher.delay_s
    if answer.times.sizes == (1,):
        return f"{answer.items.capitalize()} are made one after the other"
    if delay == float("inf"):
        return f"Batches of {most} wait until they are full"
    held = f", waiting at most {format_duration(delay)} to fill" if delay else ""
    return f"Batches of up to {most} form while the one before runs{held}"


def _time(seconds: float | None) -> str:
    from gpuwise.units import format_duration

    return "-" if seconds is None else format_duration(seconds)
