"""How much longer a step of a network by name takes, as published, than its kernels: one number for all, and its spread.

``python -m studies.reports.networks`` prints the median over sources of ``images.toml``, with each source's error where the
median is that of the others. It is :data:`gpuwise.plan.step.estimates.PROGRAM_FACTOR`.
"""

from __future__ import annotations

import math
import statistics
import sys
import tomllib

from gpuwise.plan.step.estimates import PROGRAM_FACTOR
from studies.reports.asked import FOLDER, Report

TIMES = ("run_time_s.expected", "step_time_s.expected")


def ratios() -> dict[str, float]:
    """Published time over that of the kernels, by source: the median of its rows."""
    found: dict[str, list[float]] = {}
    for row in tomllib.loads((FOLDER / "images.toml").read_text())["report"]:
        report = Report(**row)
        if report.at in TIMES:
            found.setdefault(report.source, []).append(report.measured / (report.said() / PROGRAM_FACTOR))
    return {source: statistics.median(values) for source, values in found.items()}


def main() -> None:
    found = ratios()
    middle = statistics.median(found.values())
    logs = [math.log(r / middle) for r in found.values()]
    errors: list[float] = []
    for source, ratio in found.items():
        others = statistics.median(r for name, r in found.items() if name != source)
        errors.append(abs(others / ratio - 1))
        sys.stdout.write(f"{ratio:6.2f}  {100 * (others / ratio - 1):+5.0f} %  {source}\n")
    spread = math.sqrt(sum(x * x for x in logs) / len(logs))
    left_out = 100 * statistics.median(errors)
    sys.stdout.write(f"factor {middle:.2f}, spread {spread:.2f} in logarithms; a source left out {left_out:.0f} % off\n")


if __name__ == "__main__":
    main()
