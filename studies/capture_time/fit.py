"""Fits ``predict.kernels.accelerator_factors`` and ``predict.kernels.measured_networks`` on whole captured networks.

Every network is timed by the registry without factors and summed by family; a factor on each family (times one of the card)
and the constants of convolutions and batch norm make the measured steps of it (:mod:`studies.capture_time.problem`).
Residuals are log(predicted / measured), robust (soft L1), each network of the same weight whatever its rows, drawn towards the
starting values.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.accelerator_factors import GEFORCE
from gpuwise.workload.capture.captured import Capture
from studies.capture_time.problem import POWER, Network, Problem, network_of, problem_of
from studies.capture_time.rows import NETWORKS, Key, Rows, capture_of, named_networks, read_rows
from studies.optimizers import least_squares
from studies.spreads import log_sigma_of

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
FAMILY_FACTORS: dict[str, tuple[float, float, float]] = {
    "attention": (1.0, 0.6, 1.6),
    "norm": (1.1, 0.95, 2.5),
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
    "matmul": (0.9, 0.6, 1.3),
    "memory": (1.0, 0.6, 1.6),
    "fused": (0.9, 0.4, 1.6),
    "rate": (0.9, 0.3, 2.0),
    "bandwidth": (0.9, 0.6, 1.5),
}
"""Start and bounds of a card's factors: products (clocks above the published boost make them shorter), what waits for memory,
kernels a compiler fuses (which move less than the tensors they join), and the rate and the bandwidth of convolutions."""
CONVOLUTIONS: dict[str, tuple[float, float, float]] = {
    "efficiency.pointwise": (0.8, 0.1, 1.5),
    "efficiency.spatial": (0.8, 0.1, 1.5),
    "efficiency.stem": (0.8, 0.1, 1.5),
    "efficiency.grouped": (0.6, 0.05, 1.5),
    "efficiency_backward.pointwise": (0.6, 0.1, 1.5),
    "efficiency_backward.spatial": (0.6, 0.1, 1.5),
    "efficiency_backward.grouped": (0.4, 0.02, 1.5),
    "half_rate_at.channels": (14.0, 1.0, 150.0),
    "half_rate_at.depth": (20.0, 1.0, 300.0),
    "half_rate_at.grouped": (5.0, 0.5, 200.0),
    "channels_last.pointwise": (1.2, 0.7, 2.5),
    "channels_last.spatial": (1.2, 0.7, 2.5),
    "channels_last.grouped": (0.8, 0.2, 3.0),
    "channels_last.grouped_backward": (0.6, 0.02, 3.0),
    "channels_last.wide_grouped_backward": (0.2, 0.02, 3.0),
    "compiled.pointwise": (1.0, 0.5, 1.8),
    "compiled.spatial": (1.0, 0.5, 1.8),
    "compiled.grouped": (1.0, 0.3, 2.5),
    "odd_groups.forward": (0.8, 0.1, 2.0),
    "odd_groups.compiled": (0.7, 0.1, 2.0),
    "odd_groups.backward": (0.7, 0.1, 2.0),
    "bandwidth.convolution": (0.9, 0.4, 1.5),
    "bandwidth.depthwise": (0.7, 0.2, 1.2),
    "bandwidth.depthwise_last": (0.5, 0.2, 1.2),
    "bandwidth.depthwise_compiled": (0.7, 0.2, 1.5),
    "bandwidth.depthwise_backward": (0.4, 0.05, 1.2),
    "bandwidth.batch_norm": (0.9, 0.3, 1.5),
    "bandwidth.batch_norm_training": (0.9, 0.2, 1.5),
    "bandwidth.batch_norm_backward": (0.6, 0.2, 1.5),
    "vector_efficiency.depthwise": (0.4, 0.02, 2.0),
    "vector_efficiency.depthwise_backward": (0.05, 0.002, 1.0),
    "relayouts.forward": (0.3, 0.01, 2.0),
    "relayouts.backward": (0.3, 0.01, 2.0),
    "relayouts.odd": (0.3, 0.01, 2.0),
    "before_torch_2.convolution": (1.0, 0.7, 1.3),
    "before_torch_2.memory": (1.08, 0.8, 1.4),
    "cache_share": (0.1, 0.005, 1.0),
    "launch_s": (5e-6, 2e-6, 1.2e-5),
}
"""Start and bounds of the constants of convolutions and batch norm, by their place in ``captured_kernels``."""
LEAST_ON_MEMORY = 1.0
"""No stream is faster than those that were measured on their own (the memory technology's share of the bandwidth)."""
MOST_NETWORKS = 120
"""Captured for a fit: those of the fixed list and, of every family of the table, the ones with most rows."""
ODD = ("ecaresnext50t_32x4d",)
"""Not fitted: measured a third faster than resnext50_32x4d, of which it is the larger; the reason is not known."""
SHIFT = 20.0
"""Added to logarithms while fitting: a difference quotient's step is relative, and a logarithm may be zero."""
PULL = 0.05
"""Weight of the pull towards the starting values, against one row."""


def parameters_of(cards: Sequence[str]) -> dict[str, tuple[float, float, float]]:
    """Start and bounds by name: ``family``, ``card family``, or the place of a constant."""
    return FAMILY_FACTORS | CONVOLUTIONS | {f"{card} {f}": bounds for card in cards for f, bounds in CARD_FACTORS.items()}


def values_of(x: F64, cards: Sequence[str]) -> dict[str, float]:
    """Values by name from the logarithms of :func:`parameters_of`."""
    return dict(zip(parameters_of(cards), np.exp(x).tolist(), strict=True))


def factors_of(value: Mapping[str, float], cards: Sequence[str]) -> dict[str, dict[str, float]]:
    """Factors by card and family."""
    out: dict[str, dict[str, float]] = {}
    for card in cards:
        matmul, memory = value[f"{card} matmul"], value[f"{card} memory"]
        factors = {f: value[f] * memory for f in FAMILY_FACTORS} | dict.fromkeys(LIKE_MEMORY, memory)
        factors = {f: v if f == "pooling" else max(v, LEAST_ON_MEMORY) for f, v in factors.items()}
        factors |= {"attention": value["attention"] * matmul, "matmul": matmul, "fused": value[f"{card} fused"]}
        out[card] = dict(sorted(factors.items()))
    return out


def constants_of(value: Mapping[str, float], cards: Sequence[str], shipped: Mapping[str, Any]) -> dict[str, Any]:
    """``captured_kernels`` with these values; what is not fitted stays as in ``shipped``."""
    out: dict[str, Any] = copy.deepcopy(dict(shipped))
    for name in CONVOLUTIONS:
        group, _, one = name.partition(".")
        if one:
            out.setdefault(group, {})[one] = value[name]
        else:
            out[group] = value[name]
    out["efficiency_backward"]["stem"] = value["efficiency_backward.spatial"]
    out["channels_last"]["stem"], out["compiled"]["stem"] = value["channels_last.spatial"], value["compiled.spatial"]
    for what in ("rate", "bandwidth"):
        for card in cards:
            out["architecture"][what][card] = value[f"{card} {what}"]
    return out


def predicted(p: Problem, factors: Mapping[str, Mapping[str, float]], constants: Mapping[str, Any]) -> F64:
    """Seconds [R]; a card without factors has none."""
    by_card = {card: np.array([factors.get(card, {}).get(f, 1.0) for f in p.families]) for card in set(p.card.tolist())}
    device = (p.seconds * np.array([by_card[c] for c in p.card])).sum(axis=1) + p.fixed
    for part in p.parts:
        device = device + part.seconds(constants, len(device))
    return ((device**POWER + p.host_s**POWER) ** (1.0 / POWER))[p.at]


def fit_constants(
    p: Problem, mask: Bool, shipped: Mapping[str, Any], rounds: int = 15
) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """Factors and constants by robust least squares on the rows of ``mask``, at most ``rounds`` Jacobians."""
    cards = sorted(set(p.card[p.at[mask]].tolist()))
    start, low, high = (np.log([v[i] for v in parameters_of(cards).values()]) for i in range(3))
    _, inverse, count = np.unique(p.network[mask].astype(str), return_inverse=True, return_counts=True)
    weight = 1.0 / np.sqrt(count[inverse])
    weight = weight / weight.mean()

    def factors_and_constants(x: F64) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
        value = values_of(x, cards)
        return factors_of(value, cards), constants_of(value, cards, shipped)

    def residual(shifted: F64) -> F64:
        x = shifted - SHIFT
        error = weight * np.log(predicted(p, *factors_and_constants(x))[mask] / p.measured[mask])
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
    factors, constants = factors_and_constants(best.x - SHIFT)
    return {c: {f: round(v, 3) for f, v in one.items()} for c, one in factors.items()}, _rounded(constants)


def _rounded(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _rounded(v) for k, v in node.items()}  # pyright: ignore[reportUnknownVariableType]
    return float(f"{node:.4g}") if isinstance(node, float) else node


def _learnt(p: Problem, check: Bool) -> Bool:
    """The rows that are fitted on."""
    return ~check & ~np.isin(p.network.astype(str), ODD)


def fit(folder: Path, captures: Mapping[Key, Capture] | None = None, most: int = MOST_NETWORKS) -> dict[str, float]:
    """Refit ``coefficients/card_factors`` and ``captured_kernels`` from ``folder``, capturing ``most`` networks unless
    given; returns the errors."""
    names = named_networks(folder, NETWORKS, most) if captures is None else {k.network for k in captures}
    rows = read_rows(folder, names)
    assert rows is not None
    captures_by_key = captures if captures is not None else {k: capture_of(k) for k in sorted(set(rows.key), key=str)}
    networks: dict[tuple[str, Key, bool], Network] = {}
    for gpu, key, compiled in zip(rows.gpu, rows.key, rows.compiled.tolist(), strict=True):
        if key in captures_by_key and (gpu, key, compiled) not in networks:
            networks[gpu, key, compiled] = network_of(captures_by_key[key], rows.accelerators[gpu], compiled=compiled)
    return fit_networks(rows, networks)


def fit_networks(rows: Rows, networks: Mapping[tuple[str, Key, bool], Network]) -> dict[str, float]:
    """Refit on ``networks`` (by GPU, capture and compiler); writes the coefficients and returns the errors."""
    from studies.coefficient_files import write

    problem, check = problem_of(rows, networks, (*FAMILY_FACTORS, *LIKE_MEMORY, "matmul", "fused"))
    kernels = load_json("captured_kernels")
    factors, constants = fit_constants(problem, _learnt(problem, check), kernels)
    time = predicted(problem, factors, constants)
    add_mean(factors, constants)
    errors = errors_of(problem, time, check)
    log_sigma = load_json("card_factors")["log_sigma"]
    spread = {
        stack: round(log_sigma_of(problem.measured[part], time[part]), 3)
        for stack, part in (("eager", check & ~problem.compiled), ("compiled", check & problem.compiled))
    }
    provenance = {
        "source": "huggingface/pytorch-image-models results/ (Apache-2.0), steps captured from timm's own definitions",
        "rows": int((~check).sum()),
        "networks": len(set(problem.network)),
        "captures": len({key for _, key, _ in networks}),
        "split": "a third of the families of networks kept for checking, by hash of the family's name",
        "date": "2026-11-23",
    }
    measured = sorted({rows.accelerators[g].id for g in set(problem.gpu.tolist())})
    document = {
        "factor": factors,
        "measured": measured,
        "log_sigma": log_sigma | spread,
        "provenance": provenance | {"errors": errors},
    }
    write("card_factors", document)
    write("captured_kernels", constants | {"provenance": provenance | {"note": "fitted together with card_factors"}})
    return errors


def add_mean(factors: dict[str, dict[str, float]], constants: Mapping[str, Any]) -> None:
    """Add the geometric mean of GeForce's architectures, for one of which no network was measured."""
    cards = [card for card in factors if card.startswith("sm_")]
    if not cards:
        return

    def mean(values: list[float]) -> float:
        return float(np.exp(np.mean(np.log(values))))

    factors[GEFORCE] = {f: round(mean([factors[c][f] for c in cards]), 3) for f in factors[cards[0]]}
    for table in (constants["architecture"]["rate"], constants["architecture"]["bandwidth"]):
        table[GEFORCE] = float(f"{mean([table[c] for c in cards]):.4g}")


def errors_of(p: Problem, time: F64, check: Bool) -> dict[str, float]:
    """Mean error by stack and split, and by card of the check rows."""
    out: dict[str, float] = {}
    for stack, compiled in (("eager", False), ("compiled", True)):
        for split, part in (("fit", ~check), ("check", check)):
            here = part & (p.compiled == compiled)
            if here.any():
                out[f"{stack} {split} mape"] = _mape(time[here], p.measured[here])
        for gpu in sorted(set(p.gpu.tolist())):
            here = check & (p.gpu == gpu) & (p.compiled == compiled)
            if here.any():
                out[f"{gpu}, {stack}, check mape"] = _mape(time[here], p.measured[here])
    return out


def _mape(time: F64, measured: F64) -> float:
    return round(float(np.mean(np.abs(time / measured - 1.0))), 4)
