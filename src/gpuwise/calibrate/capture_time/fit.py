"""Fits ``predict.kernels.card_factors`` on whole captured networks: one factor a family, one a card's arithmetic and memory.

Every network is timed by the registry without factors and summed by family; a factor on each family (times one of the card)
makes the measured steps of it. Convolutions and batch norm have the form of ``predict.kernels.measured_networks``, fitted on
133 such networks, and stay as they are. Residuals are log(predicted / measured), robust (soft L1), each network of the same
weight whatever its rows, drawn towards no factor at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.capture_time.rows import NETWORKS, Key, Rows, capture_of, read_rows
from gpuwise.calibrate.optimizers import least_squares
from gpuwise.calibrate.validation import log_sigma_of
from gpuwise.facts.hardware.accelerators import Accelerator, architecture_key
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.card_factors import UNMEASURED, factor_key
from gpuwise.predict.kernels.run_formats import MATRIX, run_format
from gpuwise.predict.step.capture_time import signature_times
from gpuwise.predict.step.compiled import compile_step
from gpuwise.workload.capture.record.capture import Capture
from gpuwise.workload.capture.record.rows import rows_of
from gpuwise.workload.step import FAMILIES, FAMILY_CODE, KERNEL_CODE

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
OWN_KEY = ("rtx-pro-6000-blackwell-max-q",)
"""Measured cards that are no GeForce: their factors are their own, not their architecture's."""
FAMILY_FACTORS: dict[str, tuple[float, float, float]] = {
    "attention": (1.0, 0.7, 1.4),
    "norm": (1.1, 0.95, 1.8),
    "softmax": (1.1, 0.95, 1.5),
    "elementwise": (1.0, 0.95, 1.5),
    "reduction": (1.0, 0.95, 1.5),
    "copy": (1.0, 0.95, 1.4),
    "optimizer": (1.0, 0.95, 1.7),
    "gather": (1.0, 0.95, 1.7),
    "pooling": (0.9, 0.5, 1.4),
}
"""Start and bounds of a family's factor on every card. Pooling visits places, and fewer than assumed."""
LIKE_MEMORY = ("dropout", "resampling", "scatter", "embedding", "loss")
"""Families of which the networks have too little: the card's factor on memory alone."""
CARD_FACTORS: dict[str, tuple[float, float, float]] = {
    "matmul": (0.95, 0.8, 1.05),
    "memory": (1.0, 0.6, 1.6),
    "fused": (1.0, 0.6, 1.4),
}
"""Start and bounds of a card's factors: products (clocks above the published boost make them shorter), what waits for memory,
and kernels a compiler fuses (which move less than the tensors they join)."""
LEAST_ON_MEMORY = 1.0
"""No stream is faster than those that were measured on their own (the memory technology's share of the bandwidth)."""
ODD = ("ecaresnext50t_32x4d",)
"""Not fitted: measured a third faster than resnext50_32x4d, of which it is the larger; the reason is not known."""
SHIFT = 20.0
"""Added to logarithms while fitting: a difference quotient's step is relative, and a logarithm may be zero."""
PULL = 0.05
"""Weight of the pull towards the starting values, against one row."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Measured steps [R]; ``seconds`` [R, F] of each family that has a factor, without it, and ``fixed`` [R] of the rest."""

    families: tuple[str, ...]
    seconds: F64
    fixed: F64
    card: NDArray[Any]
    """Key of its factors."""
    gpu: NDArray[Any]
    compiled: Bool
    measured: F64
    network: NDArray[Any]


def card_key(accelerator: Accelerator) -> str:
    """Whose factors a measured card's are."""
    if accelerator.id in OWN_KEY:
        return accelerator.id
    return architecture_key(accelerator.compute_capability, accelerator.family)


