"""Fits the collective coefficients: measured curves by link generation, PCIe protocols, meshes, the scale-out
network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from gpuwise.calibrate.collectives import published
from gpuwise.calibrate.collectives.rows import Rows
from gpuwise.predict.comm.fabric import MEASURED_SIZES, bus_factor
from gpuwise.predict.kernels.kernel_time import F64
from gpuwise.units import GIGA, MIB
from studies.optimizers import least_squares

GROUPS = (2, 4, 8)
V100_LINK = 150 * GIGA
PCIE4_X16, PCIE5_X8 = 31.5 * GIGA, 31.5 * GIGA
"""128b/130b encoded: 16 lanes at 16 GT/s, 8 at 32 GT/s."""
CLASSES: dict[str, tuple[tuple[str, ...], float, list[str]]] = {
    "nvlink3": (("a100_sxm",), 300 * GIGA, ["A100"]),
    "nvlink4": (("h100_sxm",), 450 * GIGA, ["H100"]),
    "nvlink5": (("b200_sxm", "gb200"), 900 * GIGA, ["B200", "GB200"]),
    "pcie-host": (("l40s",), PCIE4_X16, ["L40S"]),
    "oneccl": (("b60",), PCIE5_X8, ["B60"]),
}
"""Class -> boxes it is fitted on, their link rate, words of their names."""
ENGINES = ("vllm", "sglang", "sglang-0.5.10", "trtllm")
OPS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


def fit_tables(rows: Rows, *, without: str | None = None) -> dict[str, F64]:
    """Median seconds by class, library, operation, group size and payload, non-decreasing in payload.

    Medians over versions and dtypes within a box, then the geometric mean of boxes. ``without`` leaves a box
    out.
    """
    arrays: dict[str, F64] = {}
    for name, (boxes, _, _) in CLASSES.items():
        use = rows.where(np.isin(rows.box, [b for b in boxes if b != without]) & ~rows.eager)
        for library in ("nccl", *ENGINES):
            for op in OPS:
                for width in (2, 1):
                    mask = (use.op == op) & (use.library == library)
                    apart = op in ("all_reduce", "reduce_scatter")
                    if apart:
                        mask &= use.element_bytes == width
                    elif width == 1:
                        continue
                    table = _table(use.where(mask), pooled=library != "nccl")
                    if table is not None:
                        saved = "oneccl" if name == "oneccl" and library == "nccl" else library
                        arrays[f"{name}.{saved}.{op}" + (".int8" if width == 1 else "")] = table
        for tail in ("", ".int8"):
            reduce, scatter = f"{name}.nccl.all_reduce{tail}", f"{name}.nccl.reduce_scatter{tail}"
            if reduce in arrays and scatter in arrays:
                arrays[reduce] = np.maximum(arrays[reduce], arrays[scatter])
    return arrays


def _table(rows: Rows, *, pooled: bool) -> F64 | None:
    """[N, 24] seconds for the measured group sizes, or None when one below the largest is missing."""
    table: list[F64] = []
    for n in GROUPS:
        some = rows.where(rows.group_size == n)
        if not len(some):
            break
        table.append(_curve(some, pooled=pooled))
    return np.array(table) if len(table) >= 2 else None


def _curve(rows: Rows, *, pooled: bool) -> F64:
    """[24] geometric mean over boxes of each box's median, filled and made non-decreasing.

    ``pooled``: one median of all sweeps. Engines' sweeps on GB200 come in two kinds at large sizes, with and
    without in-switch reduction (2.7 times apart); a mean of boxes would be neither.
    """
    log_s = np.full(MEASURED_SIZES.size, np.nan)
    log_rows = np.log(rows.seconds)
    for k, size in enumerate(MEASURED_SIZES):
        here = rows.payload_bytes == size
        if not here.any():
            continue
        votes = [here] if pooled else [here & (rows.box == b) for b in sorted(set(rows.box[here]))]
        log_s[k] = float(np.mean([np.median(log_rows[v]) for v in votes]))
    return _filled(log_s)


def _filled(log_s: F64) -> F64:
    measured_at = np.flatnonzero(np.isfinite(log_s))
    first, last = measured_at[0], measured_at[-1]
    log_sizes = np.log(MEASURED_SIZES)
    seconds = np.exp(np.interp(log_sizes, log_sizes[measured_at], log_s[measured_at]))
    seconds = np.exp(_isotonic(np.log(seconds)))
    seconds[:first] = seconds[first]
    if last < len(seconds) - 1:
        slope = (seconds[last] - seconds[last - 1]) / (MEASURED_SIZES[last] - MEASURED_SIZES[last - 1])
        seconds[last + 1 :] = seconds[last] + slope * (MEASURED_SIZES[last + 1 :] - MEASURED_SIZES[last])
    return seconds


def _isotonic(values: F64) -> F64:
    """Least-squares non-decreasing fit (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for v in values:
        blocks.append((float(v), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (b, nb), (a, na) = blocks.pop(), blocks.pop()
            blocks.append(((a * na + b * nb) / (na + nb), na + nb))
    return np.concatenate([np.full(k, v) for v, k in blocks])


def fit_send_recv(rows: Rows) -> dict[str, F64]:
    """[1, 24] seconds of a message inside a node, from kernel times (vidur)."""
    arrays: dict[str, F64] = {}
    for name, box in (("nvlink3", "a100_dgx"), ("nvlink4", "h100_dgx")):
        some = rows.where((rows.box == box) & (rows.op == "send_recv") & (rows.ranks_per_system == 2))
        if len(some):
            near = np.round(np.log2(some.payload_bytes)).astype(int) - 7
            # Bytes differ within a bin: bring each time to the bin's centre along the local slope of time on
            # bytes.
            centre = some.seconds * np.where(near > 12, MEASURED_SIZES[near] / some.payload_bytes, 1.0)
            log_s = np.array([np.median(np.log(centre[near == k])) if (near == k).any() else np.nan for k in range(24)])
            arrays[f"{name}.nccl.send_recv"] = _filled(log_s)[None, :]
    return arrays


def fit_pcie(rows: Rows) -> dict[str, Any]:
    """min(low + w S / (low_rate R), simple + w S / (simple_rate R)) in log seconds.

    Pairs: every sweep on the L40S boxes (a pair has peer access on both). 4 and 8: the box with peer access,
    which only has all-reduce; the other operations' latencies there come from the box without it (latency
    does not need it) and their simple protocol starts at half the all-reduce's, as it has half the steps.
    """
    use = rows.where(
        ~rows.eager & ((rows.box == "l40s peer") | ((rows.box == "l40s") & (rows.group_size == 2) & (rows.library == "nccl")))
    )
    low, simple = {op: [0.0] * 3 for op in OPS}, {op: [0.0] * 3 for op in OPS}
    slow = rows.where((rows.box == "l40s") & (rows.library == "nccl"))
    for op in OPS:
        for i, n in enumerate(GROUPS):
            tiny = slow.where((slow.op == op) & (slow.group_size == n) & (slow.payload_bytes <= 4096))
            low[op][i] = float(np.exp(np.median(np.log(tiny.seconds))))

    w = np.array([bus_factor(o, n) for o, n in zip(use.op, use.group_size, strict=True)]) * use.payload_bytes / PCIE4_X16
    which = np.array([GROUPS.index(n) for n in use.group_size])
    reduces = use.op == "all_reduce"
    base = np.array([low[o][GROUPS.index(n)] for o, n in zip(use.op, use.group_size, strict=True)])

    def residual(x: F64) -> F64:
        start = np.exp(x[2:5])[which] * np.where(reduces, 1.0, 0.5)
        t = np.minimum(base + w / math.exp(x[0]), start + w / math.exp(x[1]))
        return np.log(t) - np.log(use.seconds)

    x = _least(residual, [math.log(0.32), math.log(0.65), math.log(30e-6), math.log(50e-6), math.log(90e-6)])
    for op in OPS:
        simple[op] = [float(math.exp(v)) * (1.0 if op == "all_reduce" else 0.5) for v in x[2:5]]
    return {
        "groups": list(GROUPS),
        "low_s": low,
        "simple_s": simple,
        "low_rate": math.exp(x[0]),
        "simple_rate": math.exp(x[1]),
        "geforce_groups": [4, 8],
        "geforce_fraction": [min(1.0, f / math.exp(x[1])) for f in published.GEFORCE_PCIE.values()],
    }


def fit_mesh(rows: Rows, tables: dict[str, F64]) -> dict[str, Any]:
    """By group size, the share of the V100's link rate at which the NVLink 3 curve meets its all-reduce of
    512 MiB up."""
    v100 = rows.where((rows.source == "vtrain V100") & (rows.payload_bytes >= 512 * MIB))
    groups = sorted(set(v100.group_size.tolist()))
    per_byte: F64 = tables["nvlink3.nccl.all_reduce"][:, -1] / MEASURED_SIZES[-1]
    share: list[float] = []
    for n in groups:
        slow = float(np.median(v100.seconds[v100.group_size == n] / v100.payload_bytes[v100.group_size == n]))
        group_sizes = np.asarray(GROUPS, np.float64)
        fast = np.interp(math.log2(n), np.log2(group_sizes), per_byte)
        share.append(float(fast) / slow * CLASSES["nvlink3"][1] / V100_LINK)
    document = {"nvlink_groups": groups, "nvlink_fraction": share, "xgmi_fraction": published.XGMI_FRACTION}
    return document | {"bridge_send": _bridge_send(rows, tables)}


def _bridge_send(rows: Rows, tables: dict[str, F64]) -> float:
    """Seconds of a message over the bridge of a pair, over those through a switch of as many lanes (vidur, A100 PCIe)."""
    pair = rows.where((rows.box == "a100_pairwise_nvlink") & (rows.op == "send_recv") & (rows.ranks_per_system == 2))
    if not len(pair):
        return 1.0
    curve: F64 = tables["nvlink3.nccl.send_recv"][0]
    switched = np.interp(pair.payload_bytes, np.asarray(MEASURED_SIZES, np.float64), curve)
    return float(np.exp(np.median(np.log(pair.seconds / switched))))


def fit_send(rows: Rows) -> dict[str, float]:
    """Seconds and share of the card's rate of a message between two InfiniBand nodes (vidur, DGX H100, 50
    GB/s)."""
    some = rows.where((rows.box == "h100_dgx") & (rows.op == "send_recv") & (rows.ranks_per_system == 1))

    def residual(x: F64) -> F64:
        return np.log(math.exp(x[0]) + some.payload_bytes / (math.exp(x[1]) * 50 * GIGA)) - np.log(some.seconds)

    x = _least(residual, [math.log(18e-6), math.log(0.8)])
    return {"send_base_s": math.exp(x[0]), "send_fraction": math.exp(x[1])}


def fit_network(
    send: dict[str, float], seconds_of: Callable[[list[published.PublishedCollective], dict[str, float]], F64]
) -> dict[str, dict[str, float]]:
    """Steps and fractions by kind of network: EFA fitted on published figures, the others from NCCL's
    constants.

    ``seconds_of(rows, constants)`` predicts figures with the constants of one network. All-to-all is only
    measured on
    EFA: elsewhere its latency is scaled by the ratio of a ring's network steps.
    """
    figures = published.fitted_on()
    measured = np.log(np.array([f.seconds for f in figures]))
    start = {
        "ring_step_s": 31e-6,
        "tree_step_s": 41e-6,
        "tree_base_s": 150e-6,
        "half_step_s": 54e-6,
        "half_base_s": 130e-6,
        "low_base_s": 50e-6,
        "pair_base_s": 190e-6,
        "pair_rank_s": 2.6e-6,
        "ring_fraction": 0.9,
        "tree_fraction": 0.42,
        "half_fraction": 0.85,
        "pair_fraction": 0.82,
        "low_fraction": 0.15,
    }
    fixed = {**published.NCCL_STEPS, **published.LOW_LATENCY, **send}

    def constants(x: F64) -> dict[str, float]:
        figures: dict[str, float] = dict(zip(start, np.exp(x).tolist(), strict=True))
        # EFA's latency is the card's, whatever the protocol.
        return {**fixed, **figures, "half_low_step_s": figures["half_step_s"]}

    efa = constants(
        _least(
            lambda x: np.log(seconds_of(figures, constants(x))) - measured,
            [math.log(v) for v in start.values()],
        )
    )
    efa["send_base_s"] += efa["ring_step_s"] - fixed["ring_step_s"]
    kinds = {"efa": efa}
    scale = fixed["ring_step_s"] / efa["ring_step_s"]
    for kind, line in published.LINE_FRACTION.items():
        kinds[kind] = {
            **fixed,
            "ring_fraction": line,
            "half_fraction": line,
            "tree_fraction": line * efa["tree_fraction"] / efa["ring_fraction"],
            "low_fraction": efa["low_fraction"],
            "pair_fraction": min(line, efa["pair_fraction"]),
            "pair_base_s": efa["pair_base_s"] * scale,
            "pair_rank_s": efa["pair_rank_s"] * scale,
            "send_fraction": min(line, send["send_fraction"]),
        }
    return kinds


def _least(residual: Callable[[F64], F64], start: list[float]) -> F64:
    return np.asarray(least_squares(residual, np.array(start), loss="soft_l1", f_scale=0.1, x_scale="jac").x)


def rounded(value: Any, digits: int = 5) -> Any:
    """Numbers of a document to ``digits`` significant ones, so that refits differ only where they differ."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in cast("dict[str, Any]", value).items()}
    return [rounded(v, digits) for v in cast("list[Any]", value)] if isinstance(value, list | tuple) else value
