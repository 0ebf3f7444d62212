"""How many users a server keeps within its targets, measured and simulated: ``python benchmarks/serving/measured_capacity.py``.

``capacity_runs.csv``: Qwen3-8B in 16 and in 8 bits on one H100 under vLLM 0.30.0, so many users who send the next of ``requests``
random prompts when an answer ends; medians of three runs, of each the percentiles of its client
(github.com/tgarg01/silybench-data, derived/csv/perf_points.csv of 24 September 2026, CC BY 4.0). ``CAPACITY`` holds the most
users with a first token within 2 s for 99 of 100 and a median gap within 50 ms, by halving (its capacity.csv), ``CACHE`` the
tokens of the cache as the server logged.

Prints each run with ``--rows``, and median and mean error of every figure.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from ratios import print_errors

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import GREEDY, Settings
from gpuwise.serve.load.requests import ClosedLoop, Requests
from gpuwise.serve.simulate import Run, Server

RUNS = Path(__file__).with_name("capacity_runs.csv")
CAPACITY = {
    ("bf16", 1024, 128): 80,
    ("bf16", 128, 1024): 396,
    ("bf16", 2048, 2048): 40,
    ("bf16", 8192, 512): 7,
    ("fp8", 1024, 128): 108,
    ("fp8", 128, 1024): 472,
    ("fp8", 2048, 2048): 52,
    ("fp8", 8192, 512): 10,
}
ROUNDS, LEAST = 5, 50
"""Requests of each user, and of all at least."""
CACHE = {"bf16": 377_024, "fp8": 430_272}
SLO_TTFT_P99_S, SLO_ITL_MEDIAN_S = 2.0, 0.05


def server_of(precision: str) -> Server:
    """As the runs started it."""
    system = find_cluster("1xH100-SXM").system
    settings = Settings(max_model_len=16384, memory_share=0.9, sampling=GREEDY)
    return Server(find_model("qwen3-8b"), system, EngineConfig("vllm", precision, version="0.30.0"), settings)


def served(server: Server, prompt: int, output: int, users: int, n: int) -> Run:
    """A closed loop of ``n`` requests that share nothing."""
    lengths = (np.full(n, prompt, np.int64), np.full(n, output, np.int64))
    return server.run(Requests(np.zeros(n), *lengths), closed=ClosedLoop(users, 0.0))


def most_users(server: Server, prompt: int, output: int, near: int) -> int:
    """The most users within the targets, by halving."""

    def keeps(users: int) -> bool:
        run = served(server, prompt, output, users, max(ROUNDS * users, LEAST))
        return run.percentile("ttft", 99) <= SLO_TTFT_P99_S and run.percentile("itl", 50) <= SLO_ITL_MEDIAN_S

    low, high = 1, near
    while keeps(high):
        low, high = high, high * 2
    while high - low > max(near // 50, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", action="store_true")
    rows = parser.parse_args().rows
    errors: dict[str, list[float]] = defaultdict(list)

    def note(of: str, figure: str, measured: float, predicted: float) -> str:
        errors[figure].append(predicted / measured)
        errors[f"{figure}, {of.split()[0]}"].append(predicted / measured)
        return f"{figure} {measured:.4g} {predicted:.4g} ({predicted / measured:.2f})"

    servers = {p: server_of(p) for p in CACHE}
    for precision, tokens in CACHE.items():
        print(note(f"{precision} cache", "cache tokens", tokens, servers[precision].memory.tokens))
    with RUNS.open() as file:
        for row in csv.DictReader(file):
            prompt, output, users, n = (int(row[k]) for k in ("input", "output", "users", "requests"))
            run = served(servers[row["precision"]], prompt, output, users, n)
            of = f"{row['precision']} {prompt}+{output} {users} users"
            said = [
                note(of, "seconds a request", 1 / float(row["req_s"]), 1 / run.requests_per_s),
                note(of, "ttft p99", float(row["ttft_p99_ms"]) / 1e3, run.percentile("ttft", 99)),
                note(of, "tpot p95", float(row["tpot_p95_ms"]) / 1e3, run.percentile("tpot", 95)),
                note(of, "itl median", float(row["itl_median_ms"]) / 1e3, run.percentile("itl", 50)),
            ]
            if rows:
                print(of, "; ".join(said), flush=True)
    for (precision, prompt, output), users in CAPACITY.items():
        found = most_users(servers[precision], prompt, output, users)
        print(precision, f"{prompt}+{output}", note(precision, "users within the targets", users, found), flush=True)
    print_errors(errors)


if __name__ == "__main__":
    main()
