"""``gpuwise bench`` on the card: its expectation beside what it measures; and ``gpuwise lab cpu-vs-gpu``."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import Any

from card_rows import GPU, Rows, environment, gpuwise

FAMILIES = ("matmul", "attention", "memory", "launch", "copy")
LOADERS = ("loader-images-0", "loader-images-2", "loader-images-4")
EACH, SPARE_S = "200ms", 3.0


def keys(*, tiny: bool) -> list[str]:
    """The cases that are for a GPU, the quick ones first, and the loaders."""
    from gpuwise.machine.bench.cases import CASES

    if tiny:
        return ["matmul-fp32-512x512x512", "loader-images-0"]
    cases = sorted((c for c in CASES if c.family in FAMILIES and "cuda" in c.on), key=lambda c: not c.quick)
    return [*(c.key for c in cases if c.quick), *LOADERS, *(c.key for c in cases if not c.quick)]


def run_bench(limit_s: float, *, tiny: bool) -> dict[str, Any]:
    """The document of the bench; interrupted after ``limit_s`` it says what it has."""
    words = [w for key in keys(tiny=tiny) for w in ("--only", key)]
    devices = [] if tiny else ["--device", "gpu", "--device", "cpu"]
    began = time.monotonic()
    process = subprocess.Popen(
        gpuwise("bench", "--json", "--no-save", "--each", EACH, *devices, *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    cut = False
    try:
        out, error = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        cut = True
        process.send_signal(signal.SIGINT)
        try:
            out, error = process.communicate(timeout=SPARE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, error = process.communicate()
    lines = [line for line in out.splitlines() if line.strip()]
    document = json.loads(lines[-1]) if lines else {}
    return {
        "exit": process.returncode,
        "cut": cut,
        "wall_s": time.monotonic() - began,
        "stderr": error[-1500:],
        "document": document,
    }


def versus(limit_s: float, *, tiny: bool) -> dict[str, Any]:
    size = "256" if tiny else "4096"
    made = subprocess.run(
        gpuwise("lab", "cpu-vs-gpu", "--size", size, "--on", GPU, "--json"),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=limit_s,
        check=False,
    )
    lines = [line for line in made.stdout.splitlines() if line.strip()]
    return {"exit": made.returncode, "document": json.loads(lines[-1]) if lines else None, "stderr": made.stderr[-300:]}


def main(rows: Rows, *, tiny: bool = False) -> None:
    """The bench; a row for each of its results."""
    made: list[dict[str, Any]] = []

    def bench() -> dict[str, Any]:
        limit_s = max(rows.left_s() - SPARE_S, 5.0)
        made.append(run_bench(limit_s, tiny=tiny))
        document = made[0]["document"]
        return {**made[0], "document": {k: v for k, v in document.items() if k != "results"}}

    rows.run("bench/run", bench, 90.0)
    for result in made[0]["document"].get("results", []) if made else []:
        rows.write(f"bench/{result.get('device')}/{result.get('measurement')}", **result)


def versus_rows(rows: Rows, *, tiny: bool = False) -> None:
    """The comparison of the lab, which measures this processor and this GPU."""
    rows.run("lab/cpu-vs-gpu", lambda: versus(max(rows.left_s() - 0.5, 2.0), tiny=tiny), 30.0)
