"""MLX LM on Apple's chips: tokens written, prompts and batches of ``local/speed.parquet``, in the form of llama.cpp's
(:mod:`gpuwise.serve.streams`).

Of rows whose model is in the catalogue: the share of bandwidth, how much slower a cache is read, the seconds of a layer at one
clock; each group of machine and model family is left out once, and the errors and widths are of rows that were left out. Rates of
prompts of dense models are medians over those groups. ``batch_rows`` is the median over batches of two and four on an M2 Max,
whose models need no dimensions for it: ``(t(n) - t(1)) / ((n - 1) 2 N / R)``. llmfit's figures hold the prompt's time, about 8 %.
"""

from __future__ import annotations

import math
from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.tables import read_columns
from gpuwise.errors import UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.streams import arithmetic_rate, prompt_time, seconds
from studies.coefficient_files import write
from studies.optimizers import least_squares
from studies.spreads import log_sigma_of

F64 = NDArray[np.float64]
FORMATS = {"BF16": "bf16"} | {text.format(bits): f"mlx_{bits}bit" for bits in (4, 5, 6, 8) for text in ("{}bit-mlx", "MLX-{}bit")}
WITH_PROMPT = 1.08
"""Measured rates of llmfit are so much higher without the prompt."""
SHORT = 300
"""Tokens in the cache where a source does not say."""
LEAST_PROMPT = 1024
"""Tokens of a prompt from which its rate counts."""
ENGINES = ("mlx", "mlx-lm", "mlx-lm-0.31.2", "oMLX (mlx)")
"""Without mlx-vlm, vllm-mlx and compressed caches."""
UNFITTED = ("M5",)
"""In an iPad, under MLX Swift."""
FULL = {"M3 Max": "M3 Max 40c", "M4 Max": "M4 Max 40c"}