def family_seconds(capture: Capture, accelerator: Accelerator, *, compiled: bool) -> dict[str, float]:
    """Device seconds of the steady step by family, factors of the card taken out; ``""`` is what has none."""
    span = capture.steady
    signature = capture.op_signature[span.first_op : span.end_op]
    rows = rows_of(capture.signatures, capture.settings)
    times = signature_times(capture, accelerator, channels_last=True if compiled else None, compiled=compiled)
    device_s = times.time_s[signature]
    fixed = np.isin(rows.family, [FAMILY_CODE[f] for f in UNMEASURED]) | (rows.kernel == KERNEL_CODE["batch_norm"])
    vector = np.array([run_format(accelerator, d) not in MATRIX for d in rows.dtype]) & (rows.flop > 0)
    named = np.where(fixed | vector, "", np.array(FAMILIES, dtype=object)[rows.family])[signature]
    if compiled:
        nothing = np.zeros_like(device_s)
        fused = compile_step(capture, accelerator, -1, device_s, nothing, times.family[signature], everything=True)
        device_s, named = fused.device_s, np.where(fused.fused, "fused", named)
    key = factor_key(accelerator)
    shipped: Mapping[str, float] = load_json("card_factors")["factor"][key] if key else {}
    return {f: float(device_s[named == f].sum()) / (shipped.get(f, 1.0) if f else 1.0) for f in sorted(set(named.tolist()))}


def problem_of(rows: Rows, captures: Mapping[Key, Capture]) -> tuple[Problem, Bool]:
    """The rows whose capture is there, and which of them are kept for checking."""
    at = [i for i, key in enumerate(rows.key) if key in captures]
    known: dict[tuple[str, Key, bool], dict[str, float]] = {}
    for i in at:
        name = (rows.gpu[i], rows.key[i], bool(rows.compiled[i]))
        if name not in known:
            known[name] = family_seconds(captures[name[1]], rows.accelerators[name[0]], compiled=name[2])
    each = [known[rows.gpu[i], rows.key[i], bool(rows.compiled[i])] for i in at]
    families = (*FAMILY_FACTORS, *LIKE_MEMORY, "matmul", "fused")
    problem = Problem(
        families=families,
        seconds=np.array([[s.get(f, 0.0) for f in families] for s in each]),
        fixed=np.array([sum(v for f, v in s.items() if f not in families) for s in each]),
        card=np.array([card_key(rows.accelerators[rows.gpu[i]]) for i in at], dtype=object),
        gpu=np.array([rows.gpu[i] for i in at], dtype=object),
        compiled=rows.compiled[at],
        measured=rows.per_capture_s[at],
        network=np.array([rows.key[i].network for i in at], dtype=object),
    )
    return problem, rows.check[at]


def parameters_of(cards: Sequence[str]) -> dict[str, tuple[float, float, float]]:
    """Start and bounds by name: ``family`` or ``card family``."""
    return FAMILY_FACTORS | {f"{card} {f}": bounds for card in cards for f, bounds in CARD_FACTORS.items()}


def factors_of(x: F64, cards: Sequence[str]) -> dict[str, dict[str, float]]:
    """Factors by card and family from the logarithms of :func:`parameters_of`."""
    value: dict[str, float] = dict(zip(parameters_of(cards), np.exp(x).tolist(), strict=True))
    out: dict[str, dict[str, float]] = {}
    for card in cards:
        matmul, memory = value[f"{card} matmul"], value[f"{card} memory"]
        made = {f: value[f] * memory for f in FAMILY_FACTORS} | dict.fromkeys(LIKE_MEMORY, memory)
        made = {f: v if f == "pooling" else max(v, LEAST_ON_MEMORY) for f, v in made.items()}
        made |= {"attention": value["attention"] * matmul, "matmul": matmul, "fused": value[f"{card} fused"]}
        out[card] = dict(sorted(made.items()))
    return out


def predicted(p: Problem, factors: Mapping[str, Mapping[str, float]]) -> F64:
    """Seconds [R]; a card without factors has none."""
    by_card = {card: np.array([factors.get(card, {}).get(f, 1.0) for f in p.families]) for card in set(p.card.tolist())}
    return (p.seconds * np.array([by_card[c] for c in p.card])).sum(axis=1) + p.fixed


