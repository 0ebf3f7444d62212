"""Fits one measured attention kernel: a network and trees over its rows, on one device or from a relative.

Every kernel is fitted on the fit sites of its devices; kernels of a family with two measured devices once more from
one of them, to see how far a sibling is off; kernels that two families share from one family on the other, to see
how far a relative is off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.attention.rows import ACCELERATORS, DTYPES, Table, is_check_site
from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.predict.kernels.attention.features import (
    AttentionWork,
    Device,
    Shape,
    decode_work,
    exp_per_clock,
    forward_work,
    free_features,
    tree_features,
)
from gpuwise.predict.kernels.attention.net import Trees, bins, network_seconds, trees_log, unpack
from gpuwise.predict.kernels.clock import sustained_fraction
from studies.attention.choices import MEASURED, TORCH_FLOW
from studies.attention.fit import Fit, Rows, fit_network, fit_trees
from studies.spreads import log_sigma_of

F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

BOUNDS = {"forward": (1.0, 4.0), "decode": (1.03, 1.3)}
"""Memory factor: passes over queries, keys, values and outputs (an engine also writes its cache and
quantises); for decode the inverse of the share of the specified bandwidth that a read reaches (0.77 to
0.97)."""
IMAGINED: dict[str, tuple[tuple[float, float], ...]] = {
    "forward": ((1.6, 1.0), (0.65, 1.0), (1.0, 1.5), (1.0, 0.7)),
    "decode": ((1.0, 1.5), (1.0, 0.7)),
}
"""(compute rate, bandwidth) of the devices the fit imagines, relative to the measured one."""
_LONG_S = 3e-4
LIMITS_US = (20.0, 100.0)
"""Boundaries of the durations that have their own interval."""
SHARED = (("vllm:vllm_flash_attn", "vllm:vllm_flash_attn_fa2"), (TORCH_FLOW, TORCH_FLOW))
"""Kernels that Ampere-GA100 and Ada share: what a transfer between related families is judged by."""
MIN_ROWS_FOR_SIBLING = 20_000


@dataclass(frozen=True, slots=True)
class Data:
    """Rows of one kernel on all its measured devices. ``key``: family, engine:kernel, dtype, kv dtype."""

    phase: str
    key: tuple[str, str, str, str]
    shape: Shape
    seconds: F64
    gpu: NDArray[np.int64]
    check: Bools

    @property
    def name(self) -> str:
        """Key of the coefficients."""
        family, source, dtype, kv = self.key
        return "|".join((family, *source.split(":"), dtype, kv))

    def rows(self, where: Bools) -> Data:
        """Only the rows ``where``."""
        shape = Shape(*(c[where] for c in self.shape))
        return Data(self.phase, self.key, shape, self.seconds[where], self.gpu[where], self.check[where])


@dataclass(frozen=True, slots=True)
class KernelCoefficients:
    """One kernel's coefficients."""

    network: NDArray[np.float32]
    trees: Trees


def family_devices() -> dict[str, list[Accelerator]]:
    """Measured devices by family."""
    by_family: dict[str, list[Accelerator]] = {}
    for identity in MEASURED:
        accelerator = accelerators()[identity]
        by_family.setdefault(accelerator.family, []).append(accelerator)
    return by_family


def device_of(accelerator: Accelerator, dtype: str, relative_to: Accelerator | None = None) -> Device:
    """The device as its kernels' features see it; at its sustained clock relative to another where one is
    given."""
    units, clock = accelerator.compute_units, accelerator.boost_hz
    if units is None or clock is None:
        raise DataError(f"{accelerator.id} has no units or clock in the catalogue")
    device = Device(
        float(units),
        clock,
        accelerator.peak(dtype),
        exp_per_clock(accelerator.compute_capability),
        accelerator.memory_bandwidth_bytes_per_s,
        accelerator.l2_bytes or 0.0,
    )
    if relative_to is None:
        return device
    return device.at_matrix_rate(float(sustained_fraction(accelerator, 1.0, dtype) / sustained_fraction(relative_to, 1.0, dtype)))


def gather(tables: dict[str, Table]) -> dict[tuple[str, ...], Data]:
    """Rows of the measured devices by (phase, family, source, dtype, kv dtype)."""
    devices = family_devices()
    number = {a.id: i for group in devices.values() for i, a in enumerate(group)}
    pieces: dict[tuple[str, ...], list[tuple[int, str, NDArray[np.intp]]]] = {}
    for phase, table in tables.items():
        for (gpu, engine, kernel, dtype, kv), where in table.parts():
            identity = ACCELERATORS.get(gpu, gpu)
            if identity not in number or not len(where):
                continue
            key = (phase, accelerators()[identity].family, f"{engine}:{kernel}", DTYPES[dtype], DTYPES[kv])
            pieces.setdefault(key, []).append((number[identity], phase, where))
    data: dict[tuple[str, ...], Data] = {}
    for key in sorted(pieces):
        table = tables[key[0]]
        where = np.concatenate([w for _, _, w in pieces[key]])
        gpu = np.concatenate([np.full(len(w), i, np.int64) for i, _, w in pieces[key]])
        shape = table.rows(where)
        data[key] = Data(key[0], (key[1], key[2], key[3], key[4]), shape, table.seconds[where], gpu, is_check_site(shape))
    return data


