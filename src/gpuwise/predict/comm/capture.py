"""Device time of the collectives of a captured rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import System, default_system
from gpuwise.predict.comm.collectives import OPS, collective_time
from gpuwise.predict.comm.groups import neighbours
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.workload.capture.captured import Signature

_RATE = 10e9
_SIGMA = 0.8
"""Assumed bytes/s and spread of a collective between accelerators whose link is unknown (PCIe 3.0). Judgement, not fitted."""


def collective_seconds(accelerator: Accelerator, signatures: Sequence[Signature], system: System | None) -> KernelTime:
    """[R] seconds over ranks that are neighbours. Waiting for a result costs nothing itself; what a group of one exchanges is
    nothing."""
    where = system or _system(accelerator)
    time, sigma, bases = np.zeros(len(signatures)), np.full(len(signatures), _SIGMA), list[Basis]()
    for i, s in enumerate(signatures):
        op, payload, size = (s.attribute(k) for k in ("collective", "payload_bytes", "group_size"))
        if not isinstance(payload, (int, float)) or not isinstance(size, int) or size < 2 or payload <= 0:
            continue
        name = str(op) if str(op) in OPS else "all_reduce"
        try:
            if where is None:
                raise GpuwiseError("no system")
            group = neighbours(where, np.array([size]))
            local, concurrent = int(group.local[0]), int(group.concurrent[0])
            one = collective_time(where, name, payload, size, local, concurrent=concurrent)
            time[i], sigma[i] = float(one.time_s[0]), float(one.log_sigma[0])
            bases.append(one.basis)
        except GpuwiseError:
            time[i] = 2.0 * float(payload) / _RATE
            bases.append("extrapolated")
    return KernelTime(time, sigma, weakest(*bases) if bases else "derived")


def _system(accelerator: Accelerator) -> System | None:
    try:
        return default_system(accelerator)
    except GpuwiseError:
        return None
