"""Step times of captured models on the NeuSight, Lambda, DeepLearningExamples and MLPerf tables: all rows are checks.

A sample of the steps is captured by default, every one with ``all_check``. A row of another batch than the captured one
scales with the batch, but for the optimizer's part. The baseline is what the source itself predicts (NeuSight's rows), else a
roofline of the captured FLOP and bytes times the median of measured over it, a constant for each task and precision.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpuwise.calibrate.scores import Scores
from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.errors import GpuwiseError, require
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.links import without_peer_access
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.memory_bound import dram_rate
from gpuwise.predict.step.capture_time import captured_time
from gpuwise.predict.step.sharding_time import gradient_bytes, replicas_exposed_s
from gpuwise.units import GIGA
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.row_codes import Phase
from gpuwise.workload.stacks.stack import find_stack
from studies.capture_time.tables import MeasuredStep, StepJob, examples_rows, lambda_rows, mlperf_rows, neusight_rows
from studies.published.reference_transformers import UNSEEN_STACK_SIGMA
from studies.spreads import constant_efficiency, roofline_s

NEUSIGHT_SAMPLE = ("neusight-bert_large", 8)
"""Network and batch of NeuSight's that are captured when not every one is asked for."""


def score_sources(folder: Path, all_check: bool) -> Scores | None:
    """Capture and predict the rows of the tables in ``folder``; None when none is there."""
    rows = [*neusight_rows(folder), *lambda_rows(folder), *examples_rows(folder), *mlperf_rows(folder)]
    if not all_check:
        chosen = sample(rows)
        rows = [r for r in rows if r.job is not None and r.job in chosen]
    if not rows:
        return None
    captures: dict[StepJob, Capture | str] = {}
    for network_job in sorted({r.job for r in rows if r.job is not None}, key=str):
        try:
            captures[network_job] = capture_of(network_job)
        except GpuwiseError as error:
            captures[network_job] = error.message.split("\n")[0][:80]
    return scores_of(rows, captures)


def sample(rows: list[MeasuredStep]) -> set[StepJob]:
    """The steps that are captured when not every one is asked for: of each network and its settings the one that most rows
    have, one of NeuSight's networks."""
    counts = Counter(r.job for r in rows if r.job is not None)
    usual: dict[tuple[str, str], StepJob] = {}
    for one, _ in sorted(counts.items(), key=lambda c: (-c[1], str(c[0]))):
        usual.setdefault((one.network, str(one.settings)), one)
    others = {one for one in counts if (one.network, one.batch) == NEUSIGHT_SAMPLE}
    return {one for one in usual.values() if not one.network.startswith("neusight")} | others


def capture_of(network_job: StepJob) -> Capture:
    """The captured step of ``network_job``. Raises MissingExtraError without torch or the package of its network."""
    from studies.networks.zoo import build

    require("torch", "capturing networks")
    from gpuwise.workload.capture.api import capture

    settings = dict(network_job.settings)
    factory = build(network_job.network, network_job.source, training=network_job.training, **settings)
    steps = 2 if network_job.training and settings.get("optimizer") != "none" else 1
    return capture(lambda: factory(network_job.batch), n_steps=steps, capability=(8, 0), batch=network_job.batch)


def scores_of(rows: list[MeasuredStep], captures: dict[StepJob, Capture | str]) -> Scores:
    """Scores of ``rows``; a capture that is text says why there is none."""
    n = len(rows)
    predicted, sigma, baseline = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    reason = [r.reason for r in rows]
    predictions: dict[tuple[StepJob, str, bool, bool], StepSeconds] = {}
    for i, r in enumerate(rows):
        captured = captures.get(r.job, "not captured") if r.job is not None else ""
        if isinstance(captured, str) or r.job is None:
            reason[i] = reason[i] or str(captured)
            continue
        if r.accelerator is None:
            reason[i] = "accelerator not in the catalogue"
            continue
        try:
            name = (r.job, r.accelerator.id, r.tf32, r.compiled)
            if name not in predictions:
                predictions[name] = predict(r, captured, r.accelerator)
            one, scale = predictions[name], r.batch / r.job.batch
            alone_s = one.update_s + one.work_s * scale
            predicted[i] = alone_s + reduction_s(r, captured, one, scale)
            sigma[i] = math.hypot(one.log_sigma, UNSEEN_STACK_SIGMA if r.unseen_stack else 0.0)
            baseline[i] = r.baseline_s if math.isfinite(r.baseline_s) else one.ideal_s * scale
        except GpuwiseError as error:
            reason[i] = error.message.split("\n")[0][:80]
    measured = np.array([r.step_s for r in rows])
    groups = np.array([r.group for r in rows], dtype=object)
    has_baseline = np.array([math.isfinite(r.baseline_s) for r in rows])
    baseline[~has_baseline] = constant_efficiency(groups[~has_baseline], baseline[~has_baseline], measured[~has_baseline])
    return Scores(
        source=[r.source for r in rows],
        gpu=[r.gpu for r in rows],
        split=["check"] * n,
        measured=measured,
        predicted=predicted,
        log_sigma=sigma,
        baseline=baseline,
        reason=reason,
    )


