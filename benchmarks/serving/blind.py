"""Runs that were written down before anything was asked: ``PYTHONPATH=. python benchmarks/serving/blind.py [--note DIR]``.

``benchmarks/records/serving/blind/*.csv`` hold one published run a line with its source and settings. All requests come at
once; of ``batch`` rows they are one batch; of ``users`` rows so many are in flight, of lengths drawn from 1 to those given.
vLLM's own benchmarks draw tokens by their probability. Prints predicted over published time, and with ``--note`` writes it
beside the measured rows in DIR to what answers say of known errors.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from ratios import print_errors

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import EngineConfig, version_number
from gpuwise.serve.engines.settings import DRAWN, GREEDY, Settings
from gpuwise.serve.load.requests import ClosedLoop, Requests
from gpuwise.serve.simulate import Server
from studies.serving.load_fit import Published, note_checked

RECORDS = Path(__file__).parents[1] / "records/serving/blind"
GPUS = {"h100": "h100-sxm-80gb", "rx7900xtx": "rx-7900-xtx", "a100": "a100-sxm-80gb"}

OLDEST_TRTLLM = "0.11.0"
"""Whose rules are known; rows of an older one are asked as this."""


def slowness(row: dict[str, str]) -> float:
    """Predicted over published time of a run. Raises what the engine would refuse."""
    n, prompt, output = int(row["prompts"]), int(row["input"]), int(row["output"])
    published, metric = float(row["published"]), row["metric"]
    local = row["engine"] == "llama.cpp"
    engine, tp, arch = row["engine"], int(row["tp"]), find_model(row["model"])
    version = {"llama.cpp": None, "trtllm": max(row["version"], OLDEST_TRTLLM, key=version_number)}.get(engine, row["version"])
    config = EngineConfig(engine, row["weights"], kv_dtype=row["kv"], tp=tp, version=version)
    if arch.moe is not None:
        config = replace(config, **{"moe_ep" if row["kind"].startswith("ep") else "moe_tp": tp})
    users = int(row["batch"]) if row["kind"] == "users" else None
    settings = Settings(
        max_num_seqs=int(row["batch"]) if users is None else None,
        max_num_batched_tokens=max(131072, n) if "amd.com" in row["source"] else None,
        prefix_caching=False,
        sampling=DRAWN if engine == "vllm" else GREEDY,
        in_process=engine == "vllm",
        max_model_len=None if not local else 8192,
    )
    server = Server(arch, _cluster(row).system, config, settings)
    lengths = np.full(n, prompt), np.full(n, output)
    if users is not None:
        rng = np.random.default_rng(0)
        lengths = rng.integers(1, prompt + 1, n), rng.integers(1, output + 1, n)
    run = server.run(Requests(np.zeros(n), *lengths), closed=None if users is None else ClosedLoop(users, 0.0))
    match metric:
        case "output_tokens_per_s":
            return run.duration_s / (n * output / published)
        case "batch_s":
            return run.duration_s / published
        case "token_ms":
            return 1e3 * run.mean("tpot") / published
        case _:
            return run.mean("ttft") / (prompt / published)


def _cluster(row: dict[str, str]) -> Cluster:
    return find_cluster(f"{row['tp']}x{GPUS.get(row['gpu'], row['gpu'])}")


def main() -> None:
    groups: dict[str, list[float]] = defaultdict(list)
    published: list[Published] = []
    for path in sorted(RECORDS.glob("*.csv")):
        for row in csv.DictReader(path.open()):
            name = f"{row['engine']} {row['version']} {row['model']} {row['tp']}x{row['gpu']} {row['weights']}"
            shape = f"{row['prompts']} x {row['input']}+{row['output']} {row['metric']} {row['published']}"
            try:
                ratio = slowness(row)
            except GpuwiseError as error:
                print(name, shape, "not predicted:", error.message.splitlines()[0])
                continue
            print(f"{name} {shape} {ratio:.2f}")
            if row["engine"] != "llama.cpp":
                published.append((row["engine"], _cluster(row).accelerator.id, find_model(row["model"]), ratio))
            for group in ("all", f"{row['engine']} {row['version']}", f"{row['engine']} {row['gpu']} {row['kind']}"):
                groups[group].append(ratio)
    print_errors(groups)
    if "--note" in sys.argv:
        note_checked(Path(sys.argv[-1]), published)


if __name__ == "__main__":
    main()
