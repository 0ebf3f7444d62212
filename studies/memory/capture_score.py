"""Memory of captured steps against measured jobs: process peaks, and batches that ran or did not.

Networks are built by name and captured, nothing is run. A row of ``... bounds ...`` measures 1 where the batch ran and 2
where it did not, and is predicted likewise: its error is 0 or not. The baseline is the best known peer where the source
carries one (xMem's own predictions, a naive sum of fake tensors).

A capture takes seconds, so a usual run predicts the check rows of :data:`SAMPLE`; ``all_check`` runs every row and says on
stderr how far it is. Split by model family (:attr:`MemoryJob.family`), never by row.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from gpuwise.calibrate.scores import Scores
from gpuwise.errors import GpuwiseError
from gpuwise.predict.coefficients import load_json
from gpuwise.workload.capture.captured import Capture
from studies.memory import capture_jobs as running
from studies.memory.capture_rows import MemoryJob, read_jobs

RAN, OUT_OF_MEMORY = 1.0, 2.0
SAMPLE: dict[str, tuple[tuple[str, int], ...]] = {
    "gpumemnet timm": (
        ("tinynet_e", 128),
        ("convnext_atto", 16),
        ("vit_tiny_patch16_224", 32),
        ("skresnet18", 32),
        ("mobilenetv2_050", 64),
    ),
    "gpumemnet paper": (("mobilenet_v2", 32),),
    "xmem": (("convnext_tiny", 200),),
    "timm bounds train": (("vit_small_patch16_224", 0),),
    "timm bounds infer": (("hgnetv2_b6", 0),),
}
"""Networks and batches (0: any) of check families a usual run predicts, one row each and of bounds one pair: chosen for few
operations, so that the run takes a minute, not for what is predicted of them. Two perceptrons come by hash."""
PERCEPTRONS = 2
BORDERLINE = "borderline: the order of allocations decides"
NOT_SAMPLED = "not sampled (--all-check runs all)"
BASELINE = ("xMem", "naive fake-tensor sum")
Capturer = Callable[[MemoryJob], Capture]


def score(folder: Path, all_check: bool, capturer: Capturer = running.capture_job) -> Scores | None:
    """Predict the jobs of the tables in ``folder``/memory; None when there is none."""
    jobs = read_jobs(folder)
    if jobs is None:
        return None
    chosen = set(range(len(jobs))) if all_check else sample(jobs)
    sigma = load_json("captured_memory")["log_sigma"]["process"]
    predicted, reasons = np.full(len(jobs), np.nan), [""] * len(jobs)
    for i, job in enumerate(jobs):
        reasons[i] = job.skip or (NOT_SAMPLED if i not in chosen else _missing(job))
        if reasons[i]:
            continue
        if all_check:
            sys.stderr.write(f"[{i + 1}/{len(jobs)}] {job.source}: {job.model}, batch {job.batch}\n")
        try:
            predicted[i] = answer(capturer(job), job)
            reasons[i] = BORDERLINE if math.isnan(predicted[i]) else ""
        except GpuwiseError as error:
            reasons[i] = error.message.split("\n")[0][:80]
        except Exception as error:  # noqa: BLE001 - a model's own failure is a row that cannot be predicted
            reasons[i] = f"capture failed: {type(error).__name__}"
    measured = np.array([measured_of(job) for job in jobs])
    return Scores(
        source=[j.source for j in jobs],
        gpu=[j.gpu for j in jobs],
        split=["check" if all_check else j.split for j in jobs],
        measured=measured,
        predicted=predicted,
        log_sigma=np.array([np.nan if j.fits is not None else float(sigma) for j in jobs]),
        baseline=np.array([_baseline(j) for j in jobs]),
        reason=reasons,
    )


def measured_of(job: MemoryJob) -> float:
    """Bytes, or the verdict."""
    return job.measured_bytes if job.fits is None else RAN if job.fits else OUT_OF_MEMORY


def answer(capture: Capture, job: MemoryJob) -> float:
    """What is predicted of what was measured: process bytes, or the verdict, NaN where it is borderline."""
    memory = running.predict(capture, job)
    if job.fits is None:
        return memory.process.expected + running.loader_bytes(capture, job)
    return {"fits": RAN, "borderline": math.nan}.get(memory.verdict, OUT_OF_MEMORY)


def sample(jobs: Sequence[MemoryJob]) -> set[int]:
    """Positions of the check rows a usual run predicts, pairs of bounds together."""
    chosen: set[int] = set()
    at = [i for i, j in enumerate(jobs) if j.split == "check" and not j.skip]
    for source, cells in SAMPLE.items():
        for model, batch in cells:
            matches = [i for i in at if jobs[i].source == source and jobs[i].model == model and batch in (0, jobs[i].batch)]
            if "bounds" in source:
                firsts = sorted((i for i in matches if jobs[i].fits), key=lambda i: _rank(jobs[i]))[:1]
                chosen |= {k for i in firsts for k in (i, i + 1)}
            else:
                chosen |= set(matches[:1])
    perceptrons = (i for i in at if jobs[i].source == "gpumemnet mlp")
    return chosen | set(sorted(perceptrons, key=lambda i: _rank(jobs[i]))[:PERCEPTRONS])


def _rank(job: MemoryJob) -> str:
    return hashlib.sha256(f"{job.source}/{job.model}/{job.batch}/{job.gpu}/{job.setup.torch}".encode()).hexdigest()


def _missing(job: MemoryJob) -> str:
    packages = running.missing_packages(job)
    return "needs " + " and ".join(packages) if packages else ""


def _baseline(job: MemoryJob) -> float:
    return next((job.peers[name] for name in BASELINE if name in job.peers), math.nan)
