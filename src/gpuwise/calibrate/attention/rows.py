# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Measured attention kernels: aiconfigurator's prefill and decode tables as columns, grouped by device and
kernel.

One row is one call of one serving engine's kernel, timed in a CUDA graph (no launch cost). ``step`` is the
length of the key-value cache before the decoded token. A window of 0 or none is full attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.tables import check_table
from gpuwise.errors import DataError, require
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels.attention.features import Shape
from gpuwise.predict.kernels.attention.specified import attention_flop

F64 = NDArray[np.float64]

FILES = {"forward": "attention_prefill.parquet", "decode": "attention_decode.parquet"}
SOURCES = {"forward": "aiconfigurator prefill", "decode": "aiconfigurator decode"}
ACCELERATORS = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-blackwell-server",
    "b60": "arc-pro-b60",
}
"""Names of the tables' devices in the catalogue."""
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8"}
_LABELS = ("gpu", "backend", "kernel_source", "attn_dtype", "kv_cache_dtype")
_NUMBERS = (
    "batch_size",
    "isl",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "window_size",
    "step",
    "latency_ms",
)
_CHECK_SHARE = 8
"""One whole shape site (heads, key-value heads, head size, window) in this many is held out of the fit."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of R rows. ``group`` [R] numbers the distinct (gpu, engine, kernel, dtype, kv dtype) of
    ``groups``."""

    phase: str
    shape: Shape
    seconds: F64
    group: NDArray[np.int64]
    groups: list[tuple[str, str, str, str, str]]

    def parts(self) -> Iterator[tuple[tuple[str, str, str, str, str], NDArray[np.intp]]]:
        """Each group's labels and its rows' positions."""
        order = np.argsort(self.group, kind="stable")
        bounds = np.searchsorted(self.group[order], np.arange(len(self.groups) + 1))
        for i, labels in enumerate(self.groups):
            yield labels, order[bounds[i] : bounds[i + 1]]

    def rows(self, where: NDArray[np.intp]) -> Shape:
        """The calls at ``where``."""
        return Shape(*(c[where] for c in self.shape))


def read_table(folder: Path, phase: str) -> Table | None:
    """The table of ``phase`` under ``folder/ops``; None when it is not there. Raises DataError when it cannot
    be read."""
    path = folder / "ops" / FILES[phase]
    if not path.exists():
        return None
    require("pyarrow", f"reading {path.name}")
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(check_table(path), columns=[*_LABELS, *_NUMBERS])
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError, KeyError) as error:
        raise DataError(f"{path}: {error}", hint="is it laid out like the published measurement tables?") from None
    number = {n: np.nan_to_num(_numbers(table.column(n)), nan=0.0) for n in _NUMBERS}
    group, groups = _grouped(table)
    q_len = np.ones_like(number["isl"]) if phase == "decode" else number["isl"]
    kv_len = number["step"] + (1.0 if phase == "decode" else number["isl"])
    shape = Shape(
        number["batch_size"],
        q_len,
        kv_len,
        number["num_heads"],
        number["num_key_value_heads"],
        number["head_dim"],
        number["head_dim"],
        number["window_size"],
    )
    return Table(phase, shape, number["latency_ms"] * 1e-3, group, groups)


def _numbers(column: Any) -> F64:
    import pyarrow as pa

    return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _grouped(table: Any) -> tuple[NDArray[np.int64], list[tuple[str, str, str, str, str]]]:
    codes: list[NDArray[np.int64]] = []
    names: list[list[str]] = []
    for label in _LABELS:
        column = table.column(label).combine_chunks()
        encoded = column if hasattr(column, "dictionary") else column.dictionary_encode()
        codes.append(np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64))
        names.append([str(x) for x in encoded.dictionary.to_pylist()])
    sizes = [len(n) for n in names]
    joined = np.ravel_multi_index(tuple(codes), sizes)
    distinct, group = np.unique(joined, return_inverse=True)
    parts = np.unravel_index(distinct, sizes)
    groups = [tuple(names[j][int(parts[j][i])] for j in range(len(_LABELS))) for i in range(len(distinct))]
    return group, groups  # type: ignore[return-value]


def is_check_site(shape: Shape) -> NDArray[np.bool_]:
    """Whether a row's site (heads, key-value heads, head size, window) is held out of the fit."""
    mixed = shape.heads * 1000003 + shape.kv_heads * 10007 + shape.head_dim * 101 + shape.window * 13
    return (mixed.astype(np.int64) * 2654435761 >> 16) % _CHECK_SHARE == 0


def find(name: str) -> Accelerator | None:
    """The catalogue's entry for a table's device name; None without one."""
    from gpuwise.facts.hardware.accelerators import accelerators

    return accelerators().get(ACCELERATORS.get(name, name))


def ideal_seconds(accelerator: Accelerator, shape: Shape, dtype: str, kv_dtype: str) -> tuple[F64, F64]:
    """[R] arithmetic at the specified rate, and compulsory bytes at the specified bandwidth."""
    b, q, kv, h, g, d, dv, w = shape
    flop = attention_flop(b, q, kv, h, d, dv, True, w)
    attended = np.where(w > 0, np.minimum(kv, w + q), kv)
    moved = b * q * h * (d + dv) * 2.0 + b * attended * g * (d + dv) * (1.0 if kv_dtype == "fp8" else 2.0)
    return flop / accelerator.peak(dtype), moved / accelerator.memory_bandwidth_bytes_per_s
