"""Matrix products of a trace by shape: what was multiplied, in which format, how often, and how long it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuwise.train.profile.trace import Detail

DTYPES = {
    "float": "fp32",
    "double": "fp64",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
}
"""Formats by C++ types as Kineto writes them (c10/core/ScalarType.h)."""
_OPERANDS: Mapping[str, tuple[int, int]] = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
    "aten::_scaled_mm": (0, 1),
    "aten::addmv": (1, 2),
    "aten::mv": (0, 1),
}
"""Which inputs are multiplied (native_functions.yaml)."""


@dataclass(slots=True)
class Product:
    """C[m, n] = A[m, k] B[k, n], ``batch`` of them at a call; all calls of one shape."""

    op: str
    dtype: str
    m: int
    n: int
    k: int
    batch: int
    count: int = 0
    """Calls a step."""
    seconds: float = 0.0
    """A step, all calls."""
    kernels: set[str] = field(default_factory=set[str])
    """Names of the kernels that did it."""
    first_s: float = 0.0
    """When the first was."""

    @property
    def flop(self) -> float:
        """FLOP of one call."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def words(self) -> str:
        """``64 x 1024 x 4096``."""
        return ("" if self.batch == 1 else f"{self.batch} of ") + f"{self.m} x {self.n} x {self.k}"


def product_of(name: str, detail: Detail) -> Product | None:
    """The matrix product of an operation with these inputs; None for another operation or without recorded shapes."""
    at = _OPERANDS.get(name)
    if at is None or len(detail.shapes) <= max(at) or len(detail.dtypes) <= max(at):
        return None
    a, b = detail.shapes[at[0]], detail.shapes[at[1]]
    dtype = DTYPES.get(detail.dtypes[at[0]], "")
    if not dtype or len(a) not in (2, 3) or not all(a) or not all(b):
        return None
    if len(b) == 1:
        b = (*b, 1)
    if len(a) != len(b) or a[-1] != b[-2]:
        return None
    return Product(name, dtype, a[-2], b[-1], a[-1], a[0] if len(a) == 3 else 1)


def key_of(product: Product) -> tuple[Any, ...]:
    """The key of equal products: op, dtype, m, n, k, batch."""
    return (product.op, product.dtype, product.m, product.n, product.k, product.batch)
