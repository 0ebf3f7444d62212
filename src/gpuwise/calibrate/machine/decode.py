"""How fast this device writes tokens against one of its kind: one factor for an engine, from models that were measured on it.

    y_m = b + e_m        b ~ N(0, (1 - s) sigma^2), e_m ~ N(0, s sigma^2)

``y_m`` is the mean of log(measured / predicted) seconds of one model in one format, ``sigma`` the spread of the prediction, of
which the share ``s`` is of the model and the rest of the device. The factor is exp of the mean of ``b``, and its spread that of
a model which was not measured.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from gpuwise.calibrate.machine.calibration import FamilyCoefficients
from gpuwise.calibrate.machine.fit import fit_constant
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.models.catalogue import find_model_to_run
from gpuwise.records.record import Record
from gpuwise.serve.local_measured import plain, predicted, speed_of
from gpuwise.serve.streams import decode_key

MODEL_SHARE = 0.5
"""Of the variance: of 38 machines of a public table (``benchmarks/records/serving/decode_factor_2026-11-29.md``).
With it one measured model improves others of its family on the same device from a median error of 8.8 to 6.6 %, and all models
but those of a family improve that family from 9.2 to 8.5 %."""


def decode_fits(records: Sequence[Record], device: Accelerator | Cpu) -> dict[str, FamilyCoefficients]:
    """The factor of each engine by the key of its correction, from the records of one device, without those of a model that is no
    longer found or is not predicted."""
    by_engine: dict[str, dict[tuple[object, str], list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    kind = plain(device)
    for r in records:
        speed, p = speed_of(r), r.parameters
        try:
            arch = find_model_to_run(speed.model)
            rate = predicted(speed, arch, kind, r.dtype, int(p.get("devices") or 1))
        except GpuwiseError:
            continue
        if rate is not None and r.value:
            y = math.log(rate.expected / r.value)
            by_engine[speed.engine][(p.get("layers"), p.get("hidden"), p.get("parameters")), r.dtype].append((y, rate.log_sigma))
    return {decode_key(engine): _fit(decode_key(engine), list(groups.values())) for engine, groups in by_engine.items()}


def _fit(key: str, models: Sequence[Sequence[tuple[float, float]]]) -> FamilyCoefficients:
    """``models`` have (y, sigma) of each measurement."""
    rows = [row for model in models for row in model]
    means = [sum(y for y, _ in model) / len(model) for model in models]
    variance = sum(sigma**2 for _, sigma in rows) / len(rows)
    factor, left = factor_of(means, variance)
    before = sum(abs(math.expm1(-y)) for y, _ in rows) / len(rows)
    after = None
    if len(models) > 1:
        without = [factor_of(means[:i] + means[i + 1 :], variance)[0] for i in range(len(means))]
        after = sum(abs(math.expm1(f - y)) for f, model in zip(without, models, strict=True) for y, _ in model) / len(rows)
    bias = math.expm1(statistics.median(y for y, _ in rows))
    return FamilyCoefficients(key, len(rows), before, after, bias, fit_constant(key, factor, left).correction)


def factor_of(means: Sequence[float], variance: float) -> tuple[float, float]:
    """log of the factor, and the standard deviation of a model that was not measured."""
    device, model = (1.0 - MODEL_SHARE) * variance, MODEL_SHARE * variance
    n = len(means)
    share = n * device / (n * device + model)
    return share * sum(means) / n, math.sqrt(model + (1.0 - share) * device)
