"""Non-PyTorch memory of a process on a CUDA device: context, loaded kernels, NCCL's buffers.

A context has a stack for every thread that can be resident, so its size grows with the number of streaming multiprocessors:
``context = base + per_unit * units``. Both are fitted by least squares on ``facts/data/hardware/contexts.csv`` (a lazy-loading
table: 20 to 170 units, 82 to 771 MiB), leaving out the predicted device. A device of the table takes the mean of its own rows
(those on CUDA 13 if it has any), and one with the same die and units takes those. On an H100 with CUDA 13 the first kernel leaves
621 MiB, the modules of cuBLAS and attention that a step loads 150 more, fourteen further models together 10. The line is that of
CUDA 11.7 to 12; the growth of other devices has not been measured. Before CUDA 11.7 every kernel of every library was loaded at
the start: that surplus is a constant of the CUDA version, fitted on measured jobs (``coefficients/captured_memory.json``).

The size of an NCCL communicator is in ``facts/data/communicators.csv`` by number of ranks; before CUDA 11.7 it is larger,
fitted on nvidia-smi values of published runs (``coefficients/memory.json``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators, check_accelerator
from gpuwise.facts.loading import Field
from gpuwise.facts.sources import cited_rows
from gpuwise.interval import Z80
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Estimate
from gpuwise.units import MIB

Loading = Literal["lazy", "eager"]
CONTEXT_SCHEMA = {
    "accelerator": Field("text"),
    "loading": Field("text", choices=("lazy", "eager")),
    "state": Field("text", choices=("bare", "running")),
    "mib": Field("number"),
    "software": Field("text", required=False),
    "source": Field("text"),
}
COMMUNICATOR_SCHEMA = {
    "accelerator": Field("text"),
    "what": Field("text"),
    "ranks": Field("integer"),
    "mib": Field("number"),
    "source": Field("text"),
}
CUDA_OF_LARGER_CONTEXTS = 13
FOREIGN_VENDORS = ("AMD", "Intel", "Apple", "Google", "AWS")
"""Vendors whose runtimes also allocate non-PyTorch memory, without published figures."""


@dataclass(frozen=True, slots=True)
class ContextRow:
    """One measurement of ``facts/data/hardware/contexts.csv``."""

    accelerator: Accelerator
    loading: str
    running: bool
    size_bytes: float
    cuda: int
    """Major version of CUDA that the row names; 0 where it names none."""
    source: str


@cache
def context_rows() -> tuple[ContextRow, ...]:
    """The measured contexts. Raises FieldError on an unknown accelerator or source."""
    rows: list[ContextRow] = []
    for record in cited_rows("contexts.csv", CONTEXT_SCHEMA):
        check_accelerator(record)
        rows.append(
            ContextRow(
                accelerators()[record.text("accelerator")],
                record.text("loading"),
                record.text("state") == "running",
                record.number("mib") * MIB,
                _cuda_version(record.text("software")),
                record.text("source"),
            )
        )
    return tuple(rows)


def _cuda_version(software: str) -> int:
    named = re.search(r"CUDA (\d+)", software)
    return int(named[1]) if named else 0


def _running() -> list[ContextRow]:
    """Contexts of running jobs under lazy loading."""
    return [r for r in context_rows() if r.loading == "lazy" and r.running]


def _newest(rows: Iterable[ContextRow]) -> list[float]:
    """Sizes of the rows on CUDA 13, or of all rows if there are none."""
    each = list(rows)
    return [r.size_bytes for r in each if r.cuda >= CUDA_OF_LARGER_CONTEXTS] or [r.size_bytes for r in each]


def _same_chip(one: Accelerator, other: Accelerator) -> bool:
    """Boards with the same die, enabled alike: an A100 of 40 and of 80 GB."""
    return one.family == other.family and one.compute_units == other.compute_units is not None


@cache
def _line(leave_out: str) -> tuple[float, float, float]:
    """Base bytes, bytes per unit and the residuals' standard deviation, without device ``leave_out``."""
    rows = [r for r in _running() if r.accelerator.id != leave_out and r.cuda < CUDA_OF_LARGER_CONTEXTS]
    units = np.array([r.accelerator.compute_units or 0 for r in rows], dtype=np.float64)
    size = np.array([r.size_bytes for r in rows])
    design = np.column_stack([np.ones_like(units), units])
    solution = np.linalg.lstsq(design, size, rcond=None)[0]
    residual = size - design @ solution
    return float(solution[0]), float(solution[1]), float(np.sqrt(residual @ residual / (len(rows) - 2)))


