"""Refits the collective family and its intervals from the rows that are not kept aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpuwise.calibrate.collectives import published
from gpuwise.calibrate.collectives.rows import Rows, read_rows
from gpuwise.calibrate.collectives.score import OTHER_MACHINES, SIZE_EDGES, predict, predict_published
from gpuwise.calibrate.collectives.systems import system_of
from gpuwise.calibrate.scores import F64
from gpuwise.errors import InputError
from gpuwise.interval import Z80
from gpuwise.predict.comm.fabric import Coefficients
from gpuwise.units import MIB
from studies import coefficient_files
from studies.collectives import fit as fits
from studies.collectives import staged
from studies.spreads import log_sigma_of, weighted_quantile


def fit(folder: Path) -> None:
    """Refit every coefficient from the fit rows of ``folder`` and write them. Deterministic."""
    rows = read_rows(folder)
    if rows is None:
        raise InputError(f"no collective tables in {folder}", hint="give the folder with ops/collectives.parquet")
    fit_rows = rows.where(~rows.is_check)
    tables = {**fits.fit_tables(fit_rows), **fits.fit_send_recv(fit_rows)}
    c = Coefficients(_constants(fit_rows, tables), tables)
    c.constants["pcie"] |= staged.fit(folder)
    c.constants["log_sigma"] = {"other": [0.2] * 3, "generation": [0.2] * 3}
    c.constants["network"] = fits.rounded(
        fits.fit_network(fits.fit_send(fit_rows), lambda figures, kind: _with_network(figures, kind, c))
    )
    c.constants["log_sigma"] = fits.rounded(_sigmas(rows, fit_rows, c), 3)
    eager = rows.where(rows.eager & rows.is_check)
    c.constants["eager"]["log_sigma"] = fits.rounded(log_sigma_of(eager.seconds, predict(eager, c)[0]), 3)
    c.constants["provenance"]["errors"] = fits.rounded(_errors(rows, fit_rows, c), 3)
    coefficient_files.write("collectives", c.constants, dict(c.tables))


def _with_network(typed: list[published.PublishedCollective], kind: dict[str, float], c: Coefficients) -> F64:
    trial = Coefficients({**c.constants, "network": {"efa": kind, "ethernet": kind}}, c.tables)
    return predict_published(typed, trial)[0]


def _constants(fit_rows: Rows, tables: dict[str, F64]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "classes": {
            name: {"link_bytes_per_s": rate, "measured_on": on, "boxes": list(boxes)}
            for name, (boxes, rate, on) in fits.CLASSES.items()
        },
        "pcie": fits.fit_pcie(fit_rows),
        "mesh": fits.fit_mesh(fit_rows, tables),
        "ring_step_s": published.NVLINK_RING_STEP_S,
        "fill_bytes": published.FILL_BYTES,
        "eager": _eager(fit_rows),
    }
    document["provenance"] = {
        "sources": [
            "aiconfigurator systems data (Apache-2.0): NCCL, oneCCL, vLLM, SGLang, TensorRT-LLM",
            "vTrain trace (MIT): NCCL all-reduce on V100",
            "Vidur profiling data (MIT): send and receive",
            "NCCL src/graph/tuning.cc (BSD): step latencies",
            published.AWS_SOURCE,
            "further figures: gpuwise/calibrate/collectives/published.py",
        ],
        "rows": len(fit_rows),
        "split": "about 30 % of the sweeps (version x dtype) of a box, library, operation, group size",
    }
    return fits.rounded(document)


def _eager(fit_rows: Rows) -> dict[str, Any]:
    """Host seconds of one call (smallest messages, median of boxes), SGLang's new path relative to the
    others', and the share of memory bandwidth that the copy before an eager all-reduce gets."""
    small = fit_rows.where(fit_rows.eager & (fit_rows.payload_bytes <= 2**14))
    plain = small.where(small.library != "sglang")
    hosts = {
        "grace": ("gb200",),
        "recent": ("h100_sxm", "b200_sxm"),
        "older": ("a100_sxm",),
        "pcie": ("l40s", "l40s peer", "b60"),
    }
    medians = {b: float(np.median(plain.seconds[plain.box == b])) for b in sorted(set(plain.box))}
    call = {kind: float(np.median([medians[b] for b in boxes if b in medians])) for kind, boxes in hosts.items()}
    new = small.where((small.library == "sglang") & np.isin(small.box, list(medians)))
    factor = float(np.median([np.median(new.seconds[new.box == b]) / medians[b] for b in sorted(set(new.box))]))
    return {
        "host_call_s": call,
        "host_call_factor": {"sglang": factor},
        "copy_fraction": _copy_fraction(fit_rows),
        "log_sigma": 0.2,
    }


