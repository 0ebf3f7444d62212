"""Batches of llama.cpp: what a row of a decoded batch costs (``prompt.batch_rows`` of ``coefficients/single_stream.json``), and
how many experts a batch's tokens are sent to (:data:`gpuwise.serve.formats.ALIKE`, of 0.65, 0.7, 0.75 and 0.8 the best here).

llama.cpp's own of a DGX Spark (ggml-org/llama.cpp benches/dgx-spark.md, build 6918, ``llama-batched-bench``; MIT): whole models
are kept for checking. Fitted relative to one sequence, whose time is :mod:`studies.serving.local_fit`'s. A batch's kernels take
as long to start as a prompt's (``prompt.launch_clocks``): llama.cpp fuses some of those of one token alone. Refit after
:mod:`studies.serving.prompt_fit`.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.streams import seconds
from studies.coefficient_files import write
from studies.optimizers import least_squares
from studies.spreads import log_sigma_of

F64 = NDArray[np.float64]
BATCHES = (1, 2, 4, 8, 16, 32)
PROMPT = 512
CHECKED = ("gemma-3-4b", "qwen3-30b-a3b", "gpt-oss-120b")
"""Models kept from the fit of batches."""


@dataclass(frozen=True, slots=True)
class Batches:
    """``written_per_s`` tokens a second of :data:`BATCHES` sequences after 512."""

    model: str
    weights: str
    written_per_s: tuple[float, ...]


SPARK = (
    Batches("gpt-oss-20b", "MXFP4", (81.11, 95.00, 151.90, 254.09, 400.94, 614.82)),
    Batches("gpt-oss-120b", "MXFP4", (57.28, 60.35, 95.08, 146.65, 220.02, 312.56)),
    Batches("qwen3-30b-a3b", "Q8_0", (57.63, 64.11, 102.01, 154.91, 232.98, 345.01)),
    Batches("qwen2.5-7b", "Q8_0", (29.24, 54.46, 104.33, 195.67, 335.01, 593.27)),
    Batches("gemma-3-4b", "Q4_0", (78.38, 126.21, 231.11, 369.93, 550.47, 801.81)),
)


def batch_ratios(form: dict[str, Any], batches: Batches) -> F64:
    """[6] predicted over measured time of a token of each batch."""
    arch, device = find_model(batches.model), find_accelerator("gb10")
    times = [seconds(form, arch, device, batches.weights, PROMPT + 16, 1, n) for n in BATCHES]
    return np.array(times) * np.array(batches.written_per_s) / np.array(BATCHES)


def fit() -> dict[str, float]:
    """Write ``batch_rows`` and the width of batches; the errors."""
    document = deepcopy(load_json("single_stream"))
    form = document["form"]

    def residual(x: F64) -> F64:
        form["prompt"]["batch_rows"] = float(np.exp(x[0]))
        found = [batch_ratios(form, b) for b in SPARK if b.model not in CHECKED]
        return np.log(np.concatenate([r[1:] / r[0] for r in found]))

    best = float(np.exp(least_squares(residual, np.log([2.0]), loss="soft_l1", f_scale=0.1, diff_step=1e-3).x[0]))
    form["prompt"]["batch_rows"] = float(f"{best:.3g}")
    errors: dict[str, float] = {}
    for part in ("fit", "check"):
        ratio = np.concatenate([batch_ratios(form, b)[1:] for b in SPARK if (b.model in CHECKED) == (part == "check")])
        errors[f"llama.cpp batches {part} mape ({len(ratio)} rows)"] = round(float(np.mean(np.abs(ratio - 1))), 4)
        document["log_sigma"]["batch"] = round(log_sigma_of(np.ones_like(ratio), ratio), 3)
    provenance = document["provenance"]
    provenance["errors"] = {k: v for k, v in provenance["errors"].items() if "batches" not in k} | errors
    write("single_stream", document)
    return errors
