"""Published text-to-image and text-to-video latencies (ML.ENERGY) and predicted ones (:mod:`gpuwise.serve.passes.diffusion`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.scores import Scores
from gpuwise.calibrate.tables import read_columns
from gpuwise.errors import GpuwiseError
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.passes.diffusion.generation import Generation, generations_on
from gpuwise.serve.passes.diffusion.networks import MODELS

TABLE = "serving/diffusion.csv"


def score_diffusion(folder: Path, all_check: bool) -> Scores | None:
    """Predict every row of ``serving/diffusion.csv`` under ``folder``; None when it is not there."""
    c = read_table(folder)
    if c is None:
        return None
    parts, reason = generations(c)
    costs = load_json("diffusion")
    n = len(reason)
    predicted = np.array([g.seconds(costs["costs"]) if g is not None else np.nan for g in parts])
    check = np.array([all_check or is_check(m) for m in c["model_id"]])
    measured = c["batch_latency_s"]
    ideal = np.array([g.matmul_s + g.attention_s if g is not None else np.nan for g in parts])
    baseline = np.full(n, np.nan)
    for gpu in set(c["gpu_model"]):
        mine = (c["gpu_model"] == gpu) & np.isfinite(ideal)
        learn = mine & ~check if (mine & ~check).any() else mine
        if learn.any():
            baseline[mine] = ideal[mine] * np.median(measured[learn] / ideal[learn])
    return Scores(
        source=["diffusion " + t for t in c["task"]],
        gpu=list(c["gpu_model"]),
        split=np.where(check, "check", "fit").tolist(),
        measured=measured,
        predicted=predicted,
        log_sigma=np.full(n, costs["log_sigma"]),
        baseline=baseline,
        reason=reason,
    )


def is_check(model: str) -> bool:
    """A third of the models, by hash."""
    return hashlib.sha256(model.encode()).digest()[0] % 3 == 0


def read_table(folder: Path) -> dict[str, NDArray[Any]] | None:
    """Columns of the table, None when it is not there."""
    text = dict.fromkeys(("task", "gpu_model", "model_id"), "str")
    numbers = (
        "batch_latency_s",
        "batch_size",
        "inference_steps",
        "num_gpus",
        "ulysses_degree",
        "ring_degree",
        "height",
        "width",
        "num_frames",
    )
    needed = {*numbers} - {"num_frames"}
    return read_columns(folder / TABLE, {**text, **dict.fromkeys(numbers, "float")}, needed)


def generations(c: dict[str, NDArray[Any]]) -> tuple[list[Generation | None], list[str]]:
    """The parts of every row, or reasons for none. Rows of one model, GPU count and resolution are evaluated together."""
    n = len(c["model_id"])
    out: list[Generation | None] = [None] * n
    reason = [""] * n
    together: dict[tuple[object, ...], list[int]] = {}
    for i in range(n):
        if c["model_id"][i] not in MODELS:
            reason[i] = "diffusion model without published dimensions here"
            continue
        frames = c["num_frames"][i] if c["num_frames"][i] > 0 else 0.0
        key = (
            c["model_id"][i],
            c["gpu_model"][i],
            int(c["num_gpus"][i]),
            c["height"][i],
            c["width"][i],
            frames,
            int(c["ulysses_degree"][i]),
            int(c["ring_degree"][i]),
        )
        together.setdefault(key, []).append(i)
    for at in together.values():
        try:
            for i, g in zip(at, _group(c, at), strict=True):
                out[i] = g
        except GpuwiseError as error:
            for i in at:
                reason[i] = error.message.split("\n")[0][:80]
    return out, reason


def _group(c: dict[str, NDArray[Any]], at: Sequence[int]) -> list[Generation]:
    from gpuwise.facts.hardware.naming import find_cluster

    i = at[0]
    names = {"H100": "H100-SXM5-80GB", "B200": "B200-SXM"}
    return generations_on(
        MODELS[c["model_id"][i]],
        find_cluster(f"{int(c['num_gpus'][i])}x{names.get(c['gpu_model'][i], c['gpu_model'][i])}").system,
        [int(c["batch_size"][j]) for j in at],
        [float(c["inference_steps"][j]) for j in at],
        (float(c["height"][i]), float(c["width"][i])),
        max(0.0, float(np.nan_to_num(c["num_frames"][i]))),
        (int(c["ulysses_degree"][i]), int(c["ring_degree"][i])),
    )
