"""Measured fused expert layers as columns, split by whole layer shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.gemm.rows import DTYPES, Words, part_of, read_coded, site_hash
from gpuwise.predict.kernels.experts.coefficients import Coefficients
from gpuwise.predict.kernels.experts.grouped import evaluate
from gpuwise.predict.kernels.experts.loads import Distribution, Loads, loads_of
from gpuwise.predict.kernels.experts.physics import Format
from gpuwise.predict.kernels.gemm.physics import Device
from gpuwise.units import MILLI

F64 = NDArray[np.float64]

NOT_GATED = {
    (1024, 2688, 22, 512),
    (2048, 5120, 22, 512),
    (4096, 2688, 22, 512),
    (8192, 5120, 22, 512),
    (2688, 1856, 6, 128),
}
"""(hidden, ffn, top_k, experts) of Nemotron-3 models: squared-ReLU experts with two matrices instead of
three."""
GROUP_LIMITED = (7168, 2048, 8, 256)
"""DeepSeek-V3 and R1: a token chooses 8 experts within 4 of 8 groups (``topk_group``, ``n_group`` of its
config)."""
OLD = "0.5.10"
"""SGLang of this version was measured with plain gated experts and routing throughout."""


@dataclass(frozen=True, slots=True)
class MoeRows:
    """Columns [R]; ``time_s`` as measured; ``ffn`` of the whole layer."""

    gpu: Words
    version: Words
    kernel: Words
    dtype: Words
    distribution: Words
    tokens: F64
    hidden: F64
    ffn: F64
    top_k: F64
    experts: F64
    tp: F64
    ep: F64
    time_s: F64

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> MoeRows:
        return MoeRows(*(getattr(self, f)[index] for f in self.__slots__))

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def part(self) -> NDArray[np.int64]:
        """FIT, INTERVAL or CHECK, by layer shape (hidden, ffn, top_k, experts)."""
        return part_of(site_hash(*(c.astype(np.int64) for c in (self.hidden, self.ffn, self.top_k, self.experts))))

    def _is_site(self, site: tuple[int, int, int, int]) -> NDArray[np.bool_]:
        h, f, t, e = site
        return (self.hidden == h) & (self.ffn == f) & (self.top_k == t) & (self.experts == e)

    @property
    def wide(self) -> F64:
        """2 where experts are gated, else 1."""
        plain = np.zeros(len(self), dtype=bool)
        for site in NOT_GATED:
            plain |= self._is_site(site)
        return np.where(plain & ~(self.version == OLD), 1.0, 2.0)

    @property
    def reachable(self) -> F64:
        """Share of the experts that a balanced batch reaches."""
        limited = self._is_site(GROUP_LIMITED) & (self.distribution == "balanced") & ~(self.version == OLD)
        engine = np.array([v.startswith(("sglang", "vllm")) for v in self.kernel.vocabulary])[self.kernel.code]
        return np.where(limited & engine, 0.5, 1.0)


def read_moe(folder: Path) -> MoeRows | None:
    """``ops/moe.parquet``; None when it is not there. Raises DataError when it cannot be read or lacks a
    column."""
    words = ("gpu", "bver", "kernel_source", "moe_dtype", "distribution")
    numbers = (
        "num_tokens",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_tp_size",
        "moe_ep_size",
        "latency_ms",
    )
    columns = read_coded(folder / "ops" / "moe.parquet", words, numbers)
    if columns is None:
        return None
    text, values = columns
    text["moe_dtype"] = text["moe_dtype"].renamed(DTYPES)
    renamings = {v: "power_law" for v in text["distribution"].vocabulary if v.startswith("power_law")}
    text["distribution"] = text["distribution"].renamed(renamings)
    time = values["latency_ms"] * MILLI
    rows = MoeRows(
        gpu=text["gpu"],
        version=text["bver"],
        kernel=text["kernel_source"],
        dtype=text["moe_dtype"],
        distribution=text["distribution"],
        tokens=values["num_tokens"],
        hidden=values["hidden_size"],
        ffn=values["inter_size"],
        top_k=values["topk"],
        experts=values["num_experts"],
        tp=values["moe_tp_size"],
        ep=values["moe_ep_size"],
        time_s=time,
    )
    return rows.take(np.isfinite(time) & (time > 0))


def loads_of_rows(distribution: Distribution, r: MoeRows) -> Loads:
    """Loads of the measured rank, for rows of one distribution."""
    return loads_of(distribution, r.tokens, r.top_k, r.experts, r.ep, r.reachable)


def predict_rows(c: Coefficients, distribution: Distribution, r: MoeRows) -> F64:
    """Seconds [R] under coefficients ``c``, for rows of one distribution."""
    return evaluate(c, distribution, r.tokens, r.hidden, r.ffn, r.top_k, r.experts, r.tp, r.ep, r.wide, r.reachable)


def roofline_of_rows(device: Device, form: Format, loads: Loads, r: MoeRows) -> F64:
    """Seconds [R] of the routed products at peak rate or full bandwidth, whichever is longer."""
    weights = (r.wide + 1.0) * r.hidden * r.ffn / r.tp
    flop, moved = 2.0 * loads.routed * weights, loads.active * weights * form.weight
    return np.maximum(flop / device.rate_flop_per_s, moved / device.bandwidth_bytes_per_s)
