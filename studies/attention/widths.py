"""How sure an attention prediction is, the rule to beat, and the fallback for devices without measured
relatives."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.attention.rows import DTYPES, Table, find, ideal_seconds, is_check_site
from studies.attention import kernel_fit as family
from studies.attention.choices import MEASURED
from studies.spreads import log_sigma_of

_LOG = logging.getLogger(__name__)
F64 = NDArray[np.float64]
Pair = tuple[F64, F64, F64]
"""(measured, smooth prediction, prediction with trees) in seconds."""


def log_sigmas(
    data: dict[tuple[str, ...], family.Data],
    fits: dict[tuple[str, ...], family.KernelCoefficients],
    edges: dict[str, list[F64]],
) -> dict[str, Any]:
    """``phase``/``provenance``/``smooth|measured``: widths by duration, from rows the coefficients in question
    did not see.

    ``device`` by family: sites kept from the fit. ``family``: each of two devices from the other.
    ``relative``: the families that :data:`choices.RELATED` pairs share their unit's design, those
    that can be tried (GA100 and Ada) only their kernels, so the width is the geometric mean of what a sibling
    and what such a pair showed.
    """
    document: dict[str, Any] = {"limits_us": list(family.LIMITS_US)}
    devices = family.family_devices()
    for phase in edges:
        mine = {k: d for k, d in data.items() if k[0] == phase}
        family_pairs: dict[str, list[Pair]] = {}
        for key, rows in mine.items():
            check_rows = rows.rows(rows.check)
            if len(check_rows.seconds):
                kernel_devices = [family.device_of(a, rows.key[2]) for a in devices[rows.key[0]]]
                pair = (check_rows.seconds, *family.evaluate(fits[key], check_rows, kernel_devices, edges[phase], check_rows.gpu))
                family_pairs.setdefault(rows.key[0], []).append(pair)
        sibling = _widths([p for d in mine.values() for p in _sibling_pairs(d, edges[phase])])
        pair_of_families = _widths(_relative_pairs(mine, fits, edges[phase]))
        relative = {
            kind: [round(float(np.sqrt(a * b)), 4) for a, b in zip(sibling[kind], pair_of_families[kind], strict=True)]
            for kind in sibling
        }
        document[phase] = {
            "device": {f: _widths(pairs) for f, pairs in family_pairs.items()},
            "family": sibling,
            "relative": relative,
        }
        _LOG.info("%s %s pair of families %s", phase, document[phase], pair_of_families)
    return document


def _widths(pairs: list[Pair]) -> dict[str, list[float]]:
    seconds, smooth, measured = (np.concatenate([p[i] for p in pairs]) for i in range(3))
    return {"smooth": family.by_duration(seconds, smooth), "measured": family.by_duration(seconds, measured)}


def _sibling_pairs(data: family.Data, edges: list[F64]) -> list[Pair]:
    """Each of two devices of a family predicted from the other alone."""
    group = family.family_devices()[data.key[0]]
    if len(group) != 2 or len(data.seconds) < family.MIN_ROWS_FOR_SIBLING:
        return []
    pairs: list[Pair] = []
    for source, other in ((0, 1), (1, 0)):
        kernel_devices = [family.device_of(a, data.key[2]) for a in group]
        fitted = family.fit_kernel(data.rows(data.gpu == source), kernel_devices, edges, seed=1)
        target = data.rows(data.gpu == other)
        kernel_devices[other] = family.device_of(group[other], data.key[2], relative_to=group[source])
        pairs.append((target.seconds, *family.evaluate(fitted, target, kernel_devices, edges, np.full(len(target.gpu), source))))
        _report("sibling", data.name, group[other].id, pairs[-1])
    return pairs


def _relative_pairs(
    mine: dict[tuple[str, ...], family.Data], fits: dict[tuple[str, ...], family.KernelCoefficients], edges: list[F64]
) -> list[Pair]:
    """Kernels that Ampere-GA100 and Ada share, each predicted from the other family."""
    devices = family.family_devices()
    phase = next(iter(mine))[0]
    pairs: list[Pair] = []
    for older, newer in family.SHARED:
        for a, b, from_name, to_name in (
            ("Ampere-GA100", "Ada", older, newer),
            ("Ada", "Ampere-GA100", newer, older),
        ):
            donor, target = (
                fits.get((phase, a, from_name, "bf16", "bf16")),
                mine.get((phase, b, to_name, "bf16", "bf16")),
            )
            if donor is None or target is None:
                continue
            target = target.rows(target.shape.head_dim == 128)
            kernel_devices = [family.device_of(devices[b][0], "bf16", relative_to=devices[a][0])]
            none = np.zeros(len(target.gpu), np.int64)
            pairs.append((target.seconds, *family.evaluate(donor, target, kernel_devices, edges, none)))
            _report("relative", to_name, b, pairs[-1])
    return pairs


def _report(what: str, kernel: str, device: str, pair: Pair) -> None:
    error = pair[2] / pair[0] - 1
    mape, bias = float(np.abs(error).mean()), float(error.mean())
    _LOG.info("%s %s on %s: mape %.3f bias %+.3f", what, kernel, device, mape, bias)


def simple_rule(tables: dict[str, Table]) -> dict[str, dict[str, dict[str, float]]]:
    """The rule to beat, by device: constant shares of the matrix rate and the bandwidth and a constant
    latency.

    Chosen per device on its fit rows from a grid, by mean absolute relative error; ``any`` is the median over
    devices.
    """
    rule: dict[str, dict[str, dict[str, float]]] = {}
    for phase, table in tables.items():
        columns: dict[str, list[tuple[F64, F64, F64]]] = {}
        check_site = is_check_site(table.shape)
        for (gpu, _, _, dtype, kv), where in table.parts():
            accelerator = find(gpu)
            where = where[~check_site[where]][::7]
            if accelerator is None or accelerator.id not in MEASURED or not len(where):
                continue
            matrix, memory = ideal_seconds(accelerator, table.rows(where), DTYPES[dtype], DTYPES[kv])
            columns.setdefault(gpu, []).append((matrix, memory, table.seconds[where]))
        rule[phase] = {
            gpu: _best_shares(*(np.concatenate(c) for c in zip(*parts, strict=True))) for gpu, parts in columns.items()
        }
        names = ("matrix_share", "bandwidth_share", "latency_us")
        rule[phase]["any"] = {n: float(np.median([r[n] for r in rule[phase].values()])) for n in names}
    return rule


def _best_shares(matrix: F64, memory: F64, seconds: F64) -> dict[str, float]:
    best = (np.inf, 0.0, 0.0, 0.0)
    for a in np.geomspace(0.1, 0.9, 12):
        for b in np.geomspace(0.1, 1.0, 10):
            roof = np.maximum(matrix / a, memory / b)
            for c in (2e-6, 4e-6, 6e-6, 9e-6, 13e-6, 18e-6, 25e-6, 50e-6):
                loss = float(np.abs((roof + c) / seconds - 1).mean())
                if loss < best[0]:
                    best = (loss, a, b, c)
    return {
        "matrix_share": round(best[1], 3),
        "bandwidth_share": round(best[2], 3),
        "latency_us": round(best[3] * 1e6, 1),
    }


def generic_rule(tables: dict[str, Table]) -> dict[str, float]:
    """The simple rule for devices nobody measured: medians over devices, and the spread of its error on any
    one of them."""
    rules = simple_rule(tables)
    matrix = rules["forward"]["any"]["matrix_share"]
    bandwidth, latency = rules["decode"]["any"]["bandwidth_share"], rules["decode"]["any"]["latency_us"]
    errors: list[F64] = []
    for table in tables.values():
        for (gpu, _, _, dtype, kv), where in table.parts():
            accelerator = find(gpu)
            if accelerator is None or accelerator.id not in MEASURED:
                continue
            where = where[::7]
            flop_s, byte_s = ideal_seconds(accelerator, table.rows(where), DTYPES[dtype], DTYPES[kv])
            errors.append(np.log(table.seconds[where] / (np.maximum(flop_s / matrix, byte_s / bandwidth) + latency * 1e-6)))
    spread = np.exp(np.concatenate(errors))
    sigma = log_sigma_of(spread, np.ones(len(spread)))
    return {
        "matrix_share": matrix,
        "bandwidth_share": bandwidth,
        "latency_us": latency,
        "log_sigma": round(sigma, 3),
    }
