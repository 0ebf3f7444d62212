"""What makes a step faster: changes made to the user's own step, captured again and predicted again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.plan.changes.step_remedies import Changes, half_precision
from gpuwise.plan.changes.trial import StepRemedy, Trial
from gpuwise.plan.step.estimates import StepEstimate
from gpuwise.plan.step.source import StepSource, capability_of
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.changes.change import Change, Sites

WORTH_SPEED = 0.01
"""Share of a sample's time below which a change is not shown."""
LARGER = (2, 4)
"""Times the batch, tried in turn while it fits."""


def find_speedups(
    source: StepSource,
    accelerator: Accelerator,
    capture: Capture,
    sites: Sites,
    base: StepEstimate,
    *,
    batch: int | None,
    seq: int | None = None,
    conf: str | None = None,
    compiled: bool | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[StepRemedy, ...], int]:
    """Changes that make a sample take less time and still fit, the fastest first, and how many captures that took.

    ``slower`` of each is below zero: the time of a sample against that of the step as it is, less one.
    """
    if base.step_time_s is None:
        return (), 0
    trial = Trial(source, accelerator, capture, sites, base, batch, seq, conf, compiled, tell)
    listed = list(speed_changes(capture, sites, accelerator, compiled))
    trial.of = len(listed)
    remedies = [r for changes in listed if (r := trial.tried(changes)) is not None]
    remedies += _larger(trial)
    worth = (r for r in remedies if r.slower is not None and r.slower < -WORTH_SPEED and (r.fits or not base.fits))
    return tuple(sorted(worth, key=lambda r: r.slower or 0.0)), trial.captures


def speed_changes(capture: Capture, sites: Sites, accelerator: Accelerator, compiled: bool | None) -> Iterator[Changes]:
    """The changes that the step, as seen, has something for."""
    s = capture.settings
    major, _ = capability_of(accelerator)
    weights = {p.dtype for p in capture.parameters if p.trainable}
    yield from half_precision(capture, weights, major)
    if major >= 8 and not s.matmul_tf32 and "fp32" in weights:
        yield (Change("tf32"),)
    if sites.n_conv:
        yield (Change("channels_last"),)
    if any(not o.endswith("/fused") for o in s.optimizers):
        yield (Change("fused_optimizer"),)
    yield (Change("attention"),)
    if compiled is None and not s.compiled:
        yield (Change("compile"),)


def _larger(trial: Trial) -> Iterator[StepRemedy]:
    """Larger batches while they fit."""
    for times in LARGER if trial.batch is not None and trial.base.fits_easily else ():
        remedy = trial.tried((Change("batch", times * (trial.batch or 1)),))
        if remedy is None or not remedy.estimate.fits_easily or remedy.slower is None:
            return
        yield remedy
