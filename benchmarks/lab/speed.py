"""Warp instructions a second of processor time: run for their values, and timed event by event.

    python -m benchmarks.lab.speed

A loop of the interpreter that takes a heap's first and puts it back stands beside them: machines differ, the ratio less. The
thread alone is timed: those of the BLAS spin for a while after a check against numpy. Each figure is of the least of three.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.lab import simulation
from gpuwise.lab.kernel import run_kernel
from gpuwise.lab.source import read_kernel
from gpuwise.lab.tasks import TASKS, launch_of

STEPS, TIMES = 300_000, 3
WHOLE = {"vector-add": 1 << 21, "divergence": 1 << 20, "matmul-tiled": 256, "softmax": 1024}
"""Sizes of tasks run whole for their values, where they are not the usual ones."""


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    least, made = float("inf"), None
    for _ in range(TIMES):
        began = time.thread_time()
        made = call()
        least = min(least, time.thread_time() - began)
    return least, made


def reference() -> None:
    heap = [(float(i), i) for i in range(64)]
    for _ in range(STEPS):
        when, i = heapq.heappop(heap)
        heapq.heappush(heap, (when + i % 7 + 1, i))


def main() -> None:
    step_s = seconds(reference)[0] / STEPS
    print(f"a step of the reference loop: {1e6 * step_s:.2f} us\n")
    print("| whole, for its values | million warp instructions a second |\n|---|---|")
    for name, task in TASKS.items():
        launch = launch_of(task, WHOLE.get(name, task.usual))
        arguments = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in launch.arguments.items()}
        kernel = read_kernel(task.source)
        took, run = seconds(lambda k=kernel, a=arguments, x=launch: run_kernel(k, a, grid=x.grid, block=x.block, timed_blocks=1))
        print(f"| {name} | {run.warp_instructions / took / 1e6:.2f} |")
    print("\n| timed, A100 | warp instructions | thousand a second | reference steps of one |\n|---|---|---|---|")
    timed, card = simulation.run_multiprocessor, find_accelerator("a100-sxm-80gb")
    for name, task in TASKS.items():
        times: list[tuple[float, int]] = []

        def watched(*given: Any, times: list[tuple[float, int]] = times) -> Any:
            spent, made = seconds(lambda: timed(*given))
            times.append((spent, made.issued))
            return made

        simulation.run_multiprocessor = watched
        simulation.simulate_task(task, launch_of(task, task.usual), card)
        spent, issued = times[-1]
        print(f"| {name} | {issued:,} | {issued / spent / 1e3:.0f} | {spent / issued / step_s:.1f} |")


if __name__ == "__main__":
    main()
