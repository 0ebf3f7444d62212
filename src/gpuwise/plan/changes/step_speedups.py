"""What makes a step faster: changes made to the user's own step, captured again and predicted again.

Compiling is the exception: the captured operations are timed as if they were compiled (:mod:`gpuwise.predict.step.capture_time`),
with the memory of the step as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.plan.changes.step_remedies import NUMBERS, SAME, CapturedRemedy, Offer, Trial, autocast_offer, tried
from gpuwise.plan.step.estimates import Measured, measure
from gpuwise.plan.step.source import Source, capability_of
from gpuwise.workload.capture.record.capture import Capture
from gpuwise.workload.changes.registry import Change, Sites

WORTH_SPEED = 0.01
"""Share of a sample's time below which a change is not shown."""
LARGER = (2, 4)
"""Times the batch, tried in turn while it fits."""


def find_speedups(
    source: Source,
    accelerator: Accelerator,
    capture: Capture,
    sites: Sites,
    base: Measured,
    *,
    batch: int | None,
    seq: int | None = None,
    conf: str | None = None,
    compiled: bool | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[CapturedRemedy, ...], int]:
    """Changes that make a sample take less time and still fit, the fastest first, and how many captures that took.

    ``slower`` of each is below zero: the time of a sample against that of the step as it is, less one.
    """
    if base.step_time_s is None:
        return (), 0
    trial = Trial(source, accelerator, batch, seq, base, sites, conf, compiled, tell, base_capture=capture)
    found: list[CapturedRemedy] = []
    for offer in speed_offers(capture, sites, accelerator):
        remedy = tried(trial, offer, [])
        if remedy is not None:
            found.append(remedy)
    if compiled is None and not capture.settings.compiled:
        fast = measure(capture, accelerator, allocator_conf=conf, compiled=True)
        found.append(replace(trial.remedy(Offer("torch.compile", SAME, ()), fast), lines=_compile_lines(sites)))
    found += _larger(trial)
    worth = (r for r in found if r.slower is not None and r.slower < -WORTH_SPEED and (r.fits or not base.fits))
    return tuple(sorted(worth, key=lambda r: r.slower or 0.0)), trial.captures


def speed_offers(capture: Capture, sites: Sites, accelerator: Accelerator) -> Iterator[Offer]:
    """The changes that the step, as seen, has something for."""
    s = capture.settings
    major, _ = capability_of(accelerator)
    weights = {p.dtype for p in capture.parameters if p.trainable}
    yield from autocast_offer(capture, weights, major)
    if major >= 8 and not s.matmul_tf32 and "fp32" in weights:
        yield Offer("TF32", NUMBERS, (Change("tf32"),))
    if sites.n_conv:
        yield Offer("channels last", SAME, (Change("channels-last"),))
    if any(not o.endswith("/fused") for o in s.optimizers):
        yield Offer("fused optimizer", SAME, (Change("fused"),))
    yield Offer("fused attention", SAME, (Change("sdpa"),))


def _larger(trial: Trial) -> Iterator[CapturedRemedy]:
    """Larger batches; their time is that of as many samples as before."""
    before = trial.base.step_time_s
    for times in LARGER if trial.batch is not None and trial.base.fits_easily else ():
        size = times * (trial.batch or 1)
        trial.tell(f"batch {size}")
        trial.captures += 1
        capture, _ = trial.source.captured(trial.accelerator, size, trial.seq)
        measured = measure(capture, trial.accelerator, allocator_conf=trial.conf, compiled=trial.compiled)
        if not measured.fits_easily or measured.step_time_s is None or before is None:
            return
        slower = measured.step_time_s.expected / times / before.expected - 1.0
        lines = ("@ where the batch is chosen", f"+ batch = {size}")
        yield CapturedRemedy(f"batch {size}", SAME, (), trial.conf, measured, 0.0, slower, lines)


def _compile_lines(sites: Sites) -> tuple[str, ...]:
    names = [f.name for f in sites.forward if f.name] or ["model"]
    return ("@ after the model is built", *(f"+ {n} = torch.compile({n})" for n in dict.fromkeys(names)))
