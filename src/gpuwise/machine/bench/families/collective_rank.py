"""One rank of an all-reduce: ``python -m gpuwise.machine.bench.families.collective_rank '{asked}'``; one JSON line on stdout."""

from __future__ import annotations

import datetime
import json
import sys
import time
from typing import Any

WARM = 4
CHECKED = 2**22
"""Elements compared at a time: the whole in fp64 would not fit a card that the collective fits."""


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Seconds of every all-reduce on this rank, and the largest error of its result over the bound."""
    import torch
    import torch.distributed as distributed

    backend, rank, ranks = request["backend"], int(request["rank"]), int(request["ranks"])
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        backend, init_method=f"file://{request['meeting']}", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=100)
    )
    kind = torch.bfloat16 if request["dtype"] == "bf16" else torch.float32
    count = max(1, int(request["bytes"]) // kind.itemsize)

    # numbers up to 256 whose sum over 8 ranks is exact in fp32 and within a rounding in bf16
    pattern = torch.arange(251, device=device)

    def wait() -> None:
        if backend == "nccl":
            torch.cuda.synchronize(device)

    x = torch.empty(count, dtype=kind, device=device)
    _fill(x, (pattern + rank).to(kind))
    distributed.all_reduce(x)
    # each of the ranks - 1 sums is rounded once
    unit = 2.0**-8 if kind is torch.bfloat16 else 2.0**-24
    error = _largest_error(x, pattern.double() * ranks + ranks * (ranks - 1) / 2, ranks * unit)
    seconds: list[float] = []
    for i in range(WARM + int(request["samples"])):
        distributed.barrier()
        wait()
        start = time.perf_counter()
        distributed.all_reduce(x)
        wait()
        if i >= WARM:
            seconds.append(time.perf_counter() - start)
        x.fill_(1.0)
    distributed.destroy_process_group()
    return {"seconds": seconds, "error": error}


def _fill(x: Any, pattern: Any) -> None:
    """``pattern`` over and over."""
    n, whole = len(pattern), len(x) // len(pattern)
    x[: whole * n].view(whole, n).copy_(pattern)
    x[whole * n :].copy_(pattern[: len(x) - whole * n])


def _largest_error(x: Any, pattern: Any, relative: float) -> float:
    """Largest error of ``x`` against ``pattern`` over and over, over its bound."""
    n = len(pattern)
    step = CHECKED // n * n
    largest = 0.0
    for start in range(0, len(x), step):
        part = x[start : start + step].double()
        true = pattern.repeat(-(-len(part) // n))[: len(part)]
        largest = max(largest, float(((part - true).abs() / (relative * true.clamp(min=1.0))).max()))
    return largest


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
