"""The op table: any workload as columns, one row per kind of operation.

Shape columns ``d0 .. d6`` mean, by kind (B batch or groups, element counts unless said):

=============  ================================================================================================
matmul         d0 B (batched count), d1 M, d2 N, d3 K: B products of [M, K] x [K, N]
grouped        grouped (expert) matmul: d0 experts on this rank, d1 tokens routed to this rank (all experts), d2 N, d3 K
attention      d0 B sequences, d1 Sq, d2 Skv, d3 A query heads, d4 K kv heads, d5 D qk head dim, d6 Dv value head dim;
               ``flag`` bit 0 causal; ``window`` column holds the sliding window (0: none)
convolution    d0 B, d1 C_in, d2 C_out, d3 H_out, d4 W_out, d5 kernel area, d6 groups
memory         bandwidth-bound: only ``bytes_read`` and ``bytes_written`` count (norm, activation, residual, rope, loss ...)
embedding      gather or scatter-add of rows: d0 rows, d1 row length
collective     d0 payload bytes per rank as the collective counts them (see ``predict.collectives``); the group is by name;
               of an exchange that sends one copy to each system: d1 copies of a token, d2 millionths of the systems
               that they may go to (0: all copies travel)
copy           host <-> device bytes in d0
optimizer      d0 parameters updated on this rank; bytes in ``bytes_read``/``bytes_written``
host           d0 microseconds of host work that nothing hides
=============  ================================================================================================

``family`` says which kernels run the row (:data:`FAMILIES`, the keys of ``predict.kernels.registry``), ``kernel`` which
implementation of them (:data:`KERNELS`), and the columns ``x0 .. x3`` of ``detail`` what else their time depends on:

=============  ================================================================================================
matmul         x0 bytes of a result that is copied out first (a bias outside the epilogue), x1 real products of one
               complex product (0: one)
attention      x0 bytes of a bias or mask of the scores
convolution    x0 H_in, x1 W_in, x2 mean stride; ``flag`` says how it lies and which gradients are wanted
state_space    shape: d0 tokens, d1 channels, d2 numbers of state a channel (of a convolution: its width)
recurrent      shape: d0 steps, d1 batch, d2 gates x hidden, d3 hidden, d4 layers, d5 layers of one direction
transfer       ``flag`` bit TO_HOST
norm           shape of PyTorch's own batch norm: d0 images, d1 channels, d2 places, d3 bytes of an element; of a norm over
               rows: d0 elements that are copied first as their rows do not lie together, d1 bytes of one
reduction      shape of a sum over columns: d0 rows, d1 results, d2 bytes of an element
all others     wait for memory: x0 passes over what is read (0: one), x1 elements visited (0: bytes / 4), x2 bytes of a
               normalised row, x3 steps that one block takes alone
=============  ================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.workload.row_codes import Kind, Phase

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
N_SHAPE = 7
N_DETAIL = 4


FAMILIES = (
    "matmul",
    "grouped",
    "attention",
    "convolution",
    "recurrent",
    "norm",
    "softmax",
    "elementwise",
    "reduction",
    "copy",
    "dropout",
    "pooling",
    "resampling",
    "gather",
    "scatter",
    "sort",
    "scan",
    "fourier",
    "embedding",
    "optimizer",
    "loss",
    "transfer",
    "collective",
    "host",
    "state_space",
)
"""Families of kernels. ``host`` launches nothing; ``collective`` is timed with the cluster (``predict.comm``)."""
KERNELS = (
    "",
    "flash",
    "fa2",
    "efficient",
    "cudnn",
    "tn",
    "nn",
    "nt",
    "transpose",
    "broadcast",
    "batch_norm",
    "fused",
    "streams",
    "causal_conv",
    "chunk_scan",
    "channel_scan",
    "own_batch_norm",
    "cast",
    "mixed",
    "join",
    "columns",
    "pairs",
    "pieces",
    "layer_norm",
    "rms_norm",
)
"""Implementations of a family, by position. 0 leaves the choice to the conditions (``predict.kernels.conditions``): of fused
attention flash (the family's best), FlashAttention-2, memory-efficient or cuDNN; of fp32 products the operand layout; of
memory-bound kernels a change of layout, index arithmetic of a broadcast, moments over a batch (cuDNN's, or PyTorch's own), one
fused kernel of a compiler, elements that change format one by one (of one input, of several), pieces joined by their strides,
sums over columns, values with their indices, pieces copied one by one, PyTorch's own norms of rows; of grouped products one
product of the library for each expert, on streams side by side; of a state-space mixer its convolution, Mamba-2's recurrence
in chunks, Mamba's recurrence channel by channel."""
CUDNN_ATTENTION_ON = ("9.0", "10.0", "10.3")
"""Compute capabilities on which torch takes cuDNN's attention before FlashAttention-2 (ATen ``check_prefer_cudnn_attention``)."""
FAMILY_CODE = {name: code for code, name in enumerate(FAMILIES)}
KERNEL_CODE = {name: code for code, name in enumerate(KERNELS)}
FAMILY_OF_KIND = {
    Kind.MATMUL: "matmul",
    Kind.GROUPED: "grouped",
    Kind.ATTENTION: "attention",
    Kind.CONVOLUTION: "convolution",
    Kind.MEMORY: "elementwise",
    Kind.EMBEDDING: "embedding",
    Kind.COLLECTIVE: "collective",
    Kind.COPY: "transfer",
    Kind.OPTIMIZER: "optimizer",
    Kind.HOST: "host",
}
"""Default family of a row by kind."""


@dataclass(frozen=True, slots=True)
class OpTable:
    """Columns of equal length R. One row represents ``count`` identical launches.

    ``flop`` (2 per multiply-add), ``bytes_read`` and ``bytes_written`` are per launch; ``saved_bytes`` is what the row's
    forward saves for its backward, per launch. ``dtype`` is the arithmetic format of the inputs.
    """

    name: tuple[str, ...]
    kind: I64
    phase: I64
    dtype: tuple[str, ...]
    shape: I64
    """[R, 7]"""
    count: F64
    flop: F64
    bytes_read: F64
    bytes_written: F64
    saved_bytes: F64
    flag: I64
    window: I64
    n_kernels: F64
    """Device kernels one launch of the row issues (an unfused softmax chain has several); host launch cost scales by it."""
    family: I64
    """Index into :data:`FAMILIES`."""
    kernel: I64
    """Index into :data:`KERNELS`."""
    detail: F64
    """[R, 4]"""

    def __len__(self) -> int:
        return len(self.name)

    def select(self, mask: NDArray[np.bool_]) -> OpTable:
        """The rows where ``mask`` is true, in order."""
        return self.take(np.flatnonzero(mask))

    def take(self, keep: NDArray[np.intp]) -> OpTable:
        """The rows at the positions ``keep``."""
        return OpTable(
            name=tuple(self.name[int(i)] for i in keep.tolist()),
            kind=self.kind[keep],
            phase=self.phase[keep],
            dtype=tuple(self.dtype[int(i)] for i in keep.tolist()),
            shape=self.shape[keep],
            count=self.count[keep],
            flop=self.flop[keep],
            bytes_read=self.bytes_read[keep],
            bytes_written=self.bytes_written[keep],
            saved_bytes=self.saved_bytes[keep],
            flag=self.flag[keep],
            window=self.window[keep],
            n_kernels=self.n_kernels[keep],
            family=self.family[keep],
            kernel=self.kernel[keep],
            detail=self.detail[keep],
        )

    def total_flop(self, *phases: Phase) -> float:
        """FLOP of the rows of ``phases`` (all phases when none is given), counts included."""
        mask = np.isin(self.phase, phases) if phases else np.ones(len(self), bool)
        return float((self.flop * self.count)[mask].sum())

    def rows(self) -> Iterator[dict[str, object]]:
        """Each row as a dict, for ``--json`` and tests."""
        for i in range(len(self)):
            yield {
                "name": self.name[i],
                "kind": Kind(int(self.kind[i])).name.lower(),
                "phase": Phase(int(self.phase[i])).name.lower(),
                "dtype": self.dtype[i],
                "shape": [int(x) for x in self.shape[i]],
                "count": float(self.count[i]),
                "flop": float(self.flop[i]),
                "bytes_read": float(self.bytes_read[i]),
                "bytes_written": float(self.bytes_written[i]),
                "saved_bytes": float(self.saved_bytes[i]),
            }


_CODE_OF_KIND = {kind: FAMILY_CODE[family] for kind, family in FAMILY_OF_KIND.items()}
_NO_SHAPE = [(0,) * (N_SHAPE - n) for n in range(N_SHAPE + 1)]


@dataclass(slots=True)
class OpTableBuilder:
    """Collects rows; :meth:`build` freezes them. The one place where FLOP and bytes of an operation are counted."""

    _rows: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])

    def add(
        self,
        name: str,
        kind: Kind,
        phase: Phase,
        dtype: str,
        shape: tuple[int, ...] = (),
        *,
        count: float = 1.0,
        flop: float = 0.0,
        read_bytes: float = 0.0,
        written_bytes: float = 0.0,
        saved: float = 0.0,
        flag: int = 0,
        window: int = 0,
        n_kernels: float = 1.0,
        family: str = "",
        kernel: str = "",
        detail: tuple[float, ...] = (),
    ) -> None:
        """Add one row; ``family`` by default follows from ``kind``; ``kernel`` and ``detail`` are described in the module."""
        code = FAMILY_CODE[family] if family else _CODE_OF_KIND[kind]
        padded = shape + _NO_SHAPE[len(shape)]
        whole = (kind, phase, flag, window, code, KERNEL_CODE[kernel])
        self._rows.append((name, dtype, padded, detail, whole, (count, flop, read_bytes, written_bytes, saved, n_kernels)))

    def build(self) -> OpTable:
        """The table of the rows so far, in the order in which they were added."""
        columns: list[tuple[Any, ...]] = list(zip(*self._rows, strict=True)) if self._rows else [()] * 6
        names, dtypes, shapes, details, whole, real = columns
        kind, phase, flag, window, family, kernel = np.array(whole, dtype=np.int64).reshape(-1, 6).T.copy()
        count, flop, read_bytes, written_bytes, saved, n_kernels = np.array(real, dtype=np.float64).reshape(-1, 6).T.copy()
        return OpTable(
            name=names,
            kind=kind,
            phase=phase,
            dtype=dtypes,
            shape=np.array(shapes, dtype=np.int64).reshape(-1, N_SHAPE),
            count=count,
            flop=flop,
            bytes_read=read_bytes,
            bytes_written=written_bytes,
            saved_bytes=saved,
            flag=flag,
            window=window,
            n_kernels=n_kernels,
            family=family,
            kernel=kernel,
            detail=_details(details),
        )


def _details(details: Sequence[tuple[float, ...]]) -> NDArray[np.float64]:
    """[R, N_DETAIL]; most tables have none."""
    out = np.zeros((len(details), N_DETAIL))
    for i, detail in enumerate(details):
        if detail:
            out[i, : len(detail)] = detail
    return out


def concatenate(tables: Sequence[OpTable]) -> OpTable:
    """One table from several, in order."""
    names, dtypes = tuple(x for t in tables for x in t.name), tuple(x for t in tables for x in t.dtype)
    columns = [f.name for f in fields(OpTable) if f.name not in ("name", "dtype")]
    arrays: dict[str, Any] = {f: np.concatenate([getattr(t, f) for t in tables]) for f in columns}
    return OpTable(name=names, dtype=dtypes, **arrays)
