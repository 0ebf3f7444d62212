"""Why a plan is what it is, in sentences made from numbers: the bottleneck, what each change would do, the
runner-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwise.text import capital
from gpuwise.units import SMALL, format_bytes, percent, probability, speed_words
from gpuwise.workload.optimizer import on_host

if TYPE_CHECKING:
    from gpuwise.plan.changes.neighbours import Neighbour
    from gpuwise.predict.step.training import TrainingEstimate
    from gpuwise.workload.strategy import Strategy

CURES: dict[str, str] = {
    "matmul": "the arithmetic itself: a faster format or more accelerators shorten it",
    "attention": "grows with the square of the sequence: shorter or packed sequences shorten it",
    "other kernels": "memory bandwidth: fused kernels shorten it",
    "recompute": "memory buys it back: more sharding or more accelerators let activations stay",
    "communication": "less tensor, context or expert parallelism, or faster links shorten it",
    "host launch": "the host is slow for such small kernels: a larger micro-batch or compilation shorten it",
    "pipeline bubble": "more micro-batches a step, virtual stages or fewer pipeline stages shorten it",
    "data parallel": "a larger batch a step or a faster network shorten it",
    "optimizer": "more sharding or a larger batch a step shorten it",
    "offload": "the host link: keeping states on the device removes it",
    "framework": "per-step overheads of the software: a larger batch a step shortens it",
}
"""Advice for each part of a step when it dominates."""
UNSEEN = 0.0005
"""Shares below this are printed as 0.0 %."""


def reasons(
    best: TrainingEstimate,
    neighbours: Sequence[Neighbour],
    runner_up: TrainingEstimate | None,
    bottleneck: tuple[str, float],
) -> tuple[str, ...]:
    """Sentences, most important first; ``bottleneck`` is the largest part of the step that the plan shows, and its share."""
    name, share = bottleneck
    sentences = [f"Bottleneck: {name}, {percent(share)} of the step; {CURES[name]}."]
    blocked = _blocked(best, neighbours)
    sentences += [f"{capital(n.name)} would be {speed_words(n.slower)} but {why}." for n, why in blocked]
    sentences += _chosen(best, [n for n in neighbours if n not in [b for b, _ in blocked]])
    if runner_up is not None:
        slower = runner_up.step_time_s.expected / best.step_time_s.expected - 1
        words = speed_words(slower, least=UNSEEN).replace("same", "as fast")
        why = "" if slower > -UNSEEN else f" but fits with {probability(runner_up.fit_probability)}"
        sentences.append(f"The next-best layout ({layout(runner_up.strategy)}) is {words}{why}.")
    return tuple(sentences)


def _blocked(best: TrainingEstimate, neighbours: Sequence[Neighbour]) -> list[tuple[Neighbour, str]]:
    """Faster strategies that do not fit, or fit less surely, and the reason they are not chosen."""
    faster = sorted((n for n in neighbours if (n.slower or 0.0) < -SMALL), key=lambda n: n.slower or 0.0)
    found: list[tuple[Neighbour, str]] = []
    for n in faster:
        e = n.estimate
        if not e.fits:
            why = shortage(e)
        elif e.fit_probability < best.fit_probability - SMALL:
            why = f"fits with {probability(e.fit_probability)}"
        else:
            continue
        found.append((n, why))
    return found[:2]


def shortage(e: TrainingEstimate) -> str:
    """Which memory is too small for ``e``, which does not fit: ``takes 43.5 GiB of 23.5 GiB``, or what of the host's where the
    device's suffices."""
    taken = max(e.memory_bytes.expected, e.needed_bytes.expected)
    if e.host_bytes > e.host_limit_bytes and taken <= e.device_bytes:
        return f"needs {format_bytes(e.host_bytes)} of the {format_bytes(e.host_limit_bytes)} a host can give"
    return f"takes {format_bytes(taken)} of {format_bytes(e.device_bytes)}"


def _chosen(best: TrainingEstimate, neighbours: Sequence[Neighbour]) -> list[str]:
    """Time that each chosen value saves compared with its nearest alternative."""
    sentences: list[str] = []
    for change, current in _choices(best.strategy):
        alternatives = [n for n in neighbours if n.changes[0].name == change]
        fitting = [n for n in alternatives if n.fits and (n.slower or 0.0) > SMALL]
        if fitting:
            n = min(fitting, key=lambda n: n.slower or 0.0)
            sentences.append(f"{capital(current)}: {n.name} would be {speed_words(n.slower)}.")
        elif alternatives and not any(n.fits for n in alternatives):
            n = min(alternatives, key=lambda n: n.estimate.memory_bytes.expected)
            sentences.append(f"{capital(current)}: {n.name} does not fit, it {shortage(n.estimate)}.")
    return sentences


def _choices(s: Strategy) -> list[tuple[str, str]]:
    """(change, its current value in words), in the order a person would ask."""
    choices = [
        ("tensor_parallel", f"tensor parallel {s.tp}"),
        ("pipeline_parallel", f"pipeline parallel {s.pp}"),
        ("context_parallel", f"context parallel {s.cp}"),
        ("micro_batches", f"micro-batch {s.micro_batch}"),
        ("checkpointing", f"{s.recompute} recompute" if s.recompute != "none" else "no recompute"),
        ("sharding", f"{s.sharding} sharding" if s.sharding != "none" else "no sharding"),
    ]
    if s.pp > 1:
        choices.append(("virtual_stages", f"{s.schedule} schedule"))
    return choices


def layout(s: Strategy) -> str:
    """``tp 4 x pp 2 x dp 8, micro-batch 2, zero1, selective recompute``."""
    degrees = [f"{name} {getattr(s, name)}" for name in ("tp", "pp", "cp", "ep", "dp") if getattr(s, name) > 1]
    parts = [" x ".join(degrees) or "one device", f"micro-batch {s.micro_batch}"]
    if s.virtual_stages > 1:
        parts.append(f"{s.virtual_stages} virtual stages")
    if s.sharding != "none":
        parts.append(s.sharding)
    if s.recompute != "none":
        parts.append(f"{s.recompute} recompute" + (f" of 1 in {s.recompute_every}" if s.recompute_every > 1 else ""))
    parts += [f"{what.removesuffix('s')} offload" for what in on_host(s)]
    return ", ".join(parts)
