# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Measured matrix products and fused expert layers as columns, split by whole shape site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.tables import check_table
from gpuwise.errors import DataError, require
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.predict.kernels.gemm.coefficients import build
from gpuwise.predict.kernels.gemm.product import evaluate_as_measured
from gpuwise.units import MILLI

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Strings = NDArray[np.object_]

ACCELERATOR_IDS = {
    "a100_sxm": "a100-sxm-80gb",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "b60": "arc-pro-b60",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100_sxm": "h100-sxm-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-blackwell-server",
}
"""The table's names of the measured devices (its ``device`` column has form and memory)."""
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8_static": "fp8"}
"""The table's names of formats that differ from ours."""
IMPLEMENTATION_OF = {("int8_wo", "sglang"): "int8_wo_sglang"}
"""(format, kernel source) of the table, where another implementation than the format's own was measured."""
FIT, INTERVAL, CHECK = 0, 1, 2
"""Use of a site: for coefficients, for the width of intervals, or only for checking."""


def part_of(site: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Four sites in five fit coefficients; of the others half set the intervals and half check both."""
    held_out = site % np.uint64(5) == 0
    half = (site >> np.uint64(_HALF_BIT)) & np.uint64(1) == 1
    return np.where(held_out, np.where(half, CHECK, INTERVAL), FIT)


_HALF_BIT = 8


@dataclass(frozen=True, slots=True)
class Words:
    """A text column [R] as codes into its vocabulary."""

    code: NDArray[np.int32]
    vocabulary: Strings

    def __getitem__(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> Words:
        return Words(self.code[index], self.vocabulary)

    def __eq__(self, word: object) -> NDArray[np.bool_]:  # type: ignore[override]
        return (self.vocabulary == word)[self.code]

    __hash__ = None  # type: ignore[assignment]

    def distinct(self) -> list[str]:
        """Words that occur, sorted."""
        return sorted({str(self.vocabulary[c]) for c in np.unique(self.code)})

    def text(self) -> Strings:
        return self.vocabulary[self.code]

    def renamed(self, names: dict[str, str]) -> Words:
        return Words(self.code, np.array([names.get(v, v) for v in self.vocabulary], dtype=object))


@dataclass(frozen=True, slots=True)
class GemmRows:
    """Columns [R]; ``time_s`` as measured. ``implementation``: a key of ``IMPLEMENTATIONS``, by format and kernel source."""

    gpu: Words
    kernel: Words
    dtype: Words
    implementation: Words
    m: F64
    n: F64
    k: F64
    time_s: F64

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> GemmRows:
        return GemmRows(*(getattr(self, f)[index] for f in self.__slots__))

    def __len__(self) -> int:
        return int(self.m.shape[0])

    @property
    def part(self) -> NDArray[np.int64]:
        """FIT, INTERVAL or CHECK, by weight shape (n, k)."""
        return part_of(site_hash(self.n.astype(np.int64), self.k.astype(np.int64)))


def site_hash(*columns: I64) -> NDArray[np.uint64]:
    """A mixed 32-bit hash of each row of integer columns: decides its side of the split, independent of the rest of the table."""
    h = np.full(columns[0].shape, 2166136261, dtype=np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    for column in columns:
        h = ((h ^ column.astype(np.uint64)) * np.uint64(2654435761)) & mask
        h ^= h >> np.uint64(15)
        h = (h * np.uint64(2246822519)) & mask
        h ^= h >> np.uint64(13)
    return h


def accelerator_of(gpu: str) -> Accelerator | None:
    """The catalogue entry behind a name in the table; None for one we do not know."""
    return accelerators().get(ACCELERATOR_IDS.get(gpu, gpu))


def settled(gpu: str, rows: GemmRows) -> GemmRows:
    """Rows that speak for the family: without GB200's power dip.

    One GB200 (tray) slows bf16 products of 0.3 to 10 ms by a third and recovers beyond; B200 and long GB200
    runs (MAMF: 1822 TFLOP/s) do not. Only that device's own correction sees those rows.
    """
    return rows.take(~((rows.time_s > 3e-4) & (rows.m > 256))) if gpu == "gb200" else rows


def read_gemm(folder: Path) -> GemmRows | None:
    """``ops/gemm.parquet``; None when it is not there. Raises DataError when it cannot be read or lacks a
    column."""
    path = folder / "ops" / "gemm.parquet"
    columns = read_coded(path, ("gpu", "kernel_source", "dtype"), ("m", "n", "k", "latency_ms"))
    if columns is None:
        return None
    words, numbers = columns
    words["dtype"] = words["dtype"].renamed(DTYPES)
    words["implementation"] = implementations(words["dtype"], words["kernel_source"])
    time = numbers["latency_ms"] * MILLI
    rows = GemmRows(
        gpu=words["gpu"],
        kernel=words["kernel_source"],
        dtype=words["dtype"],
        implementation=words["implementation"],
        m=numbers["m"],
        n=numbers["n"],
        k=numbers["k"],
        time_s=time,
    )
    return rows.take(np.isfinite(time) & (time > 0))


def implementations(dtype: Words, kernel: Words) -> Words:
    """The implementation of each row: its format's, but for the kernel sources of :data:`IMPLEMENTATION_OF`."""
    vocabulary = [*dtype.vocabulary, *IMPLEMENTATION_OF.values()]
    code = dtype.code.copy()
    for place, (form, source) in enumerate(IMPLEMENTATION_OF):
        code[(dtype == form) & (kernel == source)] = len(dtype.vocabulary) + place
    return Words(code, np.array(vocabulary, dtype=object))


def read_coded(path: Path, words: tuple[str, ...], numbers: tuple[str, ...]) -> tuple[dict[str, Words], dict[str, F64]] | None:
    """Columns of a Parquet file, text as codes into a vocabulary (half a million strings are slow). None
    without it."""
    if not path.exists():
        return None
    require("pyarrow", f"reading {path.name}")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(check_table(path), columns=[*words, *numbers])
        coded: dict[str, Words] = {}
        for name in words:
            column = table.column(name).combine_chunks()
            array = column if pa.types.is_dictionary(column.type) else column.cast(pa.string()).dictionary_encode()
            codes = array.indices.fill_null(len(array.dictionary)).to_numpy(zero_copy_only=False)
            vocabulary = [*(str(v) for v in array.dictionary.to_pylist()), ""]
            coded[name] = Words(codes.astype(np.int32), np.array(vocabulary, dtype=object))
        plain = {n: table.column(n).cast(pa.float64(), safe=False).to_numpy() for n in numbers}
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError, KeyError) as error:
        raise DataError(f"{path}: {error}", hint="is it laid out like the published measurement tables?") from None
    return coded, plain


def predict_rows(
    accelerator: Accelerator, key: str, document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], rows: GemmRows
) -> F64:
    """Seconds [R] that the timing loop of each row's kernel would have shown."""
    out = np.empty(len(rows))
    for kernel in rows.kernel.distinct():
        index = np.flatnonzero(rows.kernel == kernel)
        s = build(accelerator, key, document, arrays, kernel)
        part = rows.take(index)
        out[index] = evaluate_as_measured(s, part.m, part.n, part.k, np.ones(len(part)))
    return out