def _copy_fraction(fit_rows: Rows) -> float:
    """Median of 2 S / (eager - graph) over memory bandwidth, where the copy is what sets them apart (512 MiB
    up)."""
    shares: list[float] = []
    for box in ("a100_sxm", "h100_sxm", "b200_sxm"):
        big = fit_rows.where((fit_rows.box == box) & (fit_rows.payload_bytes >= 512 * MIB) & (fit_rows.op == "all_reduce"))
        bandwidth = system_of(box).accelerator.memory_bandwidth_bytes_per_s
        for n in fits.GROUPS:
            for size in sorted(set(big.payload_bytes)):
                same = (big.group_size == n) & (big.payload_bytes == size)
                same &= np.isin(big.library, ("vllm", "sglang-0.5.10"))
                eager, graph = same & big.eager, same & ~big.eager
                if eager.any() and graph.any():
                    extra = float(np.median(big.seconds[eager]) - np.median(big.seconds[graph]))
                    shares += [2 * float(size) / extra / bandwidth] if extra > 0 else []
    return min(1.0, float(np.median(shares)))


def _sigmas(rows: Rows, fit_rows: Rows, c: Coefficients) -> dict[str, Any]:
    """Log residuals by class and library.

    A user's box is another box than the measured one, so the residuals are pooled over machines, each weighing as the root of its
    rows: sweeps kept from the fit, B200 and GB200 left out of it, and the machines nothing was fitted on.
    """
    check_residuals = _residuals(rows.where(rows.is_check & ~np.isin(rows.source, OTHER_MACHINES)), c)
    boxes = _left_out(rows, fit_rows, c)
    one_system = rows.ranks_per_system == rows.group_size
    other = _residuals(rows.where(np.isin(rows.source, OTHER_MACHINES) & one_system), c)
    size, ratio, cls, lib, machine = (np.concatenate(x) for x in zip(check_residuals, boxes, other, strict=True))
    away = np.arange(len(size)) >= len(check_residuals[0])
    out: dict[str, Any] = {}
    for name in fits.CLASSES:
        for library in ("nccl", *fits.ENGINES):
            # What an engine does on GB200 (in-switch reduction or not) says nothing of other links.
            elsewhere = away if library == "nccl" or name == "nvlink5" else np.zeros_like(away)
            mask = (lib == library) & ((cls == name) | elsewhere)
            if mask.sum() >= 20:
                widths = _by_size(size[mask], ratio[mask], machine[mask])
                # Engines hand large payloads to NCCL, and their few sweeps are of one box: not surer than
                # NCCL.
                least = out.get(f"{name}.nccl", widths)
                out[f"{name}.{library}"] = [max(a, b) for a, b in zip(widths, least, strict=True)]
    predicted, _ = predict_published(published.OTHERS, c)
    log_ratio = np.log(np.array([t.seconds for t in published.OTHERS]) / predicted)
    out["network"] = [log_sigma_of(np.exp(log_ratio), np.ones(1))] * 3
    pairs = np.isin(rows.box, ("l40s peer", "a100_pairwise_nvlink", "h100_pairwise_nvlink")) & (rows.group_size > 2)
    peer = rows.where(pairs & ~rows.eager & (rows.op == "all_reduce") & (rows.payload_bytes >= 2**20))
    size, ratio, _, _, machine = _residuals(peer, c)
    out["pcie"] = [_machine_sigma(ratio, machine)] * 3
    out["other"] = out["pcie"]
    out["generation"] = _across_generations(rows.where(rows.is_check), c)
    return out


