"""Prompts and batches of llama.cpp: how fast rows are multiplied, and what a row of a decoded batch costs.

Prompts are of the table of single streams (its prompt column), GPUs kept for checking as there. Batches are llama.cpp's own of
a DGX Spark (ggml-org/llama.cpp benches/dgx-spark.md, build 6918, ``llama-batched-bench``; MIT): whole models are kept.

Prompts of a Strix Halo (kyuz0/amd-strix-halo-toolboxes@d1a34be, benchmark/results; long ones
fromthematrix.dev/posts/local-llm-speed-benchmark-strix-halo) and of the Spark fit AMD's rate, the share of it that attention
has, and what experts lose to few rows each. The Spark's own rate is free in this fit and thrown away: it is off by one factor
for every model, and would hide in the experts' otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.serving.rows import ServingRow
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.streams import prompt_time, seconds
from studies.optimizers import least_squares
from studies.spreads import log_sigma_of

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
    prompt_per_s: float
    written_per_s: tuple[float, ...]


SPARK = (
    Batches("gpt-oss-20b", "MXFP4", 3986.29, (81.11, 95.00, 151.90, 254.09, 400.94, 614.82)),
    Batches("gpt-oss-120b", "MXFP4", 1983.16, (57.28, 60.35, 95.08, 146.65, 220.02, 312.56)),
    Batches("qwen3-30b-a3b", "Q8_0", 3381.63, (57.63, 64.11, 102.01, 154.91, 232.98, 345.01)),
    Batches("qwen2.5-7b", "Q8_0", 2355.21, (29.24, 54.46, 104.33, 195.67, 335.01, 593.27)),
    Batches("gemma-3-4b", "Q4_0", 6123.63, (78.38, 126.21, 231.11, 369.93, 550.47, 801.81)),
)


def batch_ratios(form: dict[str, Any], batches: Batches) -> F64:
    """[6] predicted over measured time of a token of each batch."""
    arch, device = find_model(batches.model), find_accelerator("gb10")
    times = [seconds(form, arch, device, batches.weights, PROMPT + 16, 1, n) for n in BATCHES]
    return np.array(times) * np.array(batches.written_per_s) / np.array(BATCHES)


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
        return np.log(np.concatenate([[_ratio(form, r) for r in learn], *(s / s[0] for s in spark)]))  # rows, not the stream

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
        "attention_share": {},
        "expert_share": 1.0,
        "expert_rows": 0.0,
    }


def _rounded(prompt: dict[str, Any]) -> dict[str, Any]:
    """To three digits."""
    return {k: _rounded(cast("dict[str, Any]", v)) if isinstance(v, dict) else float(f"{v:.3g}") for k, v in prompt.items()}


def _ratio(form: dict[str, Any], row: ServingRow) -> float:
    assert row.architecture is not None and row.system is not None
    prompt_s = prompt_time(form, row.architecture, row.system.accelerator, row.bits)(row.prompt, 0)
    return prompt_s / row.prompt * row.prompt_per_s


# --- machines that the table of single streams has none or one of

PROMPTS: tuple[tuple[str, str, str, int, int, int, float], ...] = (
    ("llama-2-7b", "ryzen-ai-max-395", "Q4_0", 512, 0, 512, 1545.36),
    ("llama-2-7b", "ryzen-ai-max-395", "Q4_0", 512, 0, 512, 1337.70),
    ("gpt-oss-20b", "ryzen-ai-max-395", "MXFP4", 512, 0, 512, 1786.17),
    ("gpt-oss-20b", "ryzen-ai-max-395", "MXFP4", 512, 0, 512, 1692.49),
    ("gpt-oss-120b", "ryzen-ai-max-395", "MXFP4", 512, 0, 512, 625.58),
    ("gpt-oss-120b", "ryzen-ai-max-395", "MXFP4", 512, 0, 512, 719.91),
    ("qwen3-30b-a3b", "ryzen-ai-max-395", "Q4_K_M", 7624, 0, 512, 779.0),
    ("gpt-oss-20b", "ryzen-ai-max-395", "MXFP4", 7624, 0, 512, 1040.0),
    ("gpt-oss-120b", "ryzen-ai-max-395", "MXFP4", 7624, 0, 512, 404.0),
    ("mistral-small-24b", "ryzen-ai-max-395", "Q4_K_M", 7624, 0, 512, 281.0),
    ("gpt-oss-20b", "gb10", "MXFP4", 2048, 0, 2048, 3782.76),
    ("gpt-oss-20b", "gb10", "MXFP4", 2048, 4096, 2048, 3030.29),
    ("gpt-oss-20b", "gb10", "MXFP4", 2048, 8192, 2048, 2852.09),
    ("gpt-oss-20b", "gb10", "MXFP4", 2048, 32768, 2048, 1899.37),
    ("gpt-oss-120b", "gb10", "MXFP4", 2048, 0, 2048, 1937.54),
    ("gpt-oss-120b", "gb10", "MXFP4", 2048, 4096, 2048, 1653.89),
    ("gpt-oss-120b", "gb10", "MXFP4", 2048, 8192, 2048, 1580.60),
    ("gpt-oss-120b", "gb10", "MXFP4", 2048, 32768, 2048, 1155.40),
    ("qwen3-30b-a3b", "gb10", "Q8_0", 2048, 0, 2048, 3175.62),
    ("qwen3-30b-a3b", "gb10", "Q8_0", 2048, 4096, 2048, 2704.06),
    ("qwen3-30b-a3b", "gb10", "Q8_0", 2048, 8192, 2048, 2381.88),
    ("qwen3-30b-a3b", "gb10", "Q8_0", 2048, 32768, 2048, 1292.19),
    ("qwen2.5-7b", "gb10", "Q8_0", 512, 0, 2048, 2379.83),
)
"""Model, device, format, tokens of the prompt, tokens before it, tokens of a batch (``n_ubatch``), tokens a second."""


def fit_other_prompts(form: dict[str, Any]) -> float:
    """Fit AMD's rates and the share of experts in ``form["prompt"]`` in place; mean error of the AMD rows."""
    amd = np.array([d == "ryzen-ai-max-395" for _, d, *_ in PROMPTS])
    usual = dict(form["prompt"]["flop_per_clock"]["NVIDIA"])

    def ratios(prompt: dict[str, Any]) -> F64:
        trial = {**form, "prompt": prompt}
        times = [
            prompt_time(trial, find_model(m), find_accelerator(d), w, batch=b)(n, before) / n * s
            for m, d, w, n, before, b, s in PROMPTS
        ]
        return np.array(times)

    def residual(x: F64) -> F64:
        ratio = ratios(_other(form["prompt"], usual, x))
        return np.log(np.where(amd, ratio, ratio * np.exp(-x[4])))

    start = np.log([0.6, 0.2, 0.65, 24.0, 0.75])
    best = least_squares(residual, start, loss="soft_l1", f_scale=0.1, diff_step=1e-3)
    form["prompt"] = _other(form["prompt"], usual, best.x, digits=3)
    return float(np.mean(np.abs(ratios(form["prompt"])[amd] - 1.0)))


def _other(prompt: dict[str, Any], usual: dict[str, float], x: F64, digits: int = 12) -> dict[str, Any]:
    rate, attention, share, rows = (float(f"{v:.{digits}g}") for v in np.exp(x[:4]))
    copy = deepcopy(prompt)
    copy["flop_per_clock"]["AMD"] = {k: float(f"{v * rate:.{digits}g}") for k, v in usual.items()}
    copy["attention_share"] = {"AMD": attention}
    copy["expert_share"], copy["expert_rows"] = share, rows
    return copy