def fit_factors(p: Problem, mask: Bool, rounds: int = 20) -> dict[str, dict[str, float]]:
    """Factors by robust least squares on the rows of ``mask``, at most ``rounds`` Jacobians."""
    cards = sorted(set(p.card[mask].tolist()))
    start, low, high = (np.log([v[i] for v in parameters_of(cards).values()]) for i in range(3))
    _, inverse, count = np.unique(p.network[mask].astype(str), return_inverse=True, return_counts=True)
    weight = 1.0 / np.sqrt(count[inverse])
    weight = weight / weight.mean()

    def residual(shifted: F64) -> F64:
        x = shifted - SHIFT
        error = weight * np.log(predicted(p, factors_of(x, cards))[mask] / p.measured[mask])
        return np.concatenate([error, PULL * np.sqrt(len(error)) / 2.0 * (x - start)])

    best = least_squares(
        residual,
        SHIFT + np.clip(start, low + 1e-6, high - 1e-6),
        bounds=(SHIFT + low, SHIFT + high),
        loss="soft_l1",
        f_scale=0.12,
        diff_step=1e-3,
        max_nfev=rounds,
    )
    return {c: {f: round(v, 3) for f, v in made.items()} for c, made in factors_of(best.x - SHIFT, cards).items()}


def _learnt(p: Problem, check: Bool) -> Bool:
    """The rows that are fitted on."""
    return ~check & ~np.isin(p.network.astype(str), ODD)


def fit(folder: Path, captures: Mapping[Key, Capture] | None = None) -> dict[str, float]:
    """Refit ``coefficients/card_factors`` from ``folder``, capturing every network unless given; returns its errors."""
    from gpuwise.calibrate.coefficient_files import write

    rows = read_rows(folder, NETWORKS if captures is None else {k.network for k in captures})
    assert rows is not None
    made = captures if captures is not None else {k: capture_of(k) for k in sorted(set(rows.key), key=str)}
    problem, check = problem_of(rows, made)
    factors = fit_factors(problem, _learnt(problem, check))
    time = predicted(problem, factors)
    errors = errors_of(problem, time, check)
    known = load_json("card_factors")["log_sigma"]
    spread = {
        stack: round(log_sigma_of(problem.measured[part], time[part]), 3)
        for stack, part in (("eager", check & ~problem.compiled), ("compiled", check & problem.compiled))
    }
    document = {
        "factor": factors,
        "measured": sorted({rows.accelerators[g].id for g in set(problem.gpu.tolist())}),
        "log_sigma": known | spread,
        "provenance": {
            "source": "huggingface/pytorch-image-models results/ (Apache-2.0), steps captured from timm's own definitions",
            "rows": int((~check).sum()),
            "networks": len(set(problem.network)),
            "captures": len(made),
            "split": "a third of the families of networks kept for checking, by hash of the family's name",
            "errors": errors,
            "date": "2026-11-22",
        },
    }
    write("card_factors", document)
    return errors


def errors_of(p: Problem, time: F64, check: Bool) -> dict[str, float]:
    """Mean error by stack and split, and by card of the check rows; beside it that without any factor."""
    out: dict[str, float] = {}
    plain = predicted(p, {})
    for stack, compiled in (("eager", False), ("compiled", True)):
        for split, part in (("fit", ~check), ("check", check)):
            here = part & (p.compiled == compiled)
            if here.any():
                out[f"{stack} {split} mape"] = _mape(time[here], p.measured[here])
                out[f"{stack} {split} mape without factors"] = _mape(plain[here], p.measured[here])
        for gpu in sorted(set(p.gpu.tolist())):
            here = check & (p.gpu == gpu) & (p.compiled == compiled)
            if here.any():
                out[f"{gpu}, {stack}, check mape"] = _mape(time[here], p.measured[here])
    return out


def _mape(time: F64, measured: F64) -> float:
    return round(float(np.mean(np.abs(time / measured - 1.0))), 4)
