"""What every kernel family returns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.predict.estimate import Basis

F64 = NDArray[np.float64]


class KernelTime(NamedTuple):
    """Device time of each launch, host launch cost not included.

    ``time_s`` [R] seconds; ``log_sigma`` [R] standard deviation of log(measured / predicted) on held-out rows; ``basis`` of
    the whole call.
    """

    time_s: F64
    log_sigma: F64
    basis: Basis
