"""All rules of the profiler, one a line, with the devices they apply to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpuwise.train.profile.finding import OF_GAPS, Finding
from gpuwise.train.profile.findings import data, heat, host, kernels, memory, parallel, precision, side_work
from gpuwise.train.profile.profile_data import ProfileData

LEAST_SHARE = 0.02
"""Minimum share of the step for a finding to be shown. Rule of this project."""


OF_KERNELS = ("no mixed precision", "fp32 without TF32", "odd sizes")
"""Findings that shorten kernels without reducing the number of launches."""


@dataclass(frozen=True, slots=True)
class Rule:
    """``devices`` are those on which it can be true."""

    find: Callable[[ProfileData], Finding | None]
    devices: tuple[str, ...]


BOTH, GPU, CPU = ("cpu", "gpu"), ("gpu",), ("cpu",)
RULES = (
    Rule(data.waiting, BOTH),
    Rule(data.padding, BOTH),
    Rule(data.tiny_batch, BOTH),
    Rule(data.unpinned, GPU),
    Rule(data.unoverlapped, GPU),
    Rule(host.saving, BOTH),
    Rule(host.logging, BOTH),
    Rule(host.own_python, BOTH),
    Rule(host.recompiles, BOTH),
    Rule(host.anomaly, BOTH),
    Rule(host.syncs, GPU),
    Rule(host.launch_bound, GPU),
    Rule(host.small_operations, CPU),
    Rule(precision.double_precision, BOTH),
    Rule(precision.no_tf32, GPU),
    Rule(precision.no_mixed_precision, GPU),
    Rule(precision.odd_sizes, GPU),
    Rule(precision.nchw, GPU),
    Rule(kernels.unfused_optimizer, BOTH),
    Rule(kernels.zeroed_gradients, BOTH),
    Rule(kernels.pointwise_chains, BOTH),
    Rule(kernels.slow_attention, BOTH),
    Rule(side_work.evaluation, BOTH),
    Rule(side_work.parameter_loop, BOTH),
    Rule(side_work.pauses, BOTH),
    Rule(parallel.ddp_every_micro_batch, BOTH),
    Rule(parallel.fsdp_every_micro_batch, BOTH),
    Rule(parallel.unoverlapped, GPU),
    Rule(parallel.straggler, BOTH),
    Rule(memory.thrash, GPU),
    Rule(memory.recompute, BOTH),
    Rule(heat.heat, GPU),
    Rule(heat.power, GPU),
)


def find_wastes(profile: ProfileData) -> tuple[Finding, ...]:
    """The findings that save at least ``LEAST_SHARE`` of the step, largest first. They overlap: do not add them. None saves
    more than the time of its evidence. If the device waits for the host, shorter kernels with the same number of launches save
    only in the share of the step without waiting, and otherwise at most until the host is the limit."""
    found = [f for rule in RULES if profile.split.device in rule.devices and (f := rule.find(profile)) is not None]
    within = [replace(f, saved_s=min(f.saved_s, profile.wall_s, _evident_s(f))) for f in found]
    if profile.on_gpu:
        busy = profile.split.busy_share if profile.is_launch_bound else 1.0
        most_s = math.inf if profile.is_launch_bound else max(profile.wall_s - profile.issuing_s, 0.0)
        within = [replace(f, saved_s=min(f.saved_s * busy, most_s)) if f.kind in OF_KERNELS else f for f in within]
    worth = [f for f in within if f.saved_s >= LEAST_SHARE * profile.wall_s]
    return tuple(sorted(worth, key=lambda f: -rank_s(f, worth)))


def rank_s(finding: Finding, found: Sequence[Finding]) -> float:
    """Savings; a small batch ranks before the gaps that it causes, since a larger one removes all but an eighth of them."""
    gaps = [f.saved_s for f in found if f.kind in OF_GAPS and finding.saved_s >= 0.875 * f.saved_s]
    return (
        max([finding.saved_s, *(math.nextafter(g, math.inf) for g in gaps)]) if finding.kind == "tiny batch" else finding.saved_s
    )


def _evident_s(finding: Finding) -> float:
    """Seconds a step of all its evidence; no limit where none of it is timed."""
    timed = [e.seconds for e in finding.evidence if e.seconds is not None]
    return sum(timed) if timed else math.inf