def _across_generations(check: Rows, c: Coefficients) -> list[float]:
    """Log sigma of an NVLink generation's NCCL rows by a neighbour's curves, scaled to the link."""
    sizes: list[F64] = []
    ratios: list[F64] = []
    machines: list[Any] = []
    neighbours = {"nvlink4": ("nvlink3", "nvlink5"), "nvlink5": ("nvlink4",), "nvlink3": ("nvlink4",)}
    for borrower, lender in ((b, one) for b, some in neighbours.items() for one in some):
        lent = {
            name.replace(lender, borrower): table
            for name, table in c.tables.items()
            if name.startswith(f"{lender}.nccl") and name.replace(lender, borrower) in c.tables
        }
        classes = {**c.constants["classes"], borrower: c.constants["classes"][lender]}
        trial = Coefficients({**c.constants, "classes": classes}, {**c.tables, **lent})
        rows = check.where(np.isin(check.box, fits.CLASSES[borrower][0]) & (check.source == "aiconfigurator nccl"))
        sizes.append(rows.payload_bytes)
        ratios.append(np.log(rows.seconds / predict(rows, trial)[0]))
        machines.append(rows.box)
    return _by_size(np.concatenate(sizes), np.concatenate(ratios), np.concatenate(machines))


def _by_size(sizes: F64, log_ratio: F64, machine: Any) -> list[float]:
    """Sigma of the small, middle and large payloads; of all together where one has fewer than five rows."""
    part = np.digitize(sizes, SIZE_EDGES)
    parts = [part == k if (part == k).sum() >= 5 else np.full(len(part), True) for k in range(3)]
    return [max(0.01, _machine_sigma(log_ratio[mask], machine[mask])) for mask in parts]


def _machine_sigma(log_ratio: F64, machine: Any) -> float:
    """The width that covers 80 % of the rows when every machine weighs as the root of its rows."""
    _, index, count = np.unique(machine.astype(str), return_inverse=True, return_counts=True)
    return weighted_quantile(np.abs(log_ratio), np.asarray(count[index], float) ** -0.5, 0.8) / Z80


def _residuals(rows: Rows, c: Coefficients) -> tuple[F64, F64, Any, Any, Any]:
    """(payload, log(measured / predicted), class, library, machine) of rows without the copies of eager calls."""
    rows = rows.where(~rows.eager)
    predicted, _, reason = predict(rows, c)
    ok = np.array([not r for r in reason])
    rows, predicted = rows.where(ok), predicted[ok]
    cls = np.array([_class_of(b) for b in rows.box], dtype=object)
    return rows.payload_bytes, np.log(rows.seconds / predicted), cls, rows.library, rows.box


def _class_of(box: str) -> str:
    return next((name for name, (boxes, _, _) in fits.CLASSES.items() if box in boxes), "pcie")


def _left_out(rows: Rows, fit_rows: Rows, c: Coefficients) -> tuple[F64, F64, Any, Any, Any]:
    """Residuals of B200 predicted without B200 and of GB200 without GB200: a new accelerator on a known
    link."""
    parts: list[tuple[F64, F64, Any, Any, Any]] = []
    for box in ("b200_sxm", "gb200"):
        without = c._replace(tables={**c.tables, **fits.fit_tables(fit_rows, without=box)})
        parts.append(_residuals(rows.where((rows.box == box) & (rows.group_size < 8)), without))
    return tuple(np.concatenate(p) for p in zip(*parts, strict=True))  # type: ignore[return-value]


def _errors(rows: Rows, fit_rows: Rows, c: Coefficients) -> dict[str, Any]:
    # Vidur's and ml-engineering's clocks include the host
    clean = np.array([str(x).startswith(("aiconfigurator", "vtrain")) for x in rows.source], dtype=bool)
    _, ratio, cls, lib, _ = _residuals(rows.where(rows.is_check & clean), c)
    mape = {
        f"check {name} {which}": float(np.mean(np.abs(np.exp(-ratio[mask]) - 1)))
        for name in sorted(set(cls))
        for which, of_library in (("nccl", lib == "nccl"), ("engine", lib != "nccl"))
        if (mask := (cls == name) & of_library).any()
    }
    _, ratio, _, lib, _ = _left_out(rows, fit_rows, c)
    mape["B200 and GB200 without themselves, nccl"] = float(np.mean(np.abs(np.exp(-ratio[lib == "nccl"]) - 1)))
    mape["B200 and GB200 without themselves, engine"] = float(np.mean(np.abs(np.exp(-ratio[lib != "nccl"]) - 1)))
    return mape
