"""Reads the measured collective tables into one set of columns, and selects the held-out rows."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.tables import read_columns
from gpuwise.predict.kernels.kernel_time import F64
from gpuwise.units import GIGA, MICRO, MILLI

I64 = NDArray[np.int64]
Text = NDArray[np.object_]
ELEMENT_BYTES = {"half": 2, "bfloat16": 2, "int8": 1}
CHECK_SHARE = 0.3
WHOLLY_CHECK = ("ml-engineering", "vidur all_reduce", "vidur send_recv pairs", "vtrain A100")
"""Sources that nothing is fitted on."""


@dataclass(frozen=True, slots=True)
class Rows:
    """[R] columns. A sweep over sizes is fitted or held out as a whole; sweeps of one ``cell`` measure the same thing."""

    source: Text
    gpu: Text
    box: Text
    """Key of the system it ran on, see :mod:`gpuwise.calibrate.collectives.score`."""
    op: Text
    library: Text
    eager: NDArray[np.bool_]
    group_size: I64
    ranks_per_system: I64
    payload_bytes: F64
    element_bytes: I64
    seconds: F64
    cell: Text
    sweep: Text

    def __len__(self) -> int:
        return len(self.seconds)

    def where(self, mask: NDArray[Any]) -> Rows:
        return Rows(*(getattr(self, f.name)[mask] for f in fields(self)))

    @staticmethod
    def concatenate(parts: list[Rows]) -> Rows:
        return Rows(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Rows)))

    @property
    def is_check(self) -> NDArray[np.bool_]:
        """Held-out sweeps, and whole sources that are never fitted.

        Of the ``k`` sweeps of one cell (box, library, operation, group size: versions and dtypes of one thing) ``int(0.3 k +
        0.4)`` are held out, those with the lowest name hashes, so every cell has at least one to fit.
        """
        check_sweeps: set[tuple[str, str]] = set()
        cells: dict[str, set[str]] = {}
        for cell, sweep in zip(self.cell, self.sweep, strict=True):
            cells.setdefault(cell, set()).add(sweep)
        for cell, sweeps in cells.items():
            ordered = sorted(sweeps, key=lambda s: zlib.crc32(s.encode()))
            check_sweeps |= {(cell, s) for s in ordered[: int(CHECK_SHARE * len(ordered) + 0.4)]}
        chosen = np.array([pair in check_sweeps for pair in zip(self.cell, self.sweep, strict=True)], dtype=bool)
        return chosen | np.isin(self.source, WHOLLY_CHECK)


def read_rows(folder: Path) -> Rows | None:
    """Every collective measurement in ``folder``; None without any."""
    parts = [p for p in (_aiconfigurator(folder), _vtrain(folder), _vidur(folder), _ml_engineering(folder)) if p]
    return Rows.concatenate(parts) if parts else None


def _first(folder: Path, name: str, kinds: dict[str, str]) -> dict[str, NDArray[Any]] | None:
    for place in (folder / "ops" / name, folder / name):
        columns = read_columns(place, kinds, kinds)
        if columns is not None:
            return columns
    return None


def _text(values: list[str]) -> Text:
    return np.array(values, dtype=object)


def _aiconfigurator(folder: Path) -> Rows | None:
    """NCCL, oneCCL and serving engines' all-reduce on one node; ``message_size`` counts elements."""
    names = ("gpu", "table", "lib", "ver", "op_name", "kernel_source", "dtype")
    c = _first(
        folder,
        "collectives.parquet",
        dict.fromkeys(names, "str") | {"num_gpus": "int", "message_size": "int", "latency_ms": "float"},
    )
    if c is None:
        return None
    element = np.array([ELEMENT_BYTES.get(d, 2) for d in c["dtype"]])
    eager = np.array(["eager" in k for k in c["kernel_source"]])
    kind = {"nccl_perf": "nccl", "oneccl_perf": "oneccl"}
    source = ["aiconfigurator " + kind.get(t, "engine eager" if e else "engine") for t, e in zip(c["table"], eager, strict=True)]
    named = zip(c["table"], c["lib"], c["ver"], c["kernel_source"], strict=True)
    library = ["trtllm" if k == "TRTLLM" else _library(t, lib, v) for t, lib, v, k in named]
    where = zip(c["gpu"], c["lib"], c["ver"], strict=True)
    box = ["l40s peer" if g == "l40s" and _peer_box(lib, v) else g for g, lib, v in where]
    n = c["num_gpus"]
    sweep = [f"{v} {k} {d}" for v, k, d in zip(c["ver"], c["kernel_source"], c["dtype"], strict=True)]
    sums = np.isin(c["op_name"], ("all_reduce", "reduce_scatter")) * element
    cell = [" ".join(map(str, x)) for x in zip(box, library, eager, c["op_name"], n, sums, strict=True)]
    return Rows(
        _text(source),
        c["gpu"],
        _text(box),
        _text([o.replace("alltoall", "all_to_all") for o in c["op_name"]]),
        _text(library),
        eager,
        n,
        n,
        c["message_size"] * element.astype(float),
        element,
        c["latency_ms"] * MILLI,
        _text(cell),
        _text(sweep),
    )