def context_bytes(accelerator: Accelerator, loading: Loading = "lazy", *, cudnn: bool = True) -> float:
    """The expected bytes of :func:`process_context`."""
    return process_context(accelerator, loading, cudnn=cudnn).expected


@cache
def process_context(accelerator: Accelerator, loading: Loading = "lazy", *, cudnn: bool = True) -> Estimate:
    """:func:`context_estimate`; for a vendor without published contexts the NVIDIA line by units, as an extrapolation."""
    try:
        return context_estimate(accelerator, loading, cudnn=cudnn)
    except UnpredictableError:
        stand_in = context_estimate(replace(accelerator, id="", vendor="NVIDIA"), loading, cudnn=cudnn)
        return Estimate(0.0, stand_in.expected, 2.0 * stand_in.expected, "extrapolated")


def context_estimate(accelerator: Accelerator, loading: Loading = "lazy", *, cudnn: bool = True) -> Estimate:
    """Bytes of the CUDA context of a running torch job on ``accelerator``; ``cudnn``: the job runs cuDNN operations; under eager
    loading the first one loads all of cuDNN's kernels.

    Raises UnpredictableError for a vendor without published contexts.
    """
    if loading not in ("lazy", "eager"):
        raise InputError(f"module loading is {loading!r}", hint="'lazy' (CUDA 11.7 and newer) or 'eager'")
    if accelerator.vendor in FOREIGN_VENDORS:
        raise UnpredictableError(
            "context not measured",
            f"no measurement of non-PyTorch memory on {accelerator.name}",
            hint="allocated and reserved are predicted; add your own figure for the runtime",
        )
    measured_bytes = _newest(r for r in _running() if r.accelerator.id == accelerator.id)
    base, per_unit, sigma = _line(accelerator.id)
    same_chip = _newest(r for r in _running() if _same_chip(r.accelerator, accelerator))
    if measured_bytes:
        expected, basis = float(np.mean(measured_bytes)), "measured"
        sigma = max(sigma / math.sqrt(len(measured_bytes)), 0.01 * 2**30 / math.sqrt(len(measured_bytes)))
    elif same_chip:
        expected, basis = float(np.mean(same_chip)), "derived"
    elif accelerator.compute_units:
        expected, basis = base + per_unit * accelerator.compute_units, "derived"
    else:
        sizes = [r.size_bytes for r in _running()]
        expected, basis, sigma = float(median(sizes)), "extrapolated", float(np.std(sizes))
    if loading == "eager":
        surplus = load_json("captured_memory")["eager_modules"]
        expected += float(surplus["bytes"]) + (float(surplus["cudnn_bytes"]) if cudnn else 0.0)
        sigma, basis = math.hypot(sigma, float(surplus["sigma_bytes"])), "fitted"
    spread = Z80 * sigma
    return Estimate(max(0.0, expected - spread), expected, expected + spread, basis)


@cache
def _communicator_sizes() -> tuple[tuple[int, float], ...]:
    """Ranks and bytes of one communicator that has run no all-to-all."""
    sizes: list[tuple[int, float]] = []
    for record in cited_rows("communicators.csv", COMMUNICATOR_SCHEMA):
        if "after" not in record.text("what"):
            sizes.append((record.integer("ranks"), record.number("mib") * MIB))
    return tuple(sorted(sizes))


def communicator_bytes(ranks: ArrayLike, loading: Loading = "lazy") -> NDArray[np.float64]:
    """Bytes of one NCCL communicator of ``ranks`` ranks, in the shape of ``ranks``; 0 for one rank alone.

    The nearest measured number of ranks at or below, the smallest above. Raises InputError for a group without ranks.
    """
    size = np.asarray(ranks, np.int64)
    if (size < 1).any():
        raise InputError(f"a group of {int(size.min())} ranks", hint="groups have at least one rank")
    if loading == "eager":
        each = np.full(size.shape, float(load_json("memory")["communicator_bytes"]["eager"]))
    else:
        measured_ranks, measured_bytes = (np.array(column) for column in zip(*_communicator_sizes(), strict=True))
        each = measured_bytes[np.maximum(np.searchsorted(measured_ranks, size, side="right") - 1, 0)]
    return np.where(size > 1, each, 0.0)


def communicators_estimate(group_sizes: Iterable[int]) -> Estimate:
    """Bytes of NCCL's buffers, one communicator (:func:`communicator_bytes`) for each group of more than one rank.

    +- 50 %, for NCCL's buffers follow its channels, which follow the links. What an all-to-all adds is not in it.
    """
    total = float(communicator_bytes(list(group_sizes)).sum())
    return Estimate(0.5 * total, total, 1.5 * total, "derived" if total else "measured")
