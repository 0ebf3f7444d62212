"""How fast a load is simulated: ``python benchmarks/serving/simulator_speed.py``.

Prints processor seconds of 10,000 requests with a prefix cache (with room, and with a pool so small that it preempts), and of 200
settings with 2,000 requests each, whose step times are built anew for every engine.
"""

from __future__ import annotations

import time
from itertools import product

import numpy as np

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.simulate import Requests, Server


def load(n: int, rate: float) -> Requests:
    """Chat-like lengths; 400 prompts that come again."""
    rng = np.random.default_rng(0)
    prompt = np.clip(rng.lognormal(6.3, 0.8, n), 8, 16000).astype(np.int64)
    output = np.clip(rng.lognormal(5.0, 0.8, n), 2, 4000).astype(np.int64)
    return Requests(np.cumsum(rng.exponential(1 / rate, n)), prompt, output, rng.integers(0, 400, n).astype(np.int64))


def main() -> None:
    arch, system = find_model("llama-3.1-8b"), find_cluster("1xH100-SXM5-80GB").system
    config = EngineConfig("vllm")
    Server(arch, system, config).run(load(100, 5.0))
    for rate, blocks in ((10.0, None), (30.0, None), (60.0, 4000)):
        server = Server(arch, system, config, Settings(kv_blocks=blocks))
        server.run(load(100, 5.0))
        start = time.process_time()
        run = server.run(load(10_000, rate))
        seconds = time.process_time() - start
        print(f"10,000 requests at {rate:g}/s, pool {run.n_blocks:,} blocks, {run.preemptions} preemptions: {seconds:.2f} s")
    requests = load(2000, 5.0)
    start = time.process_time()
    count = 0
    for (tp, weights), tokens, sequences, cache in product(
        product((1, 2), ("bf16", "fp8")), (2048, 4096, 8192, 16384, 32768), (64, 128, 256, 512, 1024), (True, False)
    ):
        ways = find_cluster(f"{tp}xH100-SXM5-80GB").system
        engine = EngineConfig("vllm", weights, tp=tp)
        Server(arch, ways, engine, Settings(tokens, sequences, prefix_caching=cache)).run(requests)
        count += 1
    print(f"{count} settings with 2,000 requests each: {time.process_time() - start:.1f} s")


if __name__ == "__main__":
    main()
