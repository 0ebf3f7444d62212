"""Published runs that nothing here was fitted on, asked of the simulated engine: ``python benchmarks/serving/published.py``.

``published_runs.csv`` holds one run a line with its source: how the server was started, the load, and what its client wrote. Runs
with ``users`` 0 send every request at once, so that their throughput is the engine's capacity; the others hold so many requests
in flight. Prompts and answers of ``sharegpt`` are drawn about the published means, those of ``random`` are all alike, those of
``range0.8`` lie between 0.8 and 1 of the length.

Prints median and mean error of a figure by engine, accelerator and model; ``--rows`` every run.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from ratios import print_errors

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import GREEDY, Settings
from gpuwise.serve.load.requests import ClosedLoop, Requests
from gpuwise.serve.simulate import Run, Server

RUNS = Path(__file__).with_name("published_runs.csv")
GPUS = {
    "a100": "A100-SXM4-80GB",
    "h100": "H100-SXM5-80GB",
    "h20": "h20-96gb",
    "h200": "H200-SXM",
    "gh200": "gh200-96gb",
    "gb10": "gb10",
    "mi325x": "mi325x",
    "rtx4090": "rtx-4090",
    "rtx5090": "rtx-5090",
    "rtxpro5000": "rtx-pro-5000-blackwell-48gb",
    "rtxpro6000mq": "rtx-pro-6000-blackwell-max-q",
}
MODELS = {"deepseek-r1": "deepseek-v3"}
WEIGHTS = {"mxfp4": ("bf16", "mxfp4"), "awq": ("int4_wo", None)}
SHAREGPT_SPREAD = 1.0
"""Of the logarithm of ShareGPT's lengths."""


def config_of(row: dict[str, str]) -> EngineConfig:
    """How the server was started."""
    moe = find_model(MODELS.get(row["model"], row["model"])).moe is not None
    tp, ep, dp = int(row["tp"]), int(row["ep"]), int(row["attention_dp"])
    weights, experts = WEIGHTS.get(row["weights"], (row["weights"], None))
    return EngineConfig(
        row["engine"],
        weights,
        experts,
        tp=tp // dp,
        attention_dp=dp,
        moe_tp=tp // ep if moe else 1,
        moe_ep=ep if moe else 1,
        # 85 sequences of 5,250 tokens beside a Llama 70B in 8 bits on two H100 (its table at 100 users) are only held in 8 bits
        kv_dtype="fp8" if "/nim/" in row["source"] else "bf16",
        version=row["engine_version"],
    )


def lengths(mean: float, kind: str, n: int, seed: int) -> NDArray[np.int64]:
    """Tokens of ``n`` prompts or answers."""
    rng = np.random.default_rng(seed)
    if kind == "sharegpt":
        values = np.clip(rng.lognormal(0.0, SHAREGPT_SPREAD, n), 0.02, 8.0)
    elif kind == "range0.8":
        values = rng.uniform(0.8, 1.0, n)
    else:
        values = np.ones(n)
    return np.maximum(np.rint(values * (mean / values.mean())), 1).astype(np.int64)


def simulated(row: dict[str, str]) -> Run:
    """The run on the simulated engine. Raises what the engine would refuse."""
    architecture = find_model(MODELS.get(row["model"], row["model"]))
    system = find_cluster(f"{row['tp']}x{GPUS[row['gpu']]}").system
    settings = Settings(
        max_num_batched_tokens=int(row["step_tokens"]) if row["step_tokens"] else None,
        prefix_caching=False,
        chunked_prefill=True if row["chunked"] == "1" else None,
        sampling=GREEDY,
        max_model_len=32768 + 1024,
    )
    n, users = int(row["requests"]), int(row["users"])
    prompt, output = (lengths(float(row[f"{k}_mean"]), row["kind"], n, i) for i, k in enumerate(("input", "output")))
    server = Server(architecture, system, config_of(row), settings)
    return server.run(Requests(np.zeros(n), prompt, output), closed=ClosedLoop(users, 0.0) if users else None)


def figures(row: dict[str, str]) -> list[tuple[str, float, float]]:
    """(figure, published, predicted) of a run: seconds a request, and of those in flight by number the waits as well."""
    run = simulated(row)
    together = row["users"] == "0"
    out: list[tuple[str, float, float]] = []
    if row["req_s"]:
        out.append(("throughput" if together else "throughput of users", 1.0 / float(row["req_s"]), 1.0 / run.requests_per_s))
    if not together:
        # GenAI-Perf's windows open once figures are steady; vLLM's client counts the users that come all at once as well
        settled = slice(int(row["users"]) if "/nim/" in row["source"] else 0, None)
        for name, values in (("ttft", run.ttft_s), ("tpot", run.tpot_s)):
            if row[f"{name}_mean_ms"]:
                seen = float(np.nanmean(values[settled]))
                out.append((f"{name.upper()} of users", float(row[f"{name}_mean_ms"]) / 1e3, seen))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--only", default="", help="text that the engine, model or accelerator holds")
    arguments = parser.parse_args()
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    with RUNS.open() as file:
        rows = [r for r in csv.DictReader(file) if arguments.only in " ".join((r["engine"], r["model"], r["gpu"]))]
    for row in rows:
        shape = f"{row['input_mean']}+{row['output_mean']}"
        name = f"{row['engine']} {row['engine_version']} {row['model']} {row['weights']} {row['tp']}x{row['gpu']} ep{row['ep']}"
        name += f" dp{row['attention_dp']} {shape} {row['users']} users"
        try:
            found = figures(row)
        except GpuwiseError as error:
            print(f"{name}: not predicted: {error.message.splitlines()[0]}")
            continue
        for figure, published, predicted in found:
            ratio = predicted / published
            for group in ("all", row["engine"], row["gpu"], row["model"], f"{row['engine']} {row['kind']}"):
                errors[(figure, group)].append(ratio)
        if arguments.rows:
            print(name, "; ".join(f"{f} {p:.4g} {q:.4g} ({q / p:.2f})" for f, p, q in found))
    print_errors(errors)


if __name__ == "__main__":
    main()
