"""Whole training scripts: what ``gpuwise fit SCRIPT`` says of them before, and what they take on the GPU, unmodified.

    python benchmarks/gpu/practice/whole.py --predict FILE.json
    python benchmarks/gpu/practice/whole.py --out FILE.jsonl --budget 40 [--only SCRIPT ...] [--after-stdin]

A script runs by ``runpy`` in a process of its own that has imported its libraries before its turn comes; it alone is on the GPU.
A hook of torch's optimizers writes down when each update was issued: ``step_s`` is the mean over the second half of them, after a
wait for the device at both ends. The driver says how much the GPU holds just before the process ends. ``--after-stdin``: import
at once, begin when the program before in a pipe has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = ("images", "classify", "chars", "adapters")


def predict(path: Path, on: str) -> None:
    """The command as people type it; the memory and time of its answer are added to the file."""
    whole: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {"on": on, "items": {}}
    found = whole["scripts"] = dict[str, Any]()
    for name in SCRIPTS:
        command = [sys.executable, "-m", "gpuwise", "fit", str(HERE / f"{name}.py"), "--on", f"1x{on}", "--no-remedies", "--json"]
        run = subprocess.run(command, capture_output=True, text=True)
        answer = json.loads(run.stdout.strip().splitlines()[-1])
        memory = answer.get("memory", {})
        row = {k: memory.get(k) for k in ("allocated_bytes", "reserved_bytes", "process_bytes", "context_bytes")}
        found[name] = {**row, "step_s": answer.get("step_time_s"), "error": answer.get("error")}
        print(name, run.returncode, json.dumps(found[name]), flush=True)
    path.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")


def run_script(path: Path) -> None:
    """One script, after a line on stdin; the last line of stdout is JSON."""
    import importlib

    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    for library in ("torchvision", "transformers", "peft"):
        if library in path.read_text("utf-8"):
            importlib.import_module(library)
    print("ready", flush=True)
    sys.stdin.readline()
    from training import Nvml

    nvml, there = Nvml(), torch.cuda.is_available()
    before = nvml.used_bytes()
    times: list[float] = []
    wait = torch.cuda.synchronize if there else lambda: None

    def updated(*_: object) -> None:
        if len(times) in (4, 8):
            wait()
        times.append(time.perf_counter())

    register_optimizer_step_post_hook(updated)
    row: dict[str, Any] = {"script": path.stem}
    began = time.perf_counter()
    sys.argv = [str(path)]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except Exception as error:  # noqa: BLE001 - the line says so
        row["error"] = f"{type(error).__name__}: {error}"[:500]
    wait()
    ended = time.perf_counter()
    row |= {"whole_s": ended - began, "updates": len(times), "first_s": times[0] - began if times else None}
    if len(times) > 10:
        half = max(len(times) // 2, 8)
        row["step_s"] = (times[-1] - times[half]) / (len(times) - 1 - half)
        row["from_8_to_end_s"] = (ended - times[8]) / (len(times) - 9)
    if there:
        used = nvml.used_bytes()
        row |= {"allocated_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()}
        row |= {"process_bytes": None if used is None or before is None else used - before, "before_bytes": before}
    print(json.dumps(row), flush=True)


def measure(out: Path, budget_s: float, names: Sequence[str], after_stdin: bool) -> None:
    """All processes import at once; then each has the GPU in its turn."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    processes = {
        name: subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--run", str(HERE / f"{name}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for name in names
    }
    if after_stdin:
        print(sys.stdin.read(), flush=True)
    deadline = time.time() + budget_s
    for name, process in processes.items():
        row: dict[str, Any] = {"script": name}
        try:
            said, _ = process.communicate("go\n", timeout=max(deadline - time.time(), 1.0))
            row = json.loads(said.strip().splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
            process.kill()
            row["error"] = f"{type(error).__name__}: {error}"[:300]
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", type=Path)
    parser.add_argument("--on", default="H100-SXM")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--only", nargs="*", default=SCRIPTS)
    parser.add_argument("--after-stdin", action="store_true")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_script(options.run)
    elif options.predict:
        predict(options.predict, options.on)
    elif options.out:
        measure(options.out, options.budget, options.only, options.after_stdin)
    else:
        parser.error("--predict or --out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
