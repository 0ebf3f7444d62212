"""Fits all-reduces of cards whose driver lets no card read another's memory (GeForce): every byte is staged in host memory.

Token times of a tensor-parallel model (vLLM, Gemma 4 12B on two and four RTX 3090 of one EPYC host,
LottoLottoLotto/4x3090-llm-benchmarks in ``local/speed.parquet``) less the predicted kernels, whose error in each format is
fitted along. Other models and machines check.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.tables import read_records
from gpuwise.facts.hardware.naming import USUAL, find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.comm.fabric import KNOTS, Coefficients, Fabric, domain_time, shipped
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.iteration import one_iteration
from gpuwise.serve.simulate.front import front_of
from studies.optimizers import least_squares

F64 = NDArray[np.float64]
MODEL, GPU = "gemma-4-12b", "RTX 3090"
FORMATS = {"awq-int4": "int4_wo", "fp8-dynamic": "fp8"}
PROMPT = 640
"""Tokens in the cache in the middle of the answers: prompts of 512, answers of 256."""
MOST = 32
"""Users up to which all of them decode together on two cards; the cache of four holds more."""


def token_times(folder: Path) -> dict[tuple[str, int, int], float]:
    """Median seconds between tokens by format, cards and users."""
    found: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    text, numbers = ("source", "base_model", "quant", "spec_decode", "note"), ("n_gpu", "batch_users", "prompt_tokens")
    kinds = dict.fromkeys(text, "str") | dict.fromkeys(numbers, "float")
    for row in read_records(folder / "local/speed.parquet", kinds) or ():
        itl = re.search(r"itl_p50 ([\d.]+) ms", row["note"])
        known = row["source"].startswith("LottoLotto") and row["base_model"].endswith("gemma-4-12B-it")
        if itl and known and row["spec_decode"] == "no" and row["quant"] in FORMATS and row["prompt_tokens"] == 512:
            found[FORMATS[row["quant"]], int(row["n_gpu"]), int(row["batch_users"])].append(float(itl[1]) / 1e3)
    return {key: float(np.median(values)) for key, values in found.items() if key[1] > 1 and (key[1] > 2 or key[2] <= MOST)}


def fit(folder: Path) -> dict[str, Any]:
    """``staged_latency`` and ``staged_rate`` of ``coefficients/comm/collectives.json``."""
    arch, times = find_model(MODEL), token_times(folder)
    rows: list[tuple[str, int, float, float, float, float, float]] = []
    for (weights, n, users), itl in sorted(times.items()):
        config = EngineConfig("vllm", weights, tp=n)
        system = find_cluster(f"{n}x{GPU}", prefer=USUAL).system
        costs, device = front_of(config).costs, one_iteration(arch, system, config, users, 1, PROMPT)
        host = costs.iteration_s + costs.sequence_s * users + costs.layers_s(arch)
        calls = 2 * arch.n_layers + 1
        kernels = float(device.kernels_s[0]) * costs.kernel_slowdown
        rows.append((weights, n, 2.0 * users * arch.hidden, kernels, host, calls * costs.communication_slowdown, itl))

    def residual(x: F64) -> F64:
        c = with_staged(float(np.exp(x[0])), [float(v) for v in np.exp(x[1:3])])
        out: list[float] = []
        for weights, n, payload, kernels, host, calls, itl in rows:
            fabric = Fabric.of(find_cluster(f"{n}x{GPU}", prefer=USUAL).system)
            each = np.interp(payload, KNOTS, domain_time(c, fabric, "all_reduce", n, "vllm", 2).seconds)
            error = x[3] if weights == "fp8" else x[4]
            out.append(float(np.log((kernels * np.exp(error) + host + calls * each) / itl)))
        return np.array([*out, 0.5 * x[3], 0.5 * x[4]])

    best = least_squares(residual, np.log([2.0, 0.17, 0.06, 1.0, 1.0]), loss="soft_l1", f_scale=0.1, diff_step=1e-3)
    f = [float(f"{v:.3g}") for v in np.exp(best.x[:3])]
    return {"staged_latency": f[0], "staged_groups": [2, 4], "staged_rate": f[1:]}


def with_staged(latency: float, rates: list[float]) -> Coefficients:
    """The shipped coefficients with others for staged bytes."""
    constants = load_json("collectives")
    pcie = {**constants["pcie"], "staged_latency": latency, "staged_groups": [2, 4], "staged_rate": rates}
    return Coefficients({**constants, "pcie": pcie}, shipped().tables)