def reduction_s(r: MeasuredStep, capture: Capture, one: StepSeconds, scale: float) -> float:
    """Seconds that a step of ``scale`` times the captured batch waits for the gradients of the row's devices.

    Raises GpuwiseError where the catalogue knows no system of them.
    """
    if r.devices == 1 or not r.reduces or r.accelerator is None:
        return 0.0
    system = find_cluster(f"{r.devices}x{r.accelerator.id}").system
    system = system if r.peer_access else without_peer_access(system)
    behind = scale if r.overlaps else 0.0
    return replicas_exposed_s(system, r.devices, gradient_bytes(capture), one.forward_s * behind, one.backward_s * behind)


class StepSeconds(NamedTuple):
    """Seconds of a job's step: ``work_s`` grows with the batch, ``update_s`` (optimizer, gaps between kernels) does not."""

    work_s: float
    update_s: float
    forward_s: float
    backward_s: float
    log_sigma: float
    ideal_s: float
    """By the roofline."""


def predict(r: MeasuredStep, capture: Capture, accelerator: Accelerator) -> StepSeconds:
    """The time of the row's job on ``accelerator``, as the row was run.

    Raises UnpredictableError when the catalogue lacks a rate of the accelerator.
    """
    version = (r.unseen_stack and find_stack("apex").torch_of_norms) or capture.settings.torch_version
    as_run = replace(capture, settings=replace(capture.settings, matmul_tf32=r.tf32, cudnn_tf32=r.tf32, torch_version=version))
    whole = captured_time(as_run, accelerator, compiled=r.compiled)
    step_time = whole.step_time
    half = "amp" in str(dict(r.job.settings).get("precision", "")) or "fp16" in str(r.job.settings) if r.job else False
    rates = accelerator.peak_flop_per_s
    rate = (rates.get("fp16") if half else rates.get("tf32") if r.tf32 else None) or accelerator.peak("fp32")
    again = fetched_s(as_run, accelerator) if r.empties_cache and r.job is not None and r.job.training else 0.0
    again -= moments_s(as_run, accelerator) if r.fused_moments else 0.0
    update_s = min(whole.phase_s.get("optimizer", 0.0), step_time.expected)
    forward_s, backward_s = (whole.phase_s.get(name, 0.0) for name in ("forward", "backward"))
    ideal_s = roofline_s(as_run, accelerator, rate)
    fixed_s = min(update_s + whole.gaps_s, step_time.expected)
    return StepSeconds(step_time.expected - fixed_s + again, fixed_s, forward_s, backward_s, step_time.log_sigma, ideal_s)


def moments_s(capture: Capture, accelerator: Accelerator) -> float:
    """Seconds that batch norms in training read their tensors for sums alone: once forward, two tensors backward."""
    span = capture.steady
    count = np.bincount(capture.op_signature[span.first_op : span.end_op], minlength=len(capture.signatures))
    moved = 0.0
    for n, s in zip(count.tolist(), capture.signatures, strict=True):
        if n and "batch_norm" in s.op and s.attribute("training") is not False:
            one = s.inputs[0]
            tensors = 2.0 if "backward" in s.op else 1.0
            moved += n * tensors * math.prod(one.shape) * TENSOR_BYTES[one.dtype]
    return moved / dram_rate(accelerator)


def fetched_s(capture: Capture, accelerator: Accelerator) -> float:
    """Seconds that a pass waits for memory it asks the driver for, after NeuSight's benchmark has emptied the cache: by the
    bytes a forward keeps (``neusight.json``, ``study.allocation``), and more where they nearly fill the device."""
    study = load_json("neusight")["study"]
    fetch = study["allocation"].get(accelerator.vendor)
    if fetch is None:
        return 0.0
    span = capture.steady
    part = slice(span.first_op, span.end_op)
    forward = capture.op_signature[part][capture.op_phase[part] == Phase.FORWARD]
    written = float(sum(capture.signatures[int(i)].bytes_written for i in forward.tolist()))
    resident_bytes = study["saved_share"] * written + 2.0 * 4.0 * capture.parameter_count
    full = resident_bytes / accelerator.memory_bytes > study["pressure_above"]
    return fetch["s_per_gb"] * study["saved_share"] * written / GIGA + (fetch["pressure_s"] if full else 0.0)
