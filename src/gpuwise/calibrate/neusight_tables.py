"""The NeuSight tables as arrays: per-operation fp32 times and whole-model times, on catalogue accelerators.

Traps: in the per-operation table ``n`` is the reduction and ``k`` the output width of a product (its names are the study's
own), columns of other operations are empty, ``latency`` includes the cost of two CUDA events and, for short kernels, of
the host. Source: github.com/sitar-lab/NeuSight (MIT); Lee, Phanishayee, Mahajan, ASPLOS 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.facts.accelerators import Accelerator
from gpuwise.facts.naming import find_accelerator

F64 = NDArray[np.float64]
OPS_FILE = "ops/neusight_fp32.parquet"
MODELS_FILE = "models/neusight_e2e.csv"
FIT_GPUS = frozenset({"a100-pcie-40gb", "v100-pcie-32gb", "mi210"})
"""GPUs whose whole-model rows were looked at while the op lists were written; every other GPU checks."""
UNARY = ("addu", "mulu", "divu", "powu", "gelu", "relu", "tanh")
BINARY = ("add", "mul", "div", "pow")


@dataclass(frozen=True, slots=True)
class OpRows:
    """Per-operation rows. ``shape`` [R, 4]: product B, M, N, K; stream and row operations rows, length, 0, 0;
    convolution B, C_in, C_out, side."""

    gpu: NDArray[np.object_]
    op: NDArray[np.object_]
    shape: F64
    measured_s: F64

    def __len__(self) -> int:
        return len(self.gpu)

    def select(self, mask: NDArray[Any]) -> OpRows:
        return OpRows(self.gpu[mask], self.op[mask], self.shape[mask], self.measured_s[mask])

    @property
    def site(self) -> NDArray[np.int64]:
        """Which of two halves the shape falls in, whatever the GPU: 0 fits, 1 checks."""
        mixed = (self.shape * np.array([73856093.0, 19349663.0, 83492791.0, 2654435761.0])).sum(axis=1)
        return (np.floor(mixed / 7.0) % 2).astype(np.int64)


def read_ops(folder: Path) -> OpRows | None:
    """The per-operation table; None when it is not in the folder."""
    path = folder / OPS_FILE
    if not path.exists():
        return None
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    columns = ["gpu", "op", "measured_ms", "b", "m", "n", "k", "h", "input_channel", "output_channel", "input_size"]
    table = pq.read_table(path, columns=columns)

    def number(name: str) -> F64:
        return np.nan_to_num(pc.cast(table[name], "double").to_numpy(zero_copy_only=False))

    gpu, op = (np.asarray(pc.cast(table[c], "string").to_pylist(), dtype=object) for c in ("gpu", "op"))
    b, m, n, k, h = (number(c) for c in "bmnkh")
    product, conv = np.isin(op, ("linear", "bmm")), op == "conv"
    shape = np.column_stack([
        b,
        np.select([product, conv], [m, number("input_channel")], h),
        np.select([product, conv], [k, number("output_channel")], 0.0),
        np.select([product, conv], [n, number("input_size")], 0.0),
    ])  # fmt: skip
    return OpRows(gpu, op, shape, number("measured_ms") * 1e-3)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One whole-model measurement. ``option``: empty, ``fusion`` (torch.compile) or ``dp4``, ``tp4``, ``pp4_1``."""

    gpu: str
    model: str
    training: bool
    seq: int
    batch: int
    option: str
    measured_s: float
    forward_s: float
    backward_s: float
    neusight_s: float


def read_models(folder: Path) -> list[ModelRow] | None:
    """The whole-model table; None when it is not in the folder."""
    path = folder / MODELS_FILE
    if not path.exists():
        return None
    import csv

    def seconds(row: dict[str, str], name: str) -> float:
        return float(row.get(name) or "nan") * 1e-3

    with path.open(newline="") as file:
        return [
            ModelRow(r["gpu"], r["model"], r["mode"] == "training", int(r["seq_len"]), int(r["batch"]), r["option"] or "",
                     seconds(r, "measured_ms"), seconds(r, "measured_fw_ms"), seconds(r, "measured_bw_ms"),
                     seconds(r, "pred_neusight_ms"))
            for r in csv.DictReader(file)
        ]  # fmt: skip


def accelerator_of(name: str) -> Accelerator | None:
    """The catalogue entry of a GPU as the study names it (spaces or underscores); None when there is none."""
    try:
        return find_accelerator(name.replace("_", " "))
    except InputError:
        return None
