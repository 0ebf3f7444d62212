"""All-reduce over every GPU (NCCL) or over processes of this host (gloo), as its own processes: a rank that dies or hangs
is a failure with a name.

Bytes a second are bus bandwidth, 2 (n - 1) / n x bytes / time, as nccl-tests counts (doc/PERFORMANCE.md).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpuwise.errors import DeviceError
from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.prepared_case import Check, NotHereError, PreparedCase
from gpuwise.machine.bench.subjects import Subject, has_torch

GLOO_RANKS = 2
LIMIT_S = 120.0
"""Time limit for the processes to start, connect, measure and end."""
SAMPLES = 24


def make_collective(case: BenchCase, subject: Subject) -> PreparedCase:
    """Prepare an all-reduce: the processes run once, and their samples are returned one by one. Raises NotHereError."""
    if not has_torch():
        raise NotHereError("collectives are PyTorch's", hint="pip install 'gpuwise[torch]'")
    import torch
    import torch.distributed as distributed

    backend = case.variant.partition("-")[0]
    available = distributed.is_available() and (
        distributed.is_nccl_available() if backend == "nccl" else distributed.is_gloo_available()
    )
    if not available:
        raise NotHereError(f"this PyTorch has no {backend}")
    ranks = torch.cuda.device_count() if backend == "nccl" else GLOO_RANKS
    if ranks < 2:
        raise NotHereError("there is one GPU")
    if subject.kind == "cuda" and subject.index != 0:
        raise NotHereError("measured once, over all GPUs")
    size = int(case.parameters["bytes"])
    seconds, error = run_ranks(backend, ranks, size, case.dtype)
    remaining = iter(seconds)
    amount = 2.0 * (ranks - 1) / ranks * size

    def check() -> Check:
        return Check(error <= 1.0, error, f"every element on every one of {ranks} ranks")

    return PreparedCase(
        lambda: next(remaining), amount, check, conditions={"timed by": "host clock", "ranks": ranks, "samples": len(seconds)}
    )


def run_ranks(backend: str, ranks: int, size: int, dtype: str, *, limit_s: float = LIMIT_S) -> tuple[list[float], float]:
    """Seconds of each all-reduce, the slowest rank's, and the largest error over its bound. Raises DeviceError when a rank
    fails or hangs."""
    with tempfile.TemporaryDirectory(prefix="gpuwise-bench-") as folder:
        meeting = Path(folder) / "store"
        request = {"backend": backend, "ranks": ranks, "bytes": size, "dtype": dtype, "meeting": str(meeting), "samples": SAMPLES}
        environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        command = [sys.executable, "-m", "gpuwise.machine.bench.families.collective_rank"]
        started = [
            subprocess.Popen(
                [*command, json.dumps(request | {"rank": rank})],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(ranks)
        ]
        try:
            return _gather(started, time.monotonic() + limit_s, backend)
        finally:
            for process in started:
                with contextlib.suppress(OSError):
                    process.kill()
                process.communicate()


def _gather(started: list[Any], end_s: float, backend: str) -> tuple[list[float], float]:
    answers: list[dict[str, Any]] = []
    for rank, process in enumerate(started):
        try:
            out, err = process.communicate(timeout=max(0.1, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise DeviceError(
                f"{backend} all-reduce: rank {rank} did not answer in time", hint="set NCCL_DEBUG=INFO for details"
            ) from None
        if process.returncode or not out.strip():
            last = (err.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            raise DeviceError(f"{backend} all-reduce: rank {rank} failed: {last[:200]}", hint="set NCCL_DEBUG=INFO for details")
        answers.append(json.loads(out.strip().splitlines()[-1]))
    seconds = [max(times) for times in zip(*(a["seconds"] for a in answers), strict=True)]
    return seconds, max(float(a["error"]) for a in answers)