def _peer_box(lib: str, ver: str) -> bool:
    """The L40S sweep of SGLang 0.5.12 ran on another machine than the rest: 8 cards reach 21 GB/s there, 1.4
    elsewhere."""
    return lib == "sglang" and ver == "0.5.12"


def _library(table: str, lib: str, ver: str) -> str:
    if table in ("nccl_perf", "oneccl_perf"):
        return "nccl"
    digits = tuple(int(x) for x in ver.split(".")[:3] if x.isdigit())
    return "sglang-0.5.10" if lib == "sglang" and digits < (0, 5, 12) else lib


def _vtrain(folder: Path) -> Rows | None:
    """NCCL all-reduce, 1 MiB to 1 GiB in steps of 1 MiB; the median of in and out of place."""
    c = _first(
        folder,
        "vtrain_allreduce.csv",
        {
            "gpu": "str",
            "n_gpus": "int",
            "bytes": "float",
            "time_us_out_of_place": "float",
            "time_us_in_place": "float",
        },
    )
    if c is None:
        return None
    n, rows = c["n_gpus"], len(c["bytes"])
    seconds = np.sqrt(c["time_us_out_of_place"] * c["time_us_in_place"]) * MICRO
    return _plain(
        [f"vtrain {g}" for g in c["gpu"]],
        c["gpu"],
        [f"vtrain {g}" for g in c["gpu"]],
        ["all_reduce"] * rows,
        n,
        n,
        c["bytes"],
        seconds,
    )


def _vidur(folder: Path) -> Rows | None:
    """Kernel times of torch collectives, without the H100 pair's messages, which repeat the A100 pair's to the digit."""
    c = _first(
        folder,
        "vidur_network.csv",
        {
            "topology": "str",
            "collective": "str",
            "num_workers": "int",
            "devices_per_node": "int",
            "size": "float",
            "median_ms": "float",
        },
    )
    if c is None:
        return None
    usable = ~((c["topology"] == "h100_pairwise_nvlink") & (c["collective"] == "send_recv"))
    c = {name: column[usable] for name, column in c.items()}
    gpu = [t.split("_")[0] for t in c["topology"]]
    ranks = np.minimum(c["devices_per_node"], c["num_workers"])
    fitted = np.isin(c["topology"], ("h100_dgx", "a100_dgx", "a100_pairwise_nvlink"))
    source = [
        "vidur " + (o if o != "send_recv" or f else "send_recv pairs") for o, f in zip(c["collective"], fitted, strict=True)
    ]
    return _plain(
        source,
        _text(gpu),
        list(c["topology"]),
        list(c["collective"]),
        c["num_workers"],
        ranks,
        c["size"],
        c["median_ms"] * MILLI,
    )


def _ml_engineering(folder: Path) -> Rows | None:
    """torch.distributed all-reduce bus bandwidth, 1 and 4 nodes."""
    c = _first(folder, "mle_allreduce.csv", {"topology": "str", "bytes": "float", "busbw_GBps": "float"})
    if c is None:
        return None
    nodes = np.array([4 if t.startswith("4x") else 1 for t in c["topology"]])
    n = 8 * nodes
    seconds = c["bytes"] * 2 * (n - 1) / n / (np.maximum(c["busbw_GBps"], 0.005) * GIGA)
    gpu = [t.split("x")[-1].split()[0].lower() for t in c["topology"]]
    return _plain(
        ["ml-engineering"] * len(n),
        _text(gpu),
        list(c["topology"]),
        ["all_reduce"] * len(n),
        n,
        np.full(len(n), 8),
        c["bytes"],
        seconds,
    )


def _plain(source: list[str], gpu: Text, box: list[str], op: list[str], n: I64, ranks: I64, size: F64, seconds: F64) -> Rows:
    """NCCL rows of half precision, one sweep to a cell."""
    rows = len(size)
    cell = [" ".join(map(str, x)) for x in zip(source, box, op, n, ranks, strict=True)]
    return Rows(
        _text(source),
        gpu,
        _text(box),
        _text(op),
        _text(["nccl"] * rows),
        np.zeros(rows, dtype=bool),
        n.astype(np.int64),
        ranks.astype(np.int64),
        size,
        np.full(rows, 2),
        seconds,
        _text(cell),
        _text([""] * rows),
    )
