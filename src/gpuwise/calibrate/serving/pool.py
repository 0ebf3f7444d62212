"""Memory of an engine's start beside weights and cache, from its own start logs: fitted on models, checked on others."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuwise.calibrate.scores import Scores
from gpuwise.calibrate.serving.rows import model_of, system_of
from gpuwise.calibrate.tables import each, read_columns
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.predict.memory.kv_cache import PAGED, kv_pool_tokens
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.releases import engine_rules, resolved
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.memory import rank_weights
from gpuwise.serve.simulate.pool_memory import pool_memory
from gpuwise.units import GIB

_TEXT = ("engine_version", "model", "quantization", "kv_cache_dtype", "dtype")
_NUMBERS = (
    "tp",
    "pp",
    "gpu_memory_utilization",
    "activation_memory_gib",
    "non_torch_forward_gib",
    "cuda_graph_actual_gib",
    "kv_cache_tokens",
    "weights_memory_gib",
)
_FORMATS = {"": "bf16", "fp8": "fp8", "compressed-tensors": "fp8", "gptq_marlin": "int4_wo"}


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A start of an engine: what it logged, and its layout."""

    model: str
    gpu: str
    kv_tokens: float
    activation_bytes: float
    outside_bytes: float
    graph_bytes: float
    reason: str = ""
    architecture: Architecture | None = None
    system: System | None = None
    config: EngineConfig | None = None
    memory_share: float = 0.9


def read_pool_rows(folder: Path) -> list[PoolRow] | None:
    """Every start of the table; None when it is not there."""
    columns = read_columns(
        folder / "serving/load/vllm_memory_h100.csv", {**dict.fromkeys(_TEXT, "str"), **dict.fromkeys(_NUMBERS, "float")}
    )
    if columns is None:
        return None
    names = list(columns)
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return each(rows, _row, "vllm_memory_h100.csv")


def _row(r: dict[str, Any]) -> PoolRow:
    base = (
        r["model"],
        "H100-SXM5-80GB",
        r["kv_cache_tokens"],
        r["activation_memory_gib"] * GIB,
        r["non_torch_forward_gib"] * GIB,
        r["cuda_graph_actual_gib"] * GIB,
    )
    if not r["kv_cache_tokens"] > 0:
        return PoolRow(*base, reason="no cache logged")
    if r["pp"] > 1:
        return PoolRow(*base, reason="pipeline stages are not simulated")
    if "float32" in r["dtype"]:
        return PoolRow(*base, reason="weights in fp32")
    try:
        arch = model_of(r["model"])
        if arch is None:
            return PoolRow(*base, reason="no analytic form")
        tp = int(r["tp"])
        config = EngineConfig(
            "vllm",
            _FORMATS[r["quantization"]],
            kv_dtype="fp8" if r["kv_cache_dtype"] == "fp8" else "bf16",
            tp=tp,
            moe_tp=tp if arch.moe is not None else 1,
            version=r["engine_version"].split()[-1],
        )
        system = system_of("H100-SXM5-80GB", tp)
    except GpuwiseError as error:
        return PoolRow(*base, reason=error.message.split("\n")[0][:80])
    return PoolRow(*base, "", arch, system, config, r["gpu_memory_utilization"])


def pool_check(row: PoolRow) -> bool:
    """A third of the models is held out of the fit, by hash."""
    return hashlib.sha256(row.model.split("/")[-1].encode()).digest()[0] % 3 == 0


def predicted_tokens(row: PoolRow) -> float:
    """Tokens of cache the engine should find room for. Raises InputError where nothing is left."""
    assert row.architecture is not None and row.system is not None and row.config is not None
    settings = resolved(Settings(memory_share=row.memory_share), row.config, row.system.accelerator)
    rules = engine_rules(row.config)
    return float(pool_memory(row.architecture, row.system.accelerator, row.config, settings, rules).tokens)


def score_pool(folder: Path, all_check: bool) -> Scores | None:
    """Cache tokens that an engine allocated, for every start; the baseline is nine tenths of the device less the weights."""
    rows = read_pool_rows(folder)
    if rows is None:
        return None
    spread = float(load_json("pool")["provenance"]["log_sigma"])
    reason, value = [r.reason for r in rows], np.full(len(rows), np.nan)
    naive = np.full(len(rows), np.nan)
    for i, row in enumerate(rows):
        if row.reason:
            continue
        try:
            value[i], naive[i] = predicted_tokens(row), _naive_tokens(row)
        except GpuwiseError as error:
            reason[i] = error.message.split("\n")[0][:80]
    return Scores(
        source=["engine start, tokens of cache"] * len(rows),
        gpu=[r.gpu for r in rows],
        split=["check" if all_check or pool_check(r) else "fit" for r in rows],
        measured=np.array([r.kv_tokens for r in rows]),
        predicted=value,
        log_sigma=np.where(np.isfinite(value), spread, np.nan),
        baseline=naive,
        reason=reason,
    )


def _naive_tokens(row: PoolRow) -> float:
    """The device's share less the weights alone."""
    assert row.architecture is not None and row.system is not None and row.config is not None
    pool = usable_bytes(row.system.accelerator) * row.memory_share - rank_weights(row.architecture, row.config)
    return kv_pool_tokens(row.architecture, max(pool, 0.0), replace(PAGED, tp=row.config.tp, dtype=row.config.kv_dtype))
