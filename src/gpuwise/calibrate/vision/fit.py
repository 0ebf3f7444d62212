"""Fits ``predict.network``: the constants of its physical form first, then the trees on what is left."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.boosting import Settings
from gpuwise.calibrate.boosting import fit as fit_trees
from gpuwise.calibrate.optimizers import least_squares
from gpuwise.calibrate.validation import log_sigma_of
from gpuwise.calibrate.vision.rows import VisionRows
from gpuwise.predict.kernels.boosted import Trees, pack
from gpuwise.predict.kernels.image_network import combined, features, rooflines

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
SETTINGS = Settings(trees=500, depth=6, learning_rate=0.08, edges=40, clip=0.4, leaf_penalty=4.0)
START: dict[str, Any] = {
    "efficiency": {"matrix": 0.7, "vector": 0.75},
    "passes": {"eager": 4.0, "compiled": 2.0, "training": 3.0},
    "overlap": 1.3,
    "joules_per_flop": {},
    "cycles_per_element": 0.05,
    "training_bytes_per_parameter": 28.0,
    "launch_s": 6e-6,
    "most_correction": 1.5,
}
"""Not fitted: ``vector`` efficiency (fp32 products of NeuSight's tables reach 0.75 to 0.9 of peak), a
training step's bytes per parameter (fp32 weight read and written, gradient written and read, momentum read
and written, half-precision copy written and read: 28), the host's cost of a launch (as the eager stack's),
and the limit of the correction."""
POWER_LIMITED = ("Blackwell-RTX",)
"""Families with a device whose power limit binds here (RTX PRO 6000 Max-Q: 300 W for 439 TFLOP/s): joules per
FLOP of convolution networks, what moves around the arithmetic included. Fitted where such a device is among
the rows."""
_BOUNDS = {
    "matrix": (0.2, 0.95),
    "eager": (0.5, 20.0),
    "compiled": (0.5, 20.0),
    "training": (1.0, 10.0),
    "overlap": (1.25, 6.0),
    "cycles_per_element": (1e-4, 10.0),
    "Blackwell-RTX": (0.4e-12, 2.6e-12),
}


def fit_network(rows: VisionRows, check: Bool) -> dict[str, float]:
    """Fit on the rows outside ``check``, write the coefficients, return the errors."""
    from gpuwise.calibrate.coefficient_files import write

    usable = rows.reason == ""
    model = fit_form(rows, usable & ~check)
    trees = fit_correction(rows, usable & ~check, model)
    errors, sigma = _errors(rows, check, model, trees)
    for gpu in sorted(rows.accelerators):
        held = rows.gpu == gpu
        errors |= _left_out(rows, usable, check, held, gpu)
    model["measured"] = sorted({a.id for a in rows.accelerators.values()})
    other = round(float(np.median([v for k, v in errors.items() if k.startswith("log sigma without")])), 3)
    model["log_sigma"] = {"known_device": sigma, "other_device": dict.fromkeys(sigma, other)}
    model["provenance"] = {
        "source": "huggingface/pytorch-image-models results/ (Apache-2.0): inference and training tables",
        "rows": int((usable & ~check).sum()),
        "split": "a third of the architectures kept for checking, by hash",
        "errors": errors,
        "date": "2026-11-21",
    }
    write("network", model, pack("correction", trees))
    return errors


def physical(rows: VisionRows, at: NDArray[Any], model: dict[str, Any]) -> tuple[F64, F64, F64]:
    """Compute, memory and weight seconds of the rows at positions ``at``."""
    out = np.empty((3, len(at)))
    for gpu in set(rows.gpu[at]):
        for precision in set(rows.precision[at]):
            here = (rows.gpu[at] == gpu) & (rows.precision[at] == precision)
            if here.any():
                out[:, here] = rooflines(rows.accelerators[gpu], precision, rows.networks.take(at[here]), model)
    return out[0], out[1], out[2]


def _with(x: dict[str, float]) -> dict[str, Any]:
    return {
        **START,
        "efficiency": {**START["efficiency"], "matrix": x["matrix"]},
        "passes": {k: x[k] for k in ("eager", "compiled", "training")},
        "overlap": x["overlap"],
        "cycles_per_element": x["cycles_per_element"],
        "joules_per_flop": {k: x[k] for k in POWER_LIMITED if k in x},
    }


def fit_form(rows: VisionRows, mask: Bool) -> dict[str, Any]:
    """Constants of the physical form by robust least squares on log time; each architecture counts the
    same."""
    at = np.flatnonzero(mask)
    at = np.random.default_rng(20261121).permutation(at)[:4000]
    limited = {a.family for g, a in rows.accelerators.items() if (rows.gpu[mask] == g).any() and (a.tdp_w or 999) <= 300}
    names = [k for k in _BOUNDS if k not in POWER_LIMITED or k in limited]
    low, high = (np.log([_BOUNDS[k][i] for k in names]) for i in (0, 1))
    start = {**START["passes"], "matrix": START["efficiency"]["matrix"], **START, "Blackwell-RTX": 1.6e-12}
    target = np.log(rows.step_s[at])

    def residual(x: F64) -> F64:
        model = _with(dict(zip(names, np.exp(x), strict=True)))
        c, m, w = physical(rows, at, model)
        return np.log(rows.networks.batch[at] * combined(c, m, model["overlap"]) + w) - target

    x0 = np.log([start[k] for k in names])
    best = least_squares(residual, x0, bounds=(low, high), loss="soft_l1", f_scale=0.2, diff_step=1e-3)
    return _with({k: float(f"{np.exp(v):.4g}") for k, v in zip(names, best.x, strict=True)})


def fit_correction(rows: VisionRows, mask: Bool, model: dict[str, Any]) -> Trees:
    """Trees on the logarithm of measured over physical time."""
    at = np.flatnonzero(mask)
    c, m, w = physical(rows, at, model)
    n = rows.networks.take(at)
    body = np.maximum(rows.step_s[at] - w, 0.3 * rows.step_s[at])
    target = np.log(body / (n.batch * combined(c, m, model["overlap"])))
    limit = model["most_correction"]
    seen = features(n, c, m)
    return fit_trees(seen, np.clip(target, -limit, limit), settings=SETTINGS)


def predicted(rows: VisionRows, at: NDArray[Any], model: dict[str, Any], trees: Trees) -> F64:
    """Seconds under ``model`` and ``trees``, as ``network_time`` gives with the shipped ones."""
    c, m, w = physical(rows, at, model)
    n = rows.networks.take(at)
    limit = model["most_correction"]
    factor = np.exp(np.clip(trees.evaluate(features(n, c, m)), -limit, limit))
    return n.batch * combined(c, m, model["overlap"]) * factor + w


def _errors(rows: VisionRows, check: Bool, model: dict[str, Any], trees: Trees) -> tuple[dict[str, float], dict[str, float]]:
    errors: dict[str, float] = {}
    sigma: dict[str, float] = {}
    for part, mask in (("fit", ~check), ("check", check)):
        at = np.flatnonzero((rows.reason == "") & mask)
        time = predicted(rows, at, model, trees)
        training = rows.networks.training[at]
        for mode, here in (("inference", ~training), ("training", training)):
            if here.any():
                errors[f"{mode} {part} mape"] = _mape(time[here], rows.step_s[at][here])
                sigma[mode] = round(log_sigma_of(rows.step_s[at][here], time[here]), 3)
    return errors, sigma


def _left_out(rows: VisionRows, usable: Bool, check: Bool, held: Bool, gpu: str) -> dict[str, float]:
    """Errors on a GPU kept out of the fit: on architectures that were seen elsewhere, and on ones that were
    not."""
    learn = usable & ~check & ~held
    if not learn.any() or not (usable & held).any():
        return {}
    model = fit_form(rows, learn)
    trees = fit_correction(rows, learn, model)
    out: dict[str, float] = {}
    known = np.isin(rows.networks.training, rows.networks.training[learn])
    for name, mask in (("same architectures", ~check), ("new architectures", check)):
        at = np.flatnonzero(usable & held & mask & known)
        if len(at):
            time = predicted(rows, at, model, trees)
            out[f"without {gpu}: its mape, {name}"] = _mape(time, rows.step_s[at])
            if mask is not check:
                continue
            out[f"log sigma without {gpu}"] = round(log_sigma_of(rows.step_s[at], time), 3)
    return out


def _mape(time: F64, measured: F64) -> float:
    return round(float(np.mean(np.abs(time / measured - 1))), 4)
