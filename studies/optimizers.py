# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""scipy's optimizers behind names with types (its own has none); they come with the extra ``calibrate``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import require

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Solution:
    """Where an optimizer ended."""

    x: F64
    cost: float
    """The loss there: half the sum of squares under the loss function, or the function's own value."""


def least_squares(residual: Callable[[F64], F64], start: F64 | Sequence[float], **options: Any) -> Solution:
    """Least squares of ``residual``; ``options`` are those of ``scipy.optimize.least_squares``. Raises MissingExtraError."""
    require("scipy", "fitting")
    from scipy import optimize

    result: Any = cast(Any, optimize).least_squares(residual, np.asarray(start, np.float64), **options)
    return Solution(np.asarray(result.x, np.float64), float(result.cost))


def minimize(loss: Callable[[F64], float], start: F64 | Sequence[float], **options: Any) -> Solution:
    """The least of ``loss``; ``options`` are those of ``scipy.optimize.minimize``. Raises MissingExtraError."""
    require("scipy", "fitting")
    from scipy import optimize

    result: Any = cast(Any, optimize).minimize(loss, np.asarray(start, np.float64), **options)
    return Solution(np.asarray(result.x, np.float64), float(result.fun))


def minimize_scalar(loss: Callable[[float], float], bounds: tuple[float, float], within: float) -> float:
    """Where the one valley of ``loss`` between ``bounds`` is lowest, to ``within``. Raises MissingExtraError."""
    require("scipy", "fitting")
    from scipy import optimize

    result: Any = cast(Any, optimize).minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": within})
    return float(result.x)
