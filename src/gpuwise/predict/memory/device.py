"""Device memory available to a process, and the memory constants of a software stack.

The constants are measured or fitted (``coefficients/memory.json``, written by ``studies.memory.llm_fit``). Non-PyTorch memory
is in :mod:`gpuwise.predict.memory.context`, memory inside kernels in :mod:`gpuwise.predict.memory.workspaces`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.units import GIB
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import STACKS

F64 = NDArray[np.float64]
HOST_SHARE = 0.8
"""Share of the host's memory available; the rest is for the operating system, data loaders and page cache."""
METRICS = ("allocated", "reserved", "device")
"""torch's max_memory_allocated and max_memory_reserved, and what nvidia-smi shows."""


@dataclass(frozen=True, slots=True)
class StackMemory:
    """Fitted constants of a stack.

    ``workspace_bytes``: tensors without a formula (library workspaces, position tables, small states). ``slack``: the share of
    activations and temporaries the caching allocator reserves beyond what is allocated (fragmentation), ``least_slack`` the
    share that remains when the device is full, ``reserve_bytes`` further reserved bytes of any job (small segments,
    convolution workspaces). ``log_sigma[metric]``: spread of log(measured / predicted) on held-out rows.
    """

    workspace_bytes: float
    slack: float
    least_slack: float
    log_sigma: dict[str, float]
    reserve_bytes: float = 0.0
    basis: Basis = "fitted"


@cache
def stack_memory(stack: str) -> StackMemory:
    """Constants of ``stack``; a stack without its own has those of the stack it is like or of ``default``, as an
    extrapolation."""
    table, stack = load_json("memory")["stacks"], stack.partition("@")[0]
    try:
        if stack in table:
            return StackMemory(**table[stack])
        like = find_stack(stack).like if stack in STACKS else ""
        return replace(StackMemory(**table[like if like in table else "default"]), basis="derived")
    except TypeError as error:
        raise DataError(f"memory.json: {stack}: {error}") from None


def host_limit_bytes(cluster: Cluster) -> float:
    """Bytes of one host available for offload."""
    return HOST_SHARE * (cluster.system.stated_host_memory_bytes or cluster.system.host_memory_bytes)


def usable_bytes(accelerator: Accelerator) -> float:
    """Device memory available to a process, without the driver's share.

    The published visible total if known. Otherwise about 0.25 GiB and half a percent less than nvidia-smi's total: torch
    reports 79.25 GiB on an A100 of 80, 39.50 of 40, 23.68 on an RTX 4090 of 23.99, 23.53 on an A30 of 24, 15.61 on an A4000 of
    16 (out-of-memory messages in OOTDiffusion#235, CoSeR#10, CogVideo#36, RB-Modulation#5, VGGT-Long#6).
    """
    return accelerator.memory_visible_bytes or accelerator.memory_bytes * 0.995 - 0.25 * GIB
