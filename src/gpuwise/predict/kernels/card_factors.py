"""What whole networks say of single kernels on cards of which no kernel was measured.

GeForce cards clock above their published boost and sum 16-bit products at half rate; the tables of single kernels hold none
of them. ``coefficients/card_factors.json`` has one factor on the time of each family (and implementation) for every
architecture of theirs, and for measured cards that are no GeForce, fitted on whole networks
(``calibrate.capture_time.fit``). The factor is a fact of the card: whoever asks for the kernel's time gets it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator, architecture_key
from gpuwise.predict.coefficients import load_json
from gpuwise.workload.step import KERNEL_CODE, OpTable

F64 = NDArray[np.float64]
_GEFORCE = re.compile(r"RTX [2345]0\d\d\b")
UNMEASURED = ("collective", "transfer", "recurrent", "sort", "scan", "fourier", "grouped", "convolution", "host")
"""Families without a factor: no measured network has them, or their form was fitted on whole networks itself."""


def factor_key(accelerator: Accelerator, model: Mapping[str, Any] | None = None) -> str | None:
    """Whose factors are the card's: its own, its architecture's if it is a GeForce; None where no network stands for it.

    Boards for workstations and servers of the same architecture do not clock above their published boost.
    """
    known = (load_json("card_factors") if model is None else model)["factor"]
    if accelerator.id in known:
        return accelerator.id
    key = architecture_key(accelerator.compute_capability, accelerator.family)
    return key if key in known and _GEFORCE.search(accelerator.name) else None


def card_factor(accelerator: Accelerator, family: str, rows: OpTable, *, matrix: bool = True) -> F64:
    """[R] factor on the time of ``rows`` of ``family``. ``matrix`` False: products that run on the vector lanes, which the
    measured networks did not."""
    key = factor_key(accelerator)
    if key is None or family in UNMEASURED or not matrix:
        return np.ones(len(rows))
    factors: Mapping[str, float] = load_json("card_factors")["factor"][key]
    plain = factors.get(family, 1.0)
    return np.where(rows.kernel == KERNEL_CODE["fused"], factors["fused"], plain)


def step_log_sigma(accelerator: Accelerator, *, compiled: bool = False) -> float | None:
    """Spread of log(measured / predicted) of whole steps on ``accelerator``; None where no measured network stands for it."""
    model = load_json("card_factors")
    if factor_key(accelerator) is None:
        return None
    stack = "compiled" if compiled else "eager"
    return float(model["log_sigma"][stack if accelerator.id in model["measured"] else "other_device"])
