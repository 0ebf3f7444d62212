"""Is the processor's roofline right about this machine? Products and copies in numpy beside what it predicts.

    OPENBLAS_NUM_THREADS=2 python benchmarks/cpu_check.py --per-clock 64 --ghz 3.0 --cores 2 --channels-gb-s 76.8

A virtual machine has a few cores of a processor and an unknown share of its memory channels, so the rates are given
by hand: operations per clock and core, clock, cores. Prints measured over predicted; nothing here is timed in tests.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from gpuwise.facts.hardware.cpus import Cpu, find_cpu
from gpuwise.predict.cpu import matmul_time, stream_time


def best_of(work: Callable[[], object], times: int = 5) -> float:
    """Shortest of a few runs, in seconds."""
    work()
    seconds: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def this_machine(arguments: argparse.Namespace) -> Cpu:
    """A processor with the rates given; the shares are those of every processor."""
    peak = arguments.cores * arguments.ghz * 1e9 * arguments.per_clock
    return replace(
        find_cpu("xeon 8480+"),
        id="this-machine",
        name="this machine",
        cores=arguments.cores,
        peak_flop_per_s=MappingProxyType({"fp32": peak}),
        matrix_dtypes=(),
        memory_bandwidth_bytes_per_s=arguments.channels_gb_s * 1e9,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--ghz", type=float, required=True)
    parser.add_argument("--per-clock", type=float, required=True)
    parser.add_argument("--channels-gb-s", type=float, required=True)
    cpu = this_machine(parser.parse_args())
    rng = np.random.default_rng(1)
    for n in (64, 256, 1024, 2048):
        a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
        seconds, said = best_of(lambda a=a, b=b: a @ b), matmul_time(cpu, "fp32", n, n, n).time_s
        print(f"product {n:5d}  {2 * n**3 / seconds / 1e9:7.1f} GFLOP/s  measured / predicted {seconds / said.expected:5.2f}")
    x = np.ones(64_000_000, dtype=np.float32)
    y = np.empty_like(x)
    seconds, said = best_of(lambda: np.copyto(y, x)), stream_time(cpu, x.nbytes, x.nbytes).time_s
    print(f"copy 256 MB    {2 * x.nbytes / seconds / 1e9:7.1f} GB/s     measured / predicted {seconds / said.expected:5.2f}")


if __name__ == "__main__":
    main()
