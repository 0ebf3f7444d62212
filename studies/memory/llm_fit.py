"""Fits the few constants of device memory that no source states: ``coefficients/memory.json``.

For each stack, on the fit rows only: the allocator's slack (share of what churns), and from the source that
measures what nvidia-smi shows, NCCL's bytes a communicator. Everything else is accounting. The spread of each
metric counts models of the stacks that measure it.

Run: ``python -m studies.memory.llm_fit DIR``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.llm_training.rows import LlmRow, read_rows
from gpuwise.calibrate.llm_training.score import is_check
from gpuwise.calibrate.memory import score as memory
from gpuwise.calibrate.memory.llm_score import Target, predict, settings, system_of, targets, value_of
from gpuwise.errors import DataError, GpuwiseError
from gpuwise.predict.coefficients import forget_files, load_json
from gpuwise.predict.memory.context import context_bytes
from gpuwise.predict.memory.device import METRICS, StackMemory, stack_memory
from gpuwise.predict.memory.strategies import MemoryColumns
from gpuwise.units import GIB, GIGA, MIB
from studies.coefficient_files import write
from studies.llm_training.widths import Residuals, left_out_coverage
from studies.llm_training.widths import spreads as spreads_of_models
from studies.spreads import log_sigma_of

F64 = NDArray[np.float64]
SLACKS = np.arange(0.0, 0.61, 0.01)
COMMUNICATORS = np.arange(0.4, 1.81, 0.02) * GIB
"""Published: 0.53 to 0.67 GiB on 4 A100 (NCCL#964), 1.5 for one and 5.6 for three or more (NCCL#864)."""
LEAST_SPREAD = 0.003
"""Repeats of one job differ by so much."""
LEAST_SLACK = 0.05
"""The most that calls no published run impossible; below it the published out-of-memory runs stay so."""
PRIOR = StackMemory(32 * MIB, 0.25, LEAST_SLACK, dict.fromkeys(METRICS, 0.06))
"""Where nothing is measured: two small workspaces, and the slack that most stacks show."""
UNMEASURED_COMMUNICATOR_BYTES = 1.3 * GIB
"""Where no row measures what is outside torch."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured number with its prediction, the bytes that slack multiplies and those reserved whatever it
    is."""

    target: Target
    stack: str
    model: tuple[str, str, str]
    """Source, model, GPU."""
    check: bool
    memory: MemoryColumns

    churned: float
    contiguous: float
    communicators: float
    context: float

    def log_ratio(self, slack: float, communicator_bytes: float) -> float:
        """log(measured / predicted) with these constants, the device's limit left out."""
        metric = self.target.metric
        value = value_of(self.memory, "allocated")
        if metric != "allocated":
            value += slack * self.churned + self.contiguous
        if metric == "device":
            value += self.context + self.communicators * communicator_bytes
        return float(np.log(self.target.measured / value))


def samples(rows: Sequence[LlmRow]) -> list[Sample]:
    """Every measured peak that can be predicted."""
    fit_samples: list[Sample] = []
    probe = replace(PRIOR, slack=0.01, least_slack=0.01)
    for target in targets(rows):
        if target.metric == "verdict":
            continue
        row = rows[target.row]
        try:
            strategy, rules = settings(row)
            peak = predict(row, strategy, rules, probe)
            more = predict(row, strategy, rules, replace(probe, slack=0.02, least_slack=0.02))
        except GpuwiseError:
            continue
        groups = (strategy.tp > 1) + (strategy.pp > 1) + (strategy.dp * strategy.cp > 1)
        churned = 100.0 * float(more.reserve.flat[0] - peak.reserve.flat[0])
        contiguous = float(peak.reserve.flat[0]) - 0.01 * churned
        system = system_of(row)
        context = context_bytes(system.accelerator, "eager" if rules.eager_modules else "lazy", cudnn=False) if system else 0.0
        name = (row.source, row.model, row.gpu)
        fit_samples.append(Sample(target, strategy.stack, name, is_check(row), peak, churned, contiguous, float(groups), context))
    return fit_samples


def fit_stack(group: Sequence[Sample]) -> tuple[float, float | None]:
    """(slack, bytes a communicator) that make the mean absolute log error of the fit rows least; None where
    no row measures what is outside torch, and the usual slack where none measures what is reserved."""
    fitted = [s for s in group if not s.check] or list(group)
    loose = [s for s in fitted if s.target.metric != "allocated"]
    device = any(s.target.metric == "device" for s in loose)
    if not loose:
        return PRIOR.slack, None
    best, constants = np.inf, (PRIOR.slack, None)
    for each in COMMUNICATORS if device else [0.0]:
        for slack in SLACKS:
            error = float(np.mean([abs(s.log_ratio(slack, each)) for s in loose]))
            if error < best - 1e-9:
                best, constants = error, (round(float(slack), 2), float(each) if device else None)
    return constants


def fit_eager(folder: Path) -> tuple[float, float]:
    """(slack, reserved bytes in any job) of eager torch, from the plain vision transformers of GPUMemNet's
    fit rows."""
    probe = replace(PRIOR, slack=0.01, least_slack=0.01)
    points: list[tuple[float, float, float]] = []
    for r in memory.records(folder, "gpumemnet_timm_train.csv"):
        row = memory.MemoryFigure("gpumemnet timm", r["gpu"], r["model"], r["measured_peak_GB"] * GIGA, 0.0, "")
        if memory.is_check(row):
            continue
        try:
            job = memory.timm_job(r, probe)
        except GpuwiseError:
            continue
        outside = float(np.broadcast_to(job.context, job.device_total.shape).flat[0])
        allocated, reserve = float(job.allocated.flat[0]), float(job.reserve.flat[0])
        points.append((row.measured, allocated + outside, reserve / probe.slack))
    if not points:
        return PRIOR.slack, PRIOR.reserve_bytes
    measured, fixed, churned = (np.array(values, np.float64) for values in zip(*points, strict=True))

    def error(slack: float, extra_bytes: float) -> float:
        ratios: F64 = measured / (fixed + slack * churned + extra_bytes)
        return float(np.abs(np.log(ratios)).mean())

    extras = (np.arange(0, 513, 16) * MIB).tolist()
    errors = {(round(float(slack), 2), float(extra)): error(float(slack), float(extra)) for slack in SLACKS for extra in extras}
    return min(errors, key=lambda k: errors[k])


def job_spreads(folder: Path) -> dict[str, dict[str, float]]:
    """Spread of log(measured / predicted) of each table of jobs, on its check rows."""
    scores = memory.score(folder, False)
    if scores is None:
        return {}
    by_source: dict[str, dict[str, float]] = {}
    for source in sorted(set(scores.source)):
        mask = np.array([s == source and not r for s, r in zip(scores.source, scores.reason, strict=True)])
        in_check = mask & np.array([s == "check" for s in scores.split])
        mask = in_check if in_check.sum() >= 4 else mask
        if mask.any():
            sigma = log_sigma_of(scores.measured[mask], scores.predicted[mask])
            by_source[source] = {"log_sigma": max(sigma, 0.003)}
    return by_source


def spreads(
    everything: Sequence[Sample], slack: dict[str, float], communicator_bytes: float
) -> tuple[dict[str, dict[str, float]], str]:
    """Spread per stack and metric, counting models as step times do (:mod:`studies.llm_training.widths`), and in words
    how many rows are inside without their model.

    A stack's few models borrow from the others' rows of the metric; where it has none of its own, they are all it has, and
    it is at least as uncertain as the metrics that it contains. One or two constants a stack are fitted on many rows, so fit rows
    flatter no more than check rows.
    """
    by_stack: dict[str, dict[str, float]] = {stack: {} for stack in ("default", *slack)}
    inside: list[str] = []
    for i, metric in enumerate(METRICS):
        rows = [s for s in everything if s.target.metric == metric]
        ratios = np.array([s.log_ratio(slack[s.stack], communicator_bytes) for s in rows])
        residuals = Residuals(ratios, np.zeros(len(rows)), [(s.stack, False) for s in rows], [s.model for s in rows])
        pooled = spreads_of_models(replace(residuals, cell=[("default", False)] * len(rows)), 0.0, LEAST_SPREAD)
        by_cell = spreads_of_models(residuals, 0.0, LEAST_SPREAD)
        for stack, widths in by_stack.items():
            contained = [widths[m] for m in METRICS[:i]]
            widths[metric] = by_cell.get((stack, False)) or max([pooled["default", False], *contained])
        inside.append(f"{metric} {left_out_coverage(residuals, 0.0, LEAST_SPREAD):.0%} of {len(rows)}")
    return by_stack, "inside 80 % intervals found without their model: " + ", ".join(inside)


def refit_spreads(folder: Path) -> None:
    """Write the stacks' spreads anew from the rows under ``folder``; every other constant stays."""
    rows = read_rows(folder)
    if rows is None:
        raise DataError(f"no llm_training.csv in {folder}")
    document = load_json("memory")
    everything = samples(rows)
    measured = {s.stack: _fields(stack_memory(s.stack)) for s in everything}
    constants = {**measured, **document["stacks"]}
    slack = {stack: entry["slack"] for stack, entry in constants.items() if stack != "default"}
    widths, inside = spreads(everything, slack, document["communicator_bytes"]["eager"])
    stacks = {name: {**entry, "log_sigma": widths[name]} for name, entry in sorted(constants.items())}
    stacks["compiled"]["log_sigma"] = stacks["eager"]["log_sigma"]
    write("memory", {**document, "provenance": {**document["provenance"], "spreads": inside}, "stacks": stacks})


def _fields(constants: StackMemory) -> dict[str, Any]:
    return {k: v for k, v in asdict(constants).items() if k != "basis"}


def fit(folder: Path) -> None:
    """Fit and write ``coefficients/memory.json``. Raises DataError when the table is not in ``folder``."""
    rows = read_rows(folder)
    if rows is None:
        raise DataError(f"no llm_training.csv in {folder}")
    everything = samples(rows)
    groups: dict[str, list[Sample]] = {}
    for sample in everything:
        groups.setdefault(sample.stack, []).append(sample)
    fitted = {stack: fit_stack(group) for stack, group in sorted(groups.items())}
    slack = {stack: f[0] for stack, f in fitted.items()}
    slack["eager"], reserve = fit_eager(folder)
    communicator = next((f[1] for f in fitted.values() if f[1] is not None), UNMEASURED_COMMUNICATOR_BYTES)
    sigma, inside = spreads(everything, slack, communicator)
    table = {"default": replace(PRIOR, log_sigma=sigma["default"])}
    table |= {stack: replace(PRIOR, slack=s, log_sigma=sigma[stack]) for stack, s in slack.items()}
    # of eager torch every tensor is named: captured steps hold what the formulas say and cuBLAS's workspace
    table["eager"] = replace(table["eager"], reserve_bytes=reserve, workspace_bytes=0.0)
    table["compiled"] = table["eager"]
    errors = {
        stack: float(np.mean([abs(s.log_ratio(slack[stack], communicator)) for s in group])) for stack, group in groups.items()
    }
    provenance = {
        "source": "llm_training.csv: SimuMax B200, nanotron, bigscience, torchtitan, litgpt, torchtune",
        "date": datetime.now(UTC).date().isoformat(),
        "rows_fit": sum(not s.check for s in everything),
        "rows_check": sum(s.check for s in everything),
        "mean_absolute_log_error": errors,
        "spreads": inside,
    }
    stacks = {name: _fields(constants) for name, constants in table.items()}
    document: dict[str, object] = {
        "provenance": provenance,
        "stacks": stacks,
        "jobs": {},
        "communicator_bytes": {"eager": communicator},
    }
    write("memory", document)
    forget_files()
    stack_memory.cache_clear()
    write("memory", {**document, "jobs": job_spreads(folder)})


if __name__ == "__main__":
    fit(Path(sys.argv[1]))
