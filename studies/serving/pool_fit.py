"""Fits what an engine's start takes beside weights and cache, on models whose start logs are not for checking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpuwise.calibrate.serving.pool import pool_check, predicted_tokens, read_pool_rows
from studies.coefficient_files import write
from studies.spreads import log_sigma_of


def fit_pool(folder: Path, sequences: int = 1024) -> dict[str, float]:
    """Fit the parts, write ``coefficients/serving/pool.json``, return the errors of the cache's tokens."""
    rows = read_pool_rows(folder)
    assert rows is not None
    usable = [r for r in rows if not r.reason]
    learn = [r for r in usable if not pool_check(r)]
    # a model counts once however many starts it has
    archs = [r.architecture for r in learn if r.architecture is not None]
    weight = np.array([1.0 / sum(a.id == b.id for b in archs) for a in archs]) ** 0.5
    moe = np.array([a.moe is not None for a in archs])
    logits = np.array([sequences * a.vocab for a in archs], np.float64)
    active = np.array([r.activation_bytes for r in learn])
    keep = ~moe
    a, *_ = np.linalg.lstsq(
        (np.stack([logits, np.ones_like(logits)], axis=1) * weight[:, None])[keep], (active * weight)[keep], rcond=None
    )
    single = np.array([r.config is not None and r.config.tp == 1 for r in learn])
    outside = np.array([r.outside_bytes for r in learn])
    layers = np.array([a.n_layers for a in archs], np.float64)
    graphs = np.array([r.graph_bytes for r in learn])
    g, *_ = np.linalg.lstsq(np.stack([layers, np.ones_like(layers)], axis=1) * weight[:, None], graphs * weight, rcond=None)
    document: dict[str, Any] = {
        "logit_bytes": round(float(a[0]), 2),
        "activation_base_bytes": round(float(a[1])),
        "outside_bytes": round(float(np.median(outside[single]))),
        "outside_group_bytes": round(float(np.median(outside[~single]) - np.median(outside[single]))),
        "graph_layer_bytes": round(float(g[0])),
        "graph_base_bytes": round(float(g[1])),
        "provenance": {
            "source": "start logs of vLLM 0.19.0 on one to four H100, published by llm-d-planner (Apache-2.0)",
            "split": "a third of the models kept for checking, by hash",
            "date": "2026-11-23",
            "errors": {},
        },
    }
    write("pool", document)
    errors: dict[str, float] = {}
    for part in ("fit", "check"):
        mine = [r for r in usable if pool_check(r) == (part == "check")]
        off = [abs(predicted_tokens(r) / r.kv_tokens - 1) for r in mine]
        errors[f"kv tokens {part} mape ({len(off)} starts)"] = round(float(np.mean(off)), 4)
    document["provenance"]["errors"] = errors
    ratio = np.array([predicted_tokens(r) / r.kv_tokens for r in usable if pool_check(r)])
    document["provenance"]["log_sigma"] = round(log_sigma_of(np.ones_like(ratio), ratio), 4)
    write("pool", document)
    return errors
