"""How fast the search evaluates strategies: GPT-3 175B on 512 and on 4,096 A100-80GB.

    python benchmarks/search_speed.py [--json]

The space is everything the model knows: every degree that divides, four pipeline schedules with all virtual
stages, five shardings with and without the optimizer on the host, recompute of none, selective or every
n-th layer with and without activation offload, sequence parallelism on and off, for each of fp16 and bf16,
fp32 and bf16 gradients, fused and unfused attention, whole and chunked loss. Limits of one software stack
are lifted (a union of what stacks can do), so that the space covers what a peer searches: calculon's for
the same model and 512 GPUs has 6.58 million points and takes it about 14 CPU-hours (129 a CPU-second on a
sample of them).

A strategy counts when its step time and its memory were computed, whether it fits or not; what a
divisibility rule removes is not counted. Seconds include the enumeration and the kernel model of all
distinct points.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from dataclasses import replace

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.space.conditions import Setting
from gpuwise.plan.space.strategies import Block, blocks, full_space
from gpuwise.plan.space.sweep import sweep
from gpuwise.workload.stacks.layout import LayoutRules
from gpuwise.workload.strategy import SCHEDULES, SHARDINGS, Strategy

ANY_STACK = LayoutRules(
    "union of all stacks",
    frozenset(SHARDINGS),
    frozenset(SHARDINGS),
    frozenset(SCHEDULES),
    offload_with_recompute=True,
)
SEQ_LEN = 2048


def whole_space(arch: Architecture, cluster: Cluster, global_batch: int) -> list[Block]:
    bases = [
        Strategy(precision=precision, gradient_dtype=gradients, fused_attention=attention, fused_loss=loss)
        for precision, gradients, attention, loss in itertools.product(
            ("fp16", "bf16"), ("fp32", "bf16"), (True, False), (True, False)
        )
    ]
    setting = replace(Setting.of(arch, cluster, bases[0], SEQ_LEN, global_batch), stack=ANY_STACK)
    return blocks(setting, full_space(setting), *bases)


def measure(on: str, global_batch: int) -> dict[str, object]:
    started, cpu = time.perf_counter(), time.process_time()
    arch, cluster = find_model("gpt3-175b"), find_cluster(on)
    found = whole_space(arch, cluster, global_batch)
    enumerated = time.perf_counter() - started
    done = sweep(arch, cluster, found, SEQ_LEN)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return {
        "on": on,
        "global_batch": global_batch,
        "strategies": done.n_strategies,
        "fit": done.n_fit,
        "seconds": seconds,
        "enumeration_s": enumerated,
        "cpu_s": cpu,
        "strategies_per_s": done.n_strategies / seconds,
        "strategies_per_cpu_s": done.n_strategies / cpu,
        "best_step_s": float(done.rows.rank_s[0]),
        "best": str(done.rows.strategy(done.blocks, 0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    as_json = parser.parse_args().json
    results = [measure("512xA100-SXM-80GB", 512), measure("4096xA100-SXM-80GB", 4096)]
    if as_json:
        print(json.dumps({"cpus": os.cpu_count(), "results": results}))
        return
    for r in results:
        print(
            f"GPT-3 175B on {r['on']}, batch {r['global_batch']}: {r['strategies']:,} strategies "
            f"({r['fit']:,} fit) in {r['seconds']:.2f} s = {r['strategies_per_s']:,.0f}/s, "
            f"{r['strategies_per_cpu_s']:,.0f} per CPU-second"
        )


if __name__ == "__main__":
    main()
