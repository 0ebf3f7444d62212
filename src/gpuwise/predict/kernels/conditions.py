"""Conditions under which a kernel runs: one set for all commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuwise.workload.row_codes import CHANNELS_LAST
from gpuwise.workload.step import OpTable


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a kernel. The defaults are those of a training step in a long run (:data:`STEP`).

    A row that names its implementation (``OpTable.kernel``) keeps it; ``implementation`` chooses for those that do not.
    """

    cold: bool = True
    """Operands come from memory: the step has touched more than the last-level cache since."""
    sustained: bool = True
    """The clock a long run settles at under the power limit, not that of a burst."""
    alignment: bool = True
    """Rows that begin off a 32-byte boundary take slower kernels (not in tables measured on aligned sizes only)."""
    compiled: bool = False
    """Inductor wrote the kernels between the library's, and laid images out for the library."""
    before_torch_2: bool = False
    """Libraries of the generation of torch 1."""
    older_row_norms: bool = False
    """Norms of rows before torch 2.8, whose gradients read their rows again."""
    emulated: bool = False
    """Formats the accelerator lacks are computed in one it has, as torch does; otherwise they are refused."""
    channels_last: bool | None = None
    """Memory layout of images; None: as the row has it."""
    implementation: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    """Kernel of a family, or of the products in a format, by name: ``{"attention": "flash"}``. Default: what torch runs."""


STEP = Conditions()
"""A training step: what ``plan``, ``fit``, ``op``, ``pick``, ``compare``, ``profile`` and ``bench`` ask for."""
SERVING = Conditions(sustained=False, alignment=False, implementation={"fp8": "fp8", "mxfp8": "mxfp8", "attention": "fa2"})
"""A serving iteration: short bursts of kernels tuned for the sizes they were measured at, which turn their input into the
narrow format themselves."""


def lies_last(rows: OpTable, conditions: Conditions) -> NDArray[np.bool_]:
    """[R] whether the images are channels-last: from the conditions, else from the row."""
    if conditions.channels_last is not None:
        return np.full(len(rows), conditions.channels_last)
    return (rows.flag & CHANNELS_LAST) != 0
