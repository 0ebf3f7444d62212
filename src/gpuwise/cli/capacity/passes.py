"""``gpuwise capacity --workload`` embed, rerank, vision, speech, image or video: passes in batches, asked and answered."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwise.cli.shown import Shown
    from gpuwise.serve.passes.batches import Batcher
    from gpuwise.serve.passes.capacity import PassCapacity, PassQuestion
    from gpuwise.serve.passes.kind import Model


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


def size_of(text: str) -> tuple[int, int]:
    """Width and height: ``1344x768``, or one side of a square. Raises InputError."""
    from gpuwise.errors import InputError

    sides = text.lower().split("x")
    if len(sides) not in (1, 2) or not all(side.strip().isdecimal() for side in sides):
        raise InputError(f"--resolution {text!r} cannot be read", hint="width x height: 1344x768")
    return int(sides[0]), int(sides[-1])


def question_of(
    workload: str,
    slo: str | None,
    requests_per_s: float | None,
    tokens: int | None,
    batching: str | None,
    engine: str,
    steps: int | None = None,
    resolution: str | None = None,
    frames: int | None = None,
    offload: str | None = None,
) -> PassQuestion:
    """The options as a question. Raises InputError."""
    import datetime

    from gpuwise.serve.load.targets import parse_targets
    from gpuwise.serve.passes.capacity import PassQuestion, usual_target
    from gpuwise.serve.passes.kind import How

    batcher = batcher_of(batching)
    whole = workload in ("speech", "embed", "rerank") and math.isinf(batcher.delay_s)  # all are there: none waits for others
    targets = parse_targets(slo) if slo is not None else () if whole else (usual_target(workload),)
    program, _, version = engine.partition("@")
    size = None if resolution is None else size_of(resolution)
    how = How(program, version or None, steps, size, frames, offload or "")
    return PassQuestion(workload, targets, datetime.date.today(), requests_per_s, tokens, batcher, how)


def capacity_passes_command(
    arch: Model,
    on: str | None,
    asked: PassQuestion,
    budget: float | None,
    price: float | None,
    provider: str | None,
    shown: Shown | None,
    *,
    json: bool,
    html: Path | None = None,
) -> int:
    """Answers the question; exit code 1 where nothing keeps the targets."""
    from gpuwise.cli.reports import report
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.report.answers.passes import passes_answer
    from gpuwise.serve.passes.capacity import capacity_of_passes

    if on is not None:
        answers = [capacity_of_passes(arch, find_cluster(on, prefer=USUAL), asked, price, provider)]
    else:
        from gpuwise.pick.capacity import rank_passes

        answers = rank_passes(arch, asked, budget)
    notes = list(_notes(answers))
    document = {"forward": [a.document() for a in answers]}
    report(document, lambda made: passes_answer(made, arch.name, notes), shown, json=json, html=html)
    return 0 if any(a.affordable(budget) for a in answers) else 1


def _notes(answers: list[PassCapacity]) -> Iterator[str]:
    """How batches form, and what is not counted."""
    from gpuwise.serve.passes.speech import WINDOW_S
    from gpuwise.serve.passes.vision import tensor_bytes
    from gpuwise.units import KILO, format_duration

    if not answers:
        return
    first = answers[0]
    if first.cluster.assumption:
        yield first.cluster.assumption
    most, delay = first.times.sizes[-1], first.asked.batcher.delay_s
    if first.times.sizes == (1,):
        yield f"{first.items} are {'written down' if first.items == 'windows' else 'made'} one after the other"
    elif delay == float("inf"):
        yield f"batches of {most} wait until they are full"
    else:
        waiting = f", waiting at most {format_duration(delay)} to fill" if delay else ""
        yield f"batches of up to {most} form while the one before runs{waiting}"
    if any(a.accelerators > 1 for a in answers):
        yield "GPUs share one queue"
    if first.items == "windows":
        yield f"a window has {WINDOW_S:g} s of speech"
        yield "without start-up and the network; the host's part as of a machine of the accelerator's year"
    else:
        yield "kernels alone, without the network and the reading of files"
    if first.pixels is not None:
        yield f"over HTTP: an image is a tensor of {tensor_bytes(first.pixels) / KILO:,.0f} kB, sent on the server's own host"