TEXTS = ("engine", "quant", "spec_decode", "confidence", "machine", "family", "base_model", "model_hf_id", "model_name", "source")
NUMBERS = (
    *("decode_tok_s", "prompt_tok_s", "prompt_tokens", "gen_tokens", "context_tokens"),
    *("batch_users", "active_params_b", "model_params_b", "weight"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; ``arch`` is None where the catalogue has no such model."""

    arch: Architecture | None
    device: Accelerator
    weights: str
    text: dict[str, str]
    number: dict[str, float]
    """Without those that the source does not say."""

    @property
    def group(self) -> tuple[str, str]:
        return self.text["machine"], self.text["family"]

    @property
    def users(self) -> int:
        return int(self.number.get("batch_users", 1))

    @property
    def per_s(self) -> float:
        return self.number["decode_tok_s"] * (WITH_PROMPT if "llmfit" in self.text["source"] else 1.0)

    def written_s(self, form: dict[str, Any]) -> float:
        """Predicted seconds of a token."""
        assert self.arch is not None
        context = max(self.number.get("context_tokens", SHORT) - self.number.get("gen_tokens", 0) / 2, 16)
        return seconds(form, self.arch, self.device, self.weights, min(context, self.arch.max_seq_len), 1)


def read_rows(folder: Path) -> list[Row]:
    """Rows of MLX with a known format."""
    columns = (
        read_columns(folder / "local" / "speed.parquet", dict.fromkeys(TEXTS, "str") | dict.fromkeys(NUMBERS, "float")) or {}
    )
    rows: list[Row] = []
    for i in range(len(columns["engine"])):
        text = {name: str(columns[name][i]) for name in TEXTS}
        number = {name: v for name in NUMBERS if not math.isnan(v := float(columns[name][i]))}
        wanted = text["engine"] in ENGINES and text["quant"] in FORMATS and "decode_tok_s" in number
        if wanted and text["spec_decode"] != "yes" and text["confidence"] != "C" and text["machine"] not in UNFITTED:
            machine = text["machine"]
            device = find_accelerator(FULL.get(machine, machine))
            rows.append(Row(_arch(text), device, FORMATS[text["quant"]], text, number))
    return rows


def _arch(text: dict[str, str]) -> Architecture | None:
    for name in filter(None, (text["base_model"], text["model_hf_id"], text["model_name"])):
        try:
            return find_model(name.rpartition("/")[2])
        except UnknownNameError:
            continue
    return None


def fit(folder: Path) -> dict[str, float]:
    """Write ``coefficients/mlx_stream.json``; the errors."""
    rows = read_rows(folder)
    form = deepcopy(load_json("single_stream")["form"])
    del form["vendors"]["NVIDIA"], form["prompt"]["attention_share"]["AMD"]
    single = [r for r in rows if r.users == 1 and r.arch is not None]
    out: list[float] = []
    for group in sorted({r.group for r in single}):
        form["vendors"]["Apple"] = _stream(form, [r for r in single if r.group != group])
        out += [r.written_s(form) * r.per_s for r in single if r.group == group]
    form["vendors"]["Apple"] = _stream(form, single)
    ratios, left_out = np.array([r.written_s(form) * r.per_s for r in single]), np.array(out)
    _prompts(form, [r for r in single if "prompt_tok_s" in r.number and r.number.get("prompt_tokens", 0) >= LEAST_PROMPT])
    batches = _batch_rows(form, rows)
    form["prompt"]["batch_rows"] = float(f"{np.median(batches):.3g}")
    errors = {
        f"written, fit median ({len(ratios)} rows)": _median(ratios),
        f"written, left out by machine and family, median ({len(left_out)} rows)": _median(left_out),
        "written, left out by machine and family, mean": round(float(np.abs(left_out - 1).mean()), 4),
        f"rows of a batch, median ({len(batches)} rows)": _median(form["prompt"]["batch_rows"] / batches),
    }
    sigma = round(log_sigma_of(np.ones_like(left_out), left_out), 3)
    widths = {"known_device": sigma, "other_device": sigma, "batch": load_json("single_stream")["log_sigma"]["batch"]}
    measured = sorted({r.device.id for r in single})
    provenance = {
        "source": "ml-explore/mlx-lm mlx_lm/BENCHMARKS.md, llmfit community figures, apple-silicon-llm-bench, llm-benchmarks",
        "split": "each group of machine and model family left out once",
        "errors": errors,
        "date": "2026-11-29",
    }
    write("mlx_stream", {"form": form, "measured": measured, "log_sigma": widths, "provenance": provenance})
    return errors


def _median(ratios: F64) -> float:
    return round(float(np.median(np.abs(ratios - 1))), 4)


def _stream(form: dict[str, Any], rows: list[Row]) -> dict[str, float]:
    trial = deepcopy(form)

    def residual(x: F64) -> F64:
        trial["vendors"]["Apple"] = _vendor(x)
        return np.array([np.log(r.written_s(trial) * r.per_s) * r.number["weight"] ** 0.5 for r in rows])

    x = least_squares(residual, np.array([-0.1, -9.5, 0.5]), loss="soft_l1", f_scale=0.05, diff_step=1e-2).x
    return {name: float(f"{value:.3g}") for name, value in _vendor(x).items()}


def _vendor(x: F64) -> dict[str, float]:
    found = dict(zip(("bandwidth_share", "layer_s", "cache_slowdown"), np.exp(x).tolist(), strict=True))
    return found | {"layer_hz": 1.398e9, "layer_units": 1.0, "layer_units_exponent": 0.0}


def _prompts(form: dict[str, Any], rows: list[Row]) -> None:
    """Set the rates of prompts of dense models, of 16 bits and of narrower weights."""
    ratios: dict[tuple[str, tuple[str, str]], list[float]] = defaultdict(list)
    for r in rows:
        if r.arch is not None and r.arch.moe is None:
            tokens = r.number["prompt_tokens"]
            predicted = prompt_time(form, r.arch, r.device, r.weights, batch=2048)(tokens, 0)
            width = "half" if r.weights == "bf16" else "quantised"
            ratios[width, r.group].append(predicted * r.number["prompt_tok_s"] / tokens)
    old = form["prompt"]["flop_per_clock"]["Apple"]
    groups = {width: [np.median(v) for (w, _), v in ratios.items() if w == width] for width in old}
    form["prompt"]["flop_per_clock"] = {"Apple": {k: float(f"{old[k] * np.median(v):.3g}") for k, v in groups.items()}}


def _batch_rows(form: dict[str, Any], rows: list[Row]) -> F64:
    """Of batches with a row of one user of the same model, prompt and format."""
    alone = {_same(r): r.per_s for r in rows if r.users == 1}
    found: list[float] = []
    for r in (r for r in rows if r.users > 1 and _same(r) in alone):
        more = r.users / r.per_s - 1.0 / alone[_same(r)]
        active = 1e9 * r.number.get("active_params_b", r.number["model_params_b"])
        found.append(more / ((r.users - 1) * 2.0 * active / arithmetic_rate(form, r.device, r.weights)))
    return np.array(found)


def _same(row: Row) -> tuple[Any, ...]:
    return row.text["machine"], row.text["model_name"], row.weights, row.number.get("prompt_tokens")
