"""Batches that a program runs to their end, all of a length and without a server: argonne-lcf/LLM-Inference-Bench (BSD-3).

vLLM of 2024 is its first engine, whose server shares its process with the scheduler and slows every step; a program that calls
it has no server. What its steps cost then is fitted on the A100's rows (``engine_fit``). ROCm's engine of that year was about
twice as slow as its kernels say; llama.cpp's batches there share their prompt, and its single streams take longer than sixteen
at once. They are not replayed.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from gpuwise.calibrate.serving.load import Figure, LoadRun, records
from gpuwise.calibrate.serving.rows import model_of, system_of
from gpuwise.calibrate.tables import each
from gpuwise.errors import GpuwiseError
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import GREEDY, Settings
from gpuwise.serve.formats import weight_bytes_read
from gpuwise.serve.load.requests import Requests

GPUS = {"Nvidia A100 GPU": "a100-sxm-40gb", "Nvidia H100 GPU": "h100-sxm", "Nvidia GH200 GPU": "gh200-96gb"}
"""Polaris's A100, JLSE's H100 and GH200 (arXiv 2411.00136, table 2)."""
ENGINES = {"vLLM": ("vllm", "bf16", "0.6.0"), "TensorRT-LLM": ("trtllm", "fp16", "0.11.0")}
LABELS = {"vLLM": "vLLM V0 in process throughput", "TensorRT-LLM": "trtllm static batch throughput"}
EVERY = 8
"""One of this many rows of the table is used, by hash: they are similar."""
LENGTH = 4096
SHORT = "faster than its weights can be read: answers ended before their length"
"""Models whose context is as long as the prompt stop at once (GPT-J, Llama 7B and BLOOM with 2,048 + 2,048 tokens)."""
_TEXT = ("engine", "model", "gpu")
_NUMBERS = ("tp", "concurrency", "input_len_mean", "output_len_mean", "e2e_mean_s")


def read_static_batches(folder: Path) -> list[LoadRun]:
    """Those of ``folder/serving/load/argonne_offline.csv`` that are replayed."""
    rows = records(folder / "serving/load/argonne_offline.csv", _TEXT, _NUMBERS)
    rows = [r for r in rows if r["engine"] in ENGINES and r["gpu"] in GPUS and r["e2e_mean_s"] > 0 and _in_sample(r)]
    runs = each(rows, _run, "argonne_offline.csv")
    return [r for r in runs if r is not None]


def _in_sample(r: dict[str, Any]) -> bool:
    return zlib.crc32(repr(sorted(r.items())).encode()) % EVERY == 0


def _run(r: dict[str, Any]) -> LoadRun | None:
    """None for a model of the table that the catalogue lacks."""
    engine, weights, version = ENGINES[r["engine"]]
    n, tp = int(r["concurrency"]), int(r["tp"])
    prompt, output = int(r["input_len_mean"]), int(r["output_len_mean"])
    try:
        arch = model_of(r["model"])
        system = system_of(GPUS[r["gpu"]], tp)
    except GpuwiseError:
        return None
    read_s = weight_bytes_read(arch, weights) / tp / system.accelerator.memory_bandwidth_bytes_per_s
    return LoadRun(
        LABELS[r["engine"]],
        f"{r['model'].split('/')[-1]} {r['gpu']} tp{tp}",
        r["gpu"],
        (Figure("token", r["e2e_mean_s"] / (n * output)),),
        reason=SHORT if r["e2e_mean_s"] < output * read_s else "",
        architecture=arch,
        system=system,
        config=EngineConfig(engine, weights, tp=tp, version=version),
        settings=Settings(prefix_caching=False, sampling=GREEDY, max_model_len=LENGTH, in_process=True),
        requests=Requests(np.zeros(n), np.full(n, prompt, np.int64), np.full(n, output, np.int64)),
    )
