"""Runs that were written down before anything was asked: ``python benchmarks/serving/blind.py``.

``benchmarks/records/serving/blind_runs_*.csv`` hold one published run a line with its source and settings. All requests come at
once; of ``batch`` rows they are one batch. vLLM's own benchmarks draw tokens by their probability. Prints predicted over
published time.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from ratios import print_errors

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engine import LLAMA_CPP, EngineConfig
from gpuwise.serve.load.requests import Requests
from gpuwise.serve.simulate import Server, Settings
from gpuwise.serve.simulate.settings import DRAWN, GREEDY

RECORDS = Path(__file__).parents[1] / "records/serving"
GPUS = {"mi300x": "mi300x", "h100": "h100-sxm-80gb", "rx7900xtx": "rx-7900-xtx"}

OLDEST_TRTLLM = "0.11.0"
"""Whose rules are known; rows of an older one are asked as this."""


def slowness(row: dict[str, str]) -> float:
    """Predicted over published time of a run. Raises what the engine would refuse."""
    n, prompt, output = int(row["prompts"]), int(row["input"]), int(row["output"])
    published, metric = float(row["published"]), row["metric"]
    local = row["engine"] == LLAMA_CPP
    version = {LLAMA_CPP: None, "trtllm": OLDEST_TRTLLM}.get(row["engine"], row["version"])
    config = EngineConfig(row["engine"], row["weights"], kv_dtype=row["kv"], tp=int(row["tp"]), version=version)
    settings = Settings(
        max_num_seqs=int(row["batch"]),
        max_num_batched_tokens=max(131072, n) if "amd.com" in row["source"] else None,
        prefix_caching=False,
        sampling=DRAWN if row["engine"] == "vllm" else GREEDY,
        in_process=row["engine"] == "vllm",
        max_model_len=None if not local else 8192,
    )
    server = Server(find_model(row["model"]), find_cluster(f"{row['tp']}x{GPUS[row['gpu']]}").system, config, settings)
    run = server.run(Requests(np.zeros(n), np.full(n, prompt), np.full(n, output)))
    match metric:
        case "output_tokens_per_s":
            return run.duration_s / (n * output / published)
        case "batch_s":
            return run.duration_s / published
        case "token_ms":
            return 1e3 * run.mean("tpot") / published
        case _:
            return run.mean("ttft") / (prompt / published)


def main() -> None:
    groups: dict[str, list[float]] = defaultdict(list)
    for path in sorted(RECORDS.glob("blind_runs_*.csv")):
        for row in csv.DictReader(path.open()):
            name = f"{row['engine']} {row['version']} {row['model']} {row['tp']}x{row['gpu']} {row['weights']}"
            shape = f"{row['prompts']} x {row['input']}+{row['output']} {row['metric']} {row['published']}"
            try:
                ratio = slowness(row)
            except GpuwiseError as error:
                print(name, shape, "not predicted:", error.message.splitlines()[0])
                continue
            print(f"{name} {shape} {ratio:.2f}")
            for group in ("all", f"{row['engine']} {row['version']}", f"{row['engine']} {row['gpu']} {row['kind']}"):
                groups[group].append(ratio)
    print_errors(groups)


if __name__ == "__main__":
    main()
