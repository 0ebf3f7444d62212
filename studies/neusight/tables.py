"""The NeuSight tables as arrays: per-operation fp32 times and whole-model times, on catalogue accelerators.

Traps: in the per-operation table ``n`` is the reduction and ``k`` the output width of a product (its names
are the study's own), columns of other operations are empty, ``latency`` includes the cost of two CUDA events
and, for short kernels, of the host. Source: github.com/sitar-lab/NeuSight (MIT); Lee, Phanishayee, Mahajan,
ASPLOS 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.tables import read_columns
from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_accelerator

F64 = NDArray[np.float64]
OPS_FILE = "ops/neusight_fp32.parquet"
MODELS_FILE = "models/neusight_e2e.csv"
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
    """The per-operation table; None when it is not in the folder. Raises DataError when it cannot be read."""
    numbers = ("measured_ms", "b", "m", "n", "k", "h", "input_channel", "output_channel", "input_size")
    kinds = {"gpu": "str", "op": "str"} | dict.fromkeys(numbers, "float")
    table = read_columns(folder / OPS_FILE, kinds)
    if table is None:
        return None
    value = {name: np.nan_to_num(table[name]) for name in numbers}
    op = table["op"]
    product, conv = np.isin(op, ("linear", "bmm")), op == "conv"
    second = np.select([product, conv], [value["m"], value["input_channel"]], value["h"])
    third = np.select([product, conv], [value["k"], value["output_channel"]], 0.0)
    fourth = np.select([product, conv], [value["n"], value["input_size"]], 0.0)
    shape = np.column_stack([value["b"], second, third, fourth])
    return OpRows(table["gpu"], op, shape, value["measured_ms"] * 1e-3)


def accelerator_of(name: str) -> Accelerator | None:
    """The catalogue entry of a GPU as the study names it (spaces or underscores); None when there is none."""
    try:
        return find_accelerator(name.replace("_", " "))
    except InputError:
        return None
