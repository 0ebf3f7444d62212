"""Published times of images and videos beside predicted ones: ``python benchmarks/serving/images.py``.

``image_runs.csv`` holds one picture, batch or video a line with its source. Nothing was fitted on them: the kernels were counted,
and what diffusers adds was fitted on other models on H100 and B200 (``python -m gpuwise validate`` scores those).
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.denoisers import find_denoiser
from gpuwise.interval import Z80
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.passes.diffusion.generation import made_time
from gpuwise.serve.passes.images import as_asked, making_time
from gpuwise.serve.passes.kind import How

RUNS = Path(__file__).with_name("image_runs.csv")


def predicted(row: dict[str, str]) -> Estimate:
    """Seconds of the pictures or the video of ``row``."""
    frames = int(row["frames"] or 0)
    model = find_denoiser(row["model"], "videos" if frames else "images")
    size = int(row["width"]), int(row["height"])
    cluster = find_cluster(row["gpu"])
    if int(row["batch"]) > 1:
        return made_time(
            model.network, cluster.system, steps=int(row["steps"]), height=size[1], width=size[0], images=int(row["batch"])
        )
    asked = as_asked(model, How(steps=int(row["steps"]), size=size, frames=frames or None, offload=row["offload"]))
    return making_time(asked, cluster, row["offload"])


def main() -> None:
    """Print the table."""
    off: list[float] = []
    inside: list[bool] = []
    print(
        "| model | GPU | batch | steps | pixels | offload | published | predicted | off |\n|---|---|---|---|---|---|---|---|---|"
    )
    with RUNS.open(newline="") as file:
        for row in csv.DictReader(file):
            time, seconds = predicted(row), float(row["seconds"])
            off.append(time.expected / seconds - 1)
            inside.append(abs(math.log(time.expected / seconds)) <= Z80 * time.log_sigma)
            cells = (row["model"], row["gpu"], row["batch"], row["steps"], f"{row['width']} x {row['height']}", row["offload"])
            print(f"| {' | '.join(cells)} | {seconds:g} s | {time.expected:.3g} s | {off[-1]:+.0%} |")
    print(f"median {np.median(np.abs(off)):.0%}, mean {np.mean(np.abs(off)):.0%}, inside {np.mean(inside):.0%} of {len(off)}")


if __name__ == "__main__":
    main()
