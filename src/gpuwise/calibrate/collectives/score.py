"""Scores and fits the collective family. See :mod:`gpuwise.calibrate.collectives.rows` for the held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuwise.calibrate.collectives import published
from gpuwise.calibrate.collectives.rows import Rows, read_rows
from gpuwise.calibrate.collectives.systems import system_of
from gpuwise.calibrate.scores import F64, Scores
from gpuwise.errors import UnknownNameError, UnpredictableError
from gpuwise.facts.hardware.systems import System
from gpuwise.predict.comm.collectives import OPS, CollectiveCurve, CollectiveShape, build_curve, host_call_s
from gpuwise.predict.comm.fabric import Coefficients, Fabric, bus_factor, shipped

OTHER_MACHINES = ("vtrain A100", "vidur all_reduce", "ml-engineering")
"""Sources that nothing is fitted on, of machines that differ from the fitted ones in host, release and clock."""
CLOCKS_WITH_HOST = ("ml-engineering", "vidur all_reduce")
"""Sources whose call cannot be shorter than issuing it: a clock around the host's call, or (Vidur) a kernel's, which begins
when the first rank has issued it and ends when the last one has."""
SIZE_EDGES = (2.0**16, 2.0**23)
"""Payloads that part the small, middle and large residuals."""


def score(folder: Path, all_check: bool) -> Scores | None:
    """One score per measured row; without ``all_check`` also the published figures typed in with their
    source."""
    rows = read_rows(folder)
    if rows is None:
        return None
    predicted, sigma, reason = predict(rows, shipped())
    baseline = _baseline(rows, rows.is_check | all_check)
    split = np.where(rows.is_check | all_check, "check", "fit")
    source, gpu, measured = list(rows.source), list(rows.gpu), rows.seconds
    if not all_check:
        fitted = published.fitted_on()
        typed = fitted + list(published.OTHERS)
        p, s = predict_published(typed, shipped())
        predicted, sigma, reason = np.append(predicted, p), np.append(sigma, s), reason + [""] * len(typed)
        baseline = np.append(baseline, np.full(len(typed), np.nan))
        source += ["nccl-tests published"] * len(typed)
        gpu += [t.system for t in typed]
        split = np.append(split, ["fit"] * len(fitted) + ["check"] * len(published.OTHERS))
        measured = np.append(measured, [t.seconds for t in typed])
    return Scores(source, gpu, [str(x) for x in split], measured, predicted, sigma, baseline, reason)


def predict(rows: Rows, c: Coefficients) -> tuple[F64, F64, list[str]]:
    """(seconds, log sigma, why not) of each row with coefficients ``c``."""
    out, sigma, reason = np.full(len(rows), np.nan), np.full(len(rows), np.nan), [""] * len(rows)
    columns = (
        rows.box,
        rows.op,
        rows.library,
        rows.eager,
        rows.group_size,
        rows.ranks_per_system,
        rows.element_bytes,
    )
    index: dict[tuple[Any, ...], list[int]] = {}
    for i, key in enumerate(zip(*columns, strict=True)):
        index.setdefault(key, []).append(i)
    for (box, op, library, eager, n, ranks, width), where in index.items():
        if op not in OPS:
            for i in where:
                reason[i] = f"unknown collective {op!r}"
            continue
        try:
            system = system_of(box)
            curve = _curve(c, system, op, int(n), int(ranks), library, not eager, int(width))
        except (UnpredictableError, UnknownNameError) as error:
            for i in where:
                reason[i] = error.reason if isinstance(error, UnpredictableError) else error.message
            continue
        size = rows.payload_bytes[where]
        out[where], sigma[where] = curve.time_s(size), curve.log_sigma(size)
        if eager or rows.source[where[0]] in CLOCKS_WITH_HOST:
            out[where] = np.maximum(out[where], host_call_s(system.accelerator, library, c))
    return out, sigma, reason


def _curve(
    c: Coefficients,
    system: System,
    op: str,
    n: int,
    ranks: int,
    library: str = "nccl",
    graph: bool = True,
    width: int = 2,
) -> CollectiveCurve:
    library = library if op == "all_reduce" else "nccl"
    return build_curve(c, Fabric.of(system), CollectiveShape(op, n, ranks, 1), library, graph or library == "nccl", width)


def predict_published(typed: Sequence[published.PublishedCollective], c: Coefficients) -> tuple[F64, F64]:
    """(seconds, log sigma) of published figures."""
    curves: dict[tuple[str, str, int, int], CollectiveCurve] = {}
    for t in typed:
        curves.setdefault(t[:4], _curve(c, system_of(t.system), t.op, t.group_size, t.ranks_per_system))
    seconds = [float(curves[t[:4]].time_s(t.payload_bytes)) for t in typed]
    return np.array(seconds), np.array([float(curves[t[:4]].log_sigma(t.payload_bytes)) for t in typed])


def _baseline(rows: Rows, check: Any) -> F64:
    """alpha + bytes / bus bandwidth, the two constants per GPU and operation from its fit rows; NaN without
    them."""
    out = np.full(len(rows), np.nan)
    bus = np.array([bus_factor(o, int(n)) for o, n in zip(rows.op, rows.group_size, strict=True)]) * rows.payload_bytes
    kinds = np.array([f"{s} {g} {o}" for s, g, o in zip(rows.source, rows.gpu, rows.op, strict=True)], dtype=object)
    for kind in set(kinds):
        here = kinds == kind
        fit = here & ~check
        small, large = fit & (rows.payload_bytes <= 2**14), fit & (rows.payload_bytes >= 2**26)
        if small.any() and large.any():
            out[here] = np.median(rows.seconds[small]) + bus[here] * np.median(rows.seconds[large] / bus[large])
    return out
