"""Device time of grouped products and fused expert layers (mixture of experts)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from gpuwise.facts.accelerators import Accelerator
from gpuwise.predict.gemm import gemm_time
from gpuwise.predict.kernel_time import KernelTime

Distribution = Literal["balanced", "power_law"]


def grouped_time(
    accelerator: Accelerator,
    dtype: str,
    n_experts_local: ArrayLike,
    tokens_routed: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    distribution: Distribution = "balanced",
    implementation: str | None = None,
) -> KernelTime:
    """Time of one grouped product: ``tokens_routed`` rows over ``n_experts_local`` experts, each with its own [k, n] weight."""
    experts, tokens = np.asarray(n_experts_local, dtype=np.float64), np.asarray(tokens_routed, dtype=np.float64)
    active = np.minimum(experts, tokens)
    return gemm_time(accelerator, dtype, tokens / active, n, k, active, implementation=implementation)
