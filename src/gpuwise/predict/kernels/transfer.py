"""Copies between host and device memory (offload): bytes over what the host link delivers.

The start of a copy costs the device a microsecond or two and the host a call; neither is included here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels.corrections import corrected
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.units import GIGA

DIRECTIONS = ("h2d", "d2h")
PCIE_FRACTION = 0.82
"""Share of the coded PCIe rate for pinned copies of 64 MiB and more, in either direction: A100 26.3 of 31.5 GB/s and H100,
H200 52 of 63 (Azure/AI-benchmarking-guide, ND A100/H100/H200 results), A100 25.1 (NVIDIA/nvbandwidth#42), H100 52.8
(nvbandwidth#24)."""
C2C_BYTES_PER_S = {"h2d": 346 * GIGA, "d2h": 301 * GIGA}
"""Measured NVLink-C2C of a GH200 (450 GB/s a direction): 346 GB/s in, 15 % less out (NVIDIA/nvbandwidth#23).
GB200 and GB300 have the same C2C, shared by two GPUs that rarely copy at the same time."""
C2C_PEAK_BYTES_PER_S = 450 * GIGA
"""One direction of NVLink-C2C by its data sheet."""
PAGEABLE_BYTES_PER_S = 6.25 * GIGA
"""Unpinned copies go through a pinned staging buffer, at the pace of one host thread: 50 Gb/s on p3dn
(NVIDIA/nccl#398)."""
PINNED_LOG_SIGMA, PAGEABLE_LOG_SIGMA = 0.08, 0.4
"""Spread of the published figures above; pageable rates depend on the host processor, 3 to 12 GB/s."""


def transfer_time(
    accelerator: Accelerator,
    bytes: ArrayLike,
    direction: str = "h2d",
    pinned: bool = True,
    *,
    at_once: int = 1,
    host_bytes_per_s: float | None = None,
) -> KernelTime:
    """[R] seconds to copy ``bytes`` [R] between the host and one accelerator.

    ``at_once`` accelerators copy together and share the host's memory bandwidth ``host_bytes_per_s`` when it is given. Raises
    InputError on an unknown direction, UnpredictableError when the accelerator's host link is unknown.
    """
    if direction not in DIRECTIONS:
        raise InputError(f"unknown copy direction {direction!r}", hint="h2d (host to device) or d2h")
    if at_once < 1:
        raise InputError(f"{at_once} accelerators copy at once", hint="at least 1")
    rate = host_link_bytes_per_s(accelerator, direction)
    if not pinned:
        rate = min(rate, PAGEABLE_BYTES_PER_S)
    if host_bytes_per_s is not None:
        rate = min(rate, host_bytes_per_s / at_once)
    seconds = np.atleast_1d(np.asarray(bytes, dtype=np.float64)) / rate
    sigma = PINNED_LOG_SIGMA if pinned else PAGEABLE_LOG_SIGMA
    result = KernelTime(seconds, np.full_like(seconds, sigma), "derived")
    key = f"copy/{direction}-{'pinned' if pinned else 'pageable'}"
    return corrected(accelerator, key, result, np.atleast_1d(bytes)) if accelerator.corrections else result


def host_link_bytes_per_s(accelerator: Accelerator, direction: str) -> float:
    """Rate of a pinned copy. Raises UnpredictableError when the host link is unknown."""
    if _has_c2c(accelerator):
        return C2C_BYTES_PER_S[direction]
    if accelerator.pcie_bytes_per_s is None:
        raise UnpredictableError(
            "no host link rate for accelerator",
            f"the rate of {accelerator.name}'s host link is not in the catalogue",
            hint="give an accelerator with a known PCIe link",
        )
    return PCIE_FRACTION * accelerator.pcie_bytes_per_s


def host_link_peak_bytes_per_s(accelerator: Accelerator) -> float | None:
    """One direction of the host link by its data sheet; None if unknown."""
    return C2C_PEAK_BYTES_PER_S if _has_c2c(accelerator) else accelerator.pcie_bytes_per_s


def _has_c2c(accelerator: Accelerator) -> bool:
    return accelerator.name.startswith(("GH", "GB2", "GB3"))
