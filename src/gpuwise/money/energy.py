"""Electric energy of a run at the meter: accelerators at their mean draw, the rest of the host, cooling."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwise.facts.systems import Cluster
from gpuwise.predict.estimate import Z80, Estimate
from gpuwise.units import J_PER_KWH

POWER_SHARE = 0.70
"""Average draw over TDP while busy: medians of ML.ENERGY's measurements, 0.71 on H100 and 0.69 on B200
(github.com/ml-energy/leaderboard, benchmark v3 of 2026-02)."""
POWER_LOG_SIGMA = math.log(0.89 / 0.54) / (2 * Z80)
"""Its spread: the same measurements' 10th and 90th percentile on H100 (0.54 and 0.89)."""
HOST_FACTOR = 1.35
"""Whole host over its accelerators: processors, memory, fans, network cards add 25 to 45 % (8 x 700 W
against the 10.2 kW a DGX H100 draws at most, NVIDIA DGX H100 datasheet, scaled to the same average load)."""
PUE = 1.25
"""Power usage effectiveness: cooling and distribution of the building (Epoch AI's cost model, arXiv
2405.21015)."""


@dataclass(frozen=True, slots=True)
class Energy:
    """``kwh`` at the meter and the mean ``power_w`` of the whole cluster, cooling included."""

    kwh: Estimate
    power_w: float

    def as_dict(self) -> dict[str, object]:
        return {"kwh": self.kwh.as_dict(), "power_w": self.power_w, "pue": PUE, "host_factor": HOST_FACTOR}


def energy(time_s: Estimate, cluster: Cluster) -> Energy | None:
    """Energy of ``time_s`` on ``cluster``; None when the accelerator's design power is not published."""
    tdp = cluster.accelerator.tdp_w
    if tdp is None:
        return None
    power = cluster.n_accelerators * tdp * POWER_SHARE * HOST_FACTOR * PUE
    time_sigma = math.log(time_s.high / time_s.low) / (2 * Z80) if time_s.low > 0 else 0.0
    expected = time_s.expected * power / J_PER_KWH
    return Energy(
        Estimate.from_log_sigma(expected, math.hypot(time_sigma, POWER_LOG_SIGMA), "derived"), power
    )