def work_of(data: Data, devices: list[Device]) -> tuple[AttentionWork, F64]:
    """(work, free features) with ``devices`` by the rows' device number."""
    kv_bytes = 1.0 if data.key[3] == "fp8" else 2.0
    n = len(data.seconds)
    columns: list[F64] | None = None
    for i, device in enumerate(devices):
        mine = data.gpu == i
        if not mine.any():
            continue
        shape = Shape(*(c[mine] for c in data.shape))
        work = (
            decode_work(device, shape, kv_bytes, 2.0)
            if data.phase == "decode"
            else forward_work(device, shape, kv_bytes, 2.0, causal=True)
        )
        if columns is None:
            columns = [np.zeros((n, *c.shape[1:])) for c in work]
        for whole, part in zip(columns, work, strict=True):
            whole[mine] = part
    assert columns is not None
    return AttentionWork(*columns), free_features(data.shape)


def tree_codes(data: Data, edges: list[F64], gpu: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Bins of the trees' features."""
    values = tree_features(data.shape, 0.0)
    values[:, -1] = gpu
    return bins(values, edges)


def tree_edges(datas: list[Data]) -> list[F64]:
    """Bin edges of a phase: midpoints between the values seen, at most 63 a feature."""
    values = np.concatenate([tree_features(d.shape, 0.0) for d in datas])
    edges: list[F64] = []
    for j in range(values.shape[1] - 1):
        distinct = np.unique(values[:, j])
        middle = (distinct[1:] + distinct[:-1]) / 2
        if len(middle) > 63:
            middle = np.unique(np.quantile(distinct, np.linspace(0, 1, 65)[1:-1]) + 1e-9)
        edges.append(middle)
    return [*edges, np.array([0.5])]


def fit_kernel(data: Data, devices: list[Device], edges: list[F64], seed: int) -> KernelCoefficients:
    """Network and trees of one kernel from all rows of ``data``."""
    work, free = work_of(data, devices)
    low, high = BOUNDS[data.phase]
    flat = fit_network(Rows(work, free, data.seconds), Fit(low, high, seed=seed), imagine(data, devices, work, free))
    smooth = network_seconds(unpack(flat, work.features.shape[1]), work, free)
    n = len(data.seconds)
    count = 48 if n >= 8000 else 24 if n >= 2500 else 12
    trees = fit_trees(tree_codes(data, edges, data.gpu), np.log(data.seconds / smooth), count, rate=0.3)
    return KernelCoefficients(flat, trees)


def imagine(data: Data, devices: list[Device], work: AttentionWork, free: F64) -> Rows:
    """The rows on devices with other rates: what physics says a measurement would have been there.

    One device cannot tell whether a call is long for its arithmetic, its bytes or its length. Physics can:
    with ``s`` the best share of the rates any long call of this kernel and head size reached, the arithmetic
    of a call took ``tiles / s`` of its time (never more than all of it), and that part shrinks with the rate;
    the same for bytes and bandwidth.
    """
    parts: list[tuple[AttentionWork, F64]] = []
    computing = _part(work.tiles_s, data.seconds, data.shape.head_dim)
    fetching = _part(work.memory_s, data.seconds, np.zeros(len(data.seconds)))
    for compute, bandwidth in IMAGINED[data.phase]:
        there, _ = work_of(data, [d.imagined(compute, bandwidth) for d in devices])
        less = computing * (1.0 - there.tiles_s / np.maximum(work.tiles_s, 1e-30)) if work.tiles_s.any() else 0.0
        less = less + fetching * (1.0 - 1.0 / bandwidth)
        parts.append((there, np.maximum(data.seconds - less, 0.1 * data.seconds)))
    joined = AttentionWork(*(np.concatenate([w[i] for w, _ in parts]) for i in range(len(work))))
    return Rows(joined, np.concatenate([free] * len(parts)), np.concatenate([t for _, t in parts]))


def _part(ideal: F64, seconds: F64, group: F64) -> F64:
    """[R] seconds of each row a resource took: ideal over the best share reached by the long rows of its
    group."""
    share = ideal / seconds
    part_s = np.zeros_like(ideal)
    for value in np.unique(group):
        mine = group == value
        long = mine & (seconds >= min(_LONG_S, float(np.quantile(seconds[mine], 0.9))))
        best = min(max(float(np.quantile(share[long], 0.95)), 0.05), 1.0)
        part_s[mine] = np.minimum(ideal[mine] / best, 0.98 * seconds[mine])
    return part_s


def evaluate(
    fitted: KernelCoefficients, data: Data, devices: list[Device], edges: list[F64], gpu: NDArray[np.int64]
) -> tuple[F64, F64]:
    """(smooth, measured) seconds of ``data``; ``gpu`` is the device number the trees are told."""
    work, free = work_of(data, devices)
    smooth = network_seconds(unpack(fitted.network, work.features.shape[1]), work, free)
    return smooth, smooth * np.exp(trees_log(fitted.trees, tree_codes(data, edges, gpu)))


def by_duration(seconds: F64, predicted: F64) -> list[float]:
    """Interval width for each class of duration (of the prediction)."""
    group = np.searchsorted([x * 1e-6 for x in LIMITS_US], predicted)
    whole = log_sigma_of(seconds, predicted)
    widths = [log_sigma_of(seconds[group == i], predicted[group == i]) for i in range(len(LIMITS_US) + 1)]
    return [round(w if np.isfinite(w) else whole, 4) for w in widths]
