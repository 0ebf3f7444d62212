"""Prompts and batches of llama.cpp: how fast rows are multiplied, and what a row of a decoded batch costs.

Prompts are of the table of single streams (its prompt column), GPUs kept for checking as there. Batches are llama.cpp's own of
a DGX Spark (ggml-org/llama.cpp benches/dgx-spark.md, build 6918, ``llama-batched-bench``; MIT): whole models are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.optimizers import least_squares
from gpuwise.calibrate.serving.rows import ServingRow
from gpuwise.calibrate.validation import log_sigma_of
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.llama_cpp import prompt_time, seconds

F64 = NDArray[np.float64]
BATCHES = (1, 2, 4, 8, 16, 32)
PROMPT = 512
CHECKED = ("gemma-3-4b", "qwen3-30b-a3b", "gpt-oss-120b")
"""Models kept from the fit of batches."""


@dataclass(frozen=True, slots=True)
class Batches:
    """``prompt_per_s`` tokens of prompts a second, ``written_per_s`` tokens a second of :data:`BATCHES` sequences after 512."""

    model: str
    weights: str
    """The format nearest in size: MXFP4 files of 4.6 bits a weight are taken as Q4_0."""
    prompt_per_s: float
    written_per_s: tuple[float, ...]


SPARK = (
    Batches("gpt-oss-20b", "Q4_0", 3986.29, (81.11, 95.00, 151.90, 254.09, 400.94, 614.82)),
    Batches("gpt-oss-120b", "Q4_0", 1983.16, (57.28, 60.35, 95.08, 146.65, 220.02, 312.56)),
    Batches("qwen3-30b-a3b", "Q8_0", 3381.63, (57.63, 64.11, 102.01, 154.91, 232.98, 345.01)),
    Batches("qwen2.5-7b", "Q8_0", 2355.21, (29.24, 54.46, 104.33, 195.67, 335.01, 593.27)),
    Batches("gemma-3-4b", "Q4_0", 6123.63, (78.38, 126.21, 231.11, 369.93, 550.47, 801.81)),
)


def batch_ratios(form: dict[str, Any], batches: Batches) -> F64:
    """[6] predicted over measured time of a token of each batch."""
    arch, device = find_model(batches.model), find_accelerator("gb10")
    made = [seconds(form, arch, device, batches.weights, PROMPT + 16, 1, n) for n in BATCHES]
    return np.array(made) * np.array(batches.written_per_s) / np.array(BATCHES)


def prompt_ratio(form: dict[str, Any], batches: Batches) -> float:
    """Predicted over measured seconds of a prompt token."""
    arch, device = find_model(batches.model), find_accelerator("gb10")
    return prompt_time(form, arch, device, batches.weights)(PROMPT, 0) / PROMPT * batches.prompt_per_s


def fit_prompts(
    rows: Sequence[ServingRow], form: dict[str, Any], is_check: Callable[[ServingRow], bool]
) -> tuple[dict[str, float], float]:
    """Fit ``form["prompt"]`` in place on ``rows`` of single streams with a measured prompt rate; the errors, and the
    spread of the check rows."""
    mine = [r for r in rows if r.bits and not r.reason and r.prompt_per_s and r.n_devices == 1]
    learn = [r for r in mine if not is_check(r)]
    start = np.log([450.0, 0.77, 190.0, 0.8, 0.3, 1.5])

    def residual(x: F64) -> F64:
        form["prompt"] = _prompt(x)
        spark = [batch_ratios(form, b) for b in SPARK if b.model not in CHECKED]
        return np.log(np.concatenate([[_ratio(form, r) for r in learn], *spark]))

    best = least_squares(residual, start, loss="soft_l1", f_scale=0.1, diff_step=1e-3)
    form["prompt"] = _rounded(_prompt(best.x))
    errors: dict[str, float] = {}
    checked: list[F64] = []
    for part in ("fit", "check"):
        ratio = np.array([_ratio(form, r) for r in mine if is_check(r) == (part == "check")])
        errors[f"llama.cpp prompts {part} mape ({len(ratio)} rows)"] = round(float(np.mean(np.abs(ratio - 1))), 4)
        checked += [ratio] if part == "check" else []
        kept = [b for b in SPARK if (b.model in CHECKED) == (part == "check")]
        ratio = np.concatenate([batch_ratios(form, b) for b in kept])
        checked += [ratio] if part == "check" else []
        errors[f"llama.cpp batches {part} mape ({len(ratio)} rows)"] = round(float(np.mean(np.abs(ratio - 1))), 4)
    ratio = np.array([prompt_ratio(form, b) for b in SPARK])
    errors[f"llama.cpp prompts, DGX Spark, mape ({len(ratio)} rows)"] = round(float(np.mean(np.abs(ratio - 1))), 4)
    kept_apart = np.concatenate(checked)
    return errors, round(log_sigma_of(np.ones_like(kept_apart), kept_apart), 3)


def _prompt(x: F64) -> dict[str, Any]:
    wide, narrow, apple, apple_narrow, exponent, rows = (float(v) for v in np.exp(x))
    return {
        "flop_per_clock": {
            "NVIDIA": {"half": wide, "quantised": wide * narrow},
            "Apple": {"half": apple, "quantised": apple * apple_narrow},
        },
        "peak_exponent": exponent,
        "batch_rows": rows,
    }


def _rounded(prompt: dict[str, Any]) -> dict[str, Any]:
    """To three digits."""
    return {k: _rounded(cast("dict[str, Any]", v)) if isinstance(v, dict) else float(f"{v:.3g}") for k, v in prompt.items()}


def _ratio(form: dict[str, Any], row: ServingRow) -> float:
    assert row.architecture is not None and row.system is not None
    made = prompt_time(form, row.architecture, row.system.accelerator, row.bits)(row.prompt, 0)
    return made / row.prompt * row.prompt_per_s
