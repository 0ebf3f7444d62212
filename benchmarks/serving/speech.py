"""Published transcriptions beside predicted ones: ``python benchmarks/serving/speech.py``.

Each machine, and on the machine with the most rows each model, is predicted by the fit of the others
(:mod:`studies.serving.speech_fit`). Prints median and mean error and the share inside the 80 % interval by program; ``--rows``
every run; ``--fit`` writes the coefficients.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from gpuwise.interval import Z80
from gpuwise.predict.coefficients import load_json
from studies.serving.speech_fit import fit_speech, left_out, read_runs


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--fit", action="store_true")
    asked = parser.parse_args()
    if asked.fit:
        print(fit_speech())
    runs = read_runs()
    ratio, share = left_out(runs)
    sigma = load_json("speech")["log_sigma"]
    inside = [
        abs(math.log(r)) <= Z80 * math.hypot((1 - s) * max(sigma["kernels"], run.work.log_sigma), s * sigma["host"])
        for run, r, s in zip(runs, ratio, share, strict=True)
    ]
    if asked.rows:
        for run, r, within in sorted(zip(runs, ratio, inside, strict=True), key=lambda row: row[0].label):
            print(f"{run.label:72s}{run.measured_s:8.2f} s {r - 1:+6.0%} {'' if within else 'outside'}")
    batched = np.array([run.work.windows > 1 for run in runs])
    names = np.array([run.program.id for run in runs])
    print("| program | rows | median | mean | inside |\n|---|---|---|---|---|")
    for name, rows in [(n, names == n) for n in dict.fromkeys(names)] + [("batched", batched), ("one by one", ~batched)]:
        off = np.abs(ratio[rows] - 1)
        within = np.mean(np.array(inside)[rows])
        print(f"| {name} | {rows.sum()} | {np.median(off):.0%} | {off.mean():.0%} | {within:.0%} |")
    off = np.abs(ratio - 1)
    print(f"| all | {len(runs)} | {np.median(off):.0%} | {off.mean():.0%} | {np.mean(inside):.0%} |")


if __name__ == "__main__":
    main()
