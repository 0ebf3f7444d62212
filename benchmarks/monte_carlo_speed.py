"""How much processor time the scenarios of ``gpuwise cost`` take: ``python benchmarks/monte_carlo_speed.py``.

Processor seconds of one call of ``rent_or_own`` with 100,000 scenarios of three years, best of several, for a steady
demand and for a growing one with peaks (36 different months), with and without reserved and spot. The best is
reported because other work on the machine only ever adds to it.
"""

from __future__ import annotations

import datetime
import os
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.money.rent_or_own.demand import Demand
from gpuwise.money.rent_or_own.ownership import catalogue_ownership
from gpuwise.money.rent_or_own.renting import rent_of
from gpuwise.money.rent_or_own.scenarios import rent_or_own

SCENARIOS, MONTHS, BUDGET_S = 100_000, 36, 0.5


def main(repeats: int = 7) -> int:
    node, today = find_cluster("8xH100-SXM"), datetime.date(2026, 11, 21)
    own = catalogue_ownership(node, gpu_usd=27_000.0)
    plain = rent_of(node, today, usd_per_hour=3.0, reserved=())
    every = rent_of(node, today, usd_per_hour=3.0, reserved=("1y", "3y"), spot=True)
    cases = [
        ("steady; own, on demand", Demand(10_000.0), plain),
        ("steady; and reserved, spot", Demand(10_000.0), every),
        ("growing with peaks; own, on demand", Demand(10_000.0, 3.0, growth_per_year=0.5), plain),
        ("growing with peaks; and reserved, spot", Demand(10_000.0, 3.0, growth_per_year=0.5), every),
    ]
    print(f"numpy {np.__version__}, {SCENARIOS:,} scenarios of {MONTHS} months; processor seconds, best and median of {repeats}")
    worst = 0.0
    for name, demand, rent in cases:
        rent_or_own(demand, own, rent, MONTHS, n_scenarios=1000)
        taken: list[float] = []
        for _ in range(repeats):
            start = time.process_time()
            rent_or_own(demand, own, rent, MONTHS, n_scenarios=SCENARIOS)
            taken.append(time.process_time() - start)
        worst = max(worst, min(taken))
        print(f"  {name:40} {min(taken):6.3f}  {sorted(taken)[len(taken) // 2]:6.3f}")
    return 0 if worst < BUDGET_S else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
