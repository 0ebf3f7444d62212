"""Step times of captured networks against measurement: score, and calibration of a card from one run.

The family is ``captured_time``; sources say mode and stack (``timm inference, eager``), or table and task
(``captured_time_sources``). By default a sample of the
networks is captured (about a minute); every one with ``all_check``. The baseline is a roofline of the captured FLOP and
bytes times one constant a GPU, mode and stack: the median over the rows scored.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.scores import Scores, joined
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.step.capture_time import captured_time
from gpuwise.workload.capture.captured import Capture
from studies.capture_time.rows import NETWORKS, SAMPLE, Key, Rows, capture_of, named_networks, read_rows
from studies.capture_time.sources import score_sources
from studies.spreads import constant_efficiency, roofline_s

F64 = NDArray[np.float64]


def score(folder: Path, all_check: bool) -> Scores | None:
    """Capture and predict the rows of ``models/timm.csv`` and of the other tables. None when no table is there."""
    return joined([_score_timm(folder, all_check), score_sources(folder, all_check)])


def _score_timm(folder: Path, all_check: bool) -> Scores | None:
    first = NETWORKS if all_check else SAMPLE
    rows = read_rows(folder, named_networks(folder, first, len(first)))
    if rows is None:
        return None
    captures: dict[Key, Capture] = {}
    reasons: dict[Key, str] = {}
    keys = _sample(rows, all_check)
    for key in sorted(set(rows.key), key=str):
        if key not in keys:
            reasons[key] = "not in the sample"
            continue
        try:
            captures[key] = capture_of(key)
        except GpuwiseError as error:
            reasons[key] = error.message.split("\n")[0][:80]
    return _scores(rows, captures, reasons, all_check)


def _sample(rows: Rows, everything: bool) -> set[Key]:
    """Of each network and mode of a sample under either generation of torch 2, the size of images most rows have; channels-last
    twins, whose rows are as many and whose captures cost as much, are left out, and torch 1 where there is another."""
    if everything:
        return set(rows.key)
    counts: dict[tuple[str, bool, str], Counter[Key]] = defaultdict(Counter)
    for key in rows.key:
        if not key.channels_last:
            counts[key.network, key.training, key.torch][key] += 1
    newer = {(network, training) for network, training, torch in counts if torch != "1"}
    return {c.most_common(1)[0][0] for (n, t, torch), c in counts.items() if torch != "1" or (n, t) not in newer}


def _scores(rows: Rows, captures: dict[Key, Capture], reasons: dict[Key, str], all_check: bool) -> Scores:
    n = len(rows.gpu)
    predicted, sigma, ideal = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    reason = [reasons.get(k, "") for k in rows.key]
    by_network: dict[tuple[str, Key, bool], tuple[float, float, float]] = {}
    for i, (gpu, key) in enumerate(zip(rows.gpu, rows.key, strict=True)):
        if reason[i]:
            continue
        name = (gpu, key, bool(rows.compiled[i]))
        if name not in by_network:
            by_network[name] = _one(captures[key], rows.accelerators[gpu], name[2])
        predicted[i], sigma[i], ideal[i] = by_network[name]
    scale = rows.batch / np.array([k.batch for k in rows.key], dtype=np.float64)
    mode = np.array(["training" if k.training else "inference" for k in rows.key], dtype=object)
    stack = np.where(rows.compiled, "inductor", "eager")
    source = [f"timm {m}, {s}" for m, s in zip(mode, stack, strict=True)]
    captured_keys = [k for k in rows.key if k in captures]
    keep = np.array([k in set(captured_keys) for k in rows.key], dtype=bool)
    at = np.flatnonzero(keep) if keep.any() else np.arange(n)
    group = np.array([f"{g} {s}" for g, s in zip(rows.gpu, source, strict=True)], dtype=object)
    return Scores(
        source=[source[i] for i in at],
        gpu=[rows.gpu[i] for i in at],
        split=["check" if all_check or rows.check[i] else "fit" for i in at],
        measured=rows.step_s[at],
        predicted=(predicted * scale)[at],
        log_sigma=sigma[at],
        baseline=constant_efficiency(group, ideal * scale, rows.step_s)[at],
        reason=[reason[i] for i in at],
    )


def _one(capture: Capture, accelerator: Accelerator, compiled: bool) -> tuple[float, float, float]:
    """Predicted seconds, spread, and the roofline's seconds."""
    step_time = captured_time(capture, accelerator, compiled=compiled).step_time
    return step_time.expected, step_time.log_sigma, roofline_s(capture, accelerator, accelerator.peak("fp16"))
