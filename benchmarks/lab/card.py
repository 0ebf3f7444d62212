"""The lab beside a real card: its tasks, kernels of tutorials, the constants below them, occupancy, counters, and the processor.

    python benchmarks/lab/card.py --predict FILE               # on any machine, before
    python benchmarks/lab/card.py --out FILE --budget 66       # on the card
    python benchmarks/lab/card.py --table FILE

One JSON line a row. ``lab/*`` as benchmarks/gpu/card.py has them. ``program/NAME``: the module's text compiled by numba-cuda, its
values against numpy (``error``), ``cold`` (the L2 full of another array that was written), ``clean`` (of one that was read) and
``hot``; ``constants/*`` as card_constants.py has them; ``processor/TASK/SIZE``: PyTorch on all cores with cold caches, and the
copies; ``processor/here``: the processor as ``gpuwise bench`` measured it; ``counters/*``: Nsight Compute's beside the
simulator's; ``compiled/*``: nvcc's cubin and log as ``gpuwise lab occupancy`` reads them, and the driver.
"""

# ruff: noqa: E501 - commands and kernels in their text
from __future__ import annotations

import argparse
import csv
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks" / "gpu"), str(ROOT)]

import card_lab  # noqa: E402
from benchmarks.lab.programs import FITTED, PROGRAMS, Program, worst  # noqa: E402
from card_rows import GPU, Rows, environment, read_predictions, read_rows  # noqa: E402

RECORDS = ROOT / "benchmarks" / "records" / "lab"
PREDICTIONS = RECORDS / "card_predictions_2026-11-27c.jsonl"
LOCK = Path(tempfile.gettempdir()) / "gpuwise_lab_card.lock"
WORKERS = 4
LAST = {"processor": 10.0, "here": 12.0, "counters": 14.0}
"""Sections that run alone at the end, and the seconds kept for each."""
SECTIONS = ("programs", "compiled", "tasks", "numba", *LAST)
PROCESSOR_TASKS = (
    "vector-add", "matmul-naive", "reduction", "transpose", "divergence", "gather", "softmax", "attention-fused", "convolution",
)  # fmt: skip
"""One of those that a library does in the same way."""
CROSSOVER_SIZES = 4
METRICS = (
    "gpu__time_duration.sum,sm__cycles_elapsed.max,smsp__inst_executed.sum,sm__warps_active.avg.pct_of_peak_sustained_active,"
    "smsp__issue_active.avg.pct_of_peak_sustained_active,"
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum,l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum,"
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum,l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum,"
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum,l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum,"
    "lts__t_sectors_op_read.sum,lts__t_sectors_op_write.sum,dram__bytes_read.sum,dram__bytes_write.sum,"
    + ",".join(
        f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
        for reason in (
            "long_scoreboard", "short_scoreboard", "barrier", "lg_throttle", "mio_throttle", "math_pipe_throttle", "wait",
            "not_selected", "no_instruction", "branch_resolving", "dispatch_stall", "membar",
        )
    )
)  # fmt: skip
PROFILED = (
    ("vector-add", 1 << 20), ("matmul-naive", 256), ("matmul-tiled", 256), ("transpose", 1024), ("transpose-padded", 1024),
    ("reduction", 1 << 20), ("gather", 1 << 19), ("softmax", 1024), ("convolution", 512), ("divergence", 1 << 19),
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    o = _options(arguments)
    if o.table:
        print(table(read_rows(o.table)))
        return 0
    if o.predict:
        predict(o.predict)
        return 0
    predictions = read_predictions(PREDICTIONS)
    end_s = time.monotonic() + o.budget
    if o.section:
        _section(o, predictions, end_s)
        return 0
    rows = Rows(o.out, "lab card", end_s)
    rows.write("card/start", budget_s=o.budget, predictions=len(predictions), card=rows.readings())
    LOCK.unlink(missing_ok=True)
    wanted = o.sections.split(",")
    together = [f"programs-{w}" for w in range(WORKERS) if "programs" in wanted]
    together += [name for name in ("compiled", "tasks", "numba") if name in wanted]
    later = [(name, LAST[name]) for name in LAST if name in wanted]
    _wait(rows, [_start(o, name, o.budget) for name in together], end_s - sum(s for _, s in later))
    for name, seconds in later:
        left = end_s - time.monotonic() - 1.0
        if left > 4.0:
            _wait(rows, [_start(o, name, min(seconds, left))], time.monotonic() + min(seconds, left) + 1.0)
    rows.write("card/end", left_s=rows.left_s())
    return 0


Child = tuple[str, float, "subprocess.Popen[bytes]"]


def _start(o: argparse.Namespace, section: str, budget_s: float) -> Child:
    words = [sys.executable, __file__, "--section", section, "--out", str(o.out), "--budget", f"{budget_s:.1f}"]
    words += ["--tiny"] if o.tiny else []
    process = subprocess.Popen(
        words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    return section, time.monotonic(), process


def _wait(rows: Rows, running: list[Child], end_s: float) -> None:
    for section, began, process in running:
        try:
            _, error = process.communicate(timeout=max(end_s - time.monotonic(), 0.2))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # the section's own group
            _, error = process.communicate()
        text = error.decode(errors="replace")[-1500:] if process.returncode else ""
        rows.write(f"card/{section}", took_s=time.monotonic() - began, exit=process.returncode, stderr=text)


def _section(o: argparse.Namespace, predictions: dict[str, Any], end_s: float) -> None:
    rows = Rows(o.out, o.section, end_s)
    try:
        if o.section.startswith("programs-"):
            programs(rows, predictions, int(o.section.split("-")[1]))
        elif o.section == "tasks":
            tasks(rows, predictions)
        elif o.section == "numba":
            numba_tasks(rows, predictions)
        elif o.section == "here":
            rows.run("processor/here", _here, 14.0)
        elif o.section == "compiled":
            compiled(rows)
        elif o.section == "counters":
            counters(rows, predictions)
        elif o.section == "profiled":
            profiled()
        else:
            processor(rows, tiny=o.tiny)
    except Exception as error:  # noqa: BLE001 - the rows that are written stand
        rows.write(f"{o.section}/broken", error=str(error)[:500], traceback=traceback.format_exc()[-1500:])


@contextmanager
def card_alone() -> Iterator[None]:
    """One process at a time has the card."""
    with LOCK.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


# predictions


def predict(path: Path) -> None:
    rows = Rows(path, "predictions", time.monotonic() + 3600.0)
    path.unlink(missing_ok=True)
    for program in PROGRAMS:
        rows.run(f"program/{program.name}", lambda p=program: predict_program(p), 120.0)
    for task, n in [*card_lab.items(), *(("strided", s) for s in card_lab.STRIDES)]:
        rows.run(f"lab/{task}/{n}", lambda task=task, n=n: card_lab.predict(task, n), 120.0)
    for task, sizes in card_lab.SIZES.items():
        n = sizes[min(1, len(sizes) - 1)]
        rows.run(f"lab/numba/{task}/{n}", lambda task=task, n=n: card_lab.predict(task, n, by_numba=True), 120.0)


def predict_program(p: Program) -> dict[str, Any]:
    """As a person asks who knows no registers."""
    from gpuwise.facts.hardware.naming import USUAL, find_accelerator
    from gpuwise.lab.simulation import simulate_kernel
    from gpuwise.lab.source import kernel_source

    arguments = p.arguments()
    before = {k: v.copy() if hasattr(v, "copy") else v for k, v in arguments.items()}
    made = simulate_kernel(
        kernel_source(p.text, "k"),
        arguments,
        grid=p.grid,
        block=p.block,
        accelerator=find_accelerator(GPU, prefer=USUAL),
        expected=None if p.in_any_order else lambda: p.expected(before),
        tolerance=max(p.tolerance, 1e-3),
    )
    return card_lab.predicted_row(made) | {
        "predicted_right": made.checked,
        "predicted_error": made.worst_error,
        "findings": [f.kind for f in made.findings],
        "fitted": p.name in FITTED,
    }


# the card


def programs(rows: Rows, predictions: dict[str, Any], worker: int) -> None:
    """Every so-manyth program: compiled beside the others, timed alone."""
    import numpy as np

    card = card_lab.Card()
    cuda = card_lab.numba_cuda()
    from numba import typeof

    with tempfile.TemporaryDirectory() as folder:
        for number, p in list(enumerate(PROGRAMS))[worker::WORKERS]:
            key = f"program/{p.name}"
            file = Path(folder) / f"program_{number}.py"  # numba reads a kernel's source from its file
            file.write_text(p.text, encoding="utf-8")

            def run(p: Program = p, file: Path = file, key: str = key) -> dict[str, Any]:
                names: dict[str, Any] = {}
                exec(compile(file.read_text("utf-8"), str(file), "exec"), names)
                arguments, dispatcher = p.arguments(), names["k"]
                order = card_lab.parameters_of(dispatcher.py_func)
                with suppress(Exception):  # else it compiles when it is launched
                    dispatcher.compile(tuple(typeof(arguments[n]) for n in order))
                before = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
                with card_alone():
                    given = {
                        n: cuda.to_device(arguments[n]) if isinstance(arguments[n], np.ndarray) else arguments[n] for n in order
                    }
                    configured = dispatcher[p.grid, p.block]
                    configured(*given.values())
                    cuda.synchronize()
                    after = {n: v.copy_to_host() for n, v in given.items() if isinstance(arguments[n], np.ndarray)}
                    reset = None
                    if "bitonic" in p.name:
                        kept = cuda.to_device(before["x"])
                        reset = lambda: given["x"].copy_to_device(kept)  # noqa: E731
                    found = card.both(lambda: configured(*given.values()), reset)
                error = worst(p, before, after)
                compiled_kernel = next(iter(dispatcher.overloads.values()))
                found |= {"error": error, "right": error <= max(p.tolerance, 1e-3)}
                for name, get in (
                    ("regs", "regs_per_thread"),
                    ("shared_bytes", "shared_mem_per_block"),
                    ("local_bytes", "local_mem_per_thread"),
                ):
                    with suppress(Exception):
                        found[name] = getattr(compiled_kernel, get)
                predicted = predictions.get(key, {})
                if predicted.get("predicted_s"):
                    found["over_measured"] = predicted["predicted_s"] / float(found["cold"]["median_s"])
                return {**predicted, **found}

            rows.run(key, run, 15.0)


def tasks(rows: Rows, predictions: dict[str, Any]) -> None:
    """Constants, occupancy, the tasks in CUDA C, then as numba programs."""
    from benchmarks.lab.card_constants import Bench, names

    card = card_lab.Card()
    bench = Bench(card.cupy, card.seconds)
    for name in names():

        def clocked(name: str = name) -> dict[str, Any]:
            with card_alone():
                return {"cycles": bench.clocked(name)}

        rows.run(f"constants/{name}", clocked, 3.0)
    for stride in card_lab.STRIDES:
        rows.run(
            f"lab/strided/{stride}",
            lambda s=stride: _joined(predictions, f"lab/strided/{s}", lambda: card_lab.run_strided(card, s)),
            4.0,
        )
    for turn in (1, 2, 0):
        for task, sizes in card_lab.SIZES.items():
            if turn < len(sizes):
                key, n = f"lab/{task}/{sizes[turn]}", sizes[turn]
                rows.run(
                    key, lambda key=key, task=task, n=n: _joined(predictions, key, lambda: card_lab.run_task(card, task, n)), 6.0
                )
    with card_alone():
        rows.run("constants/latencies", bench.latencies, 3.0)
    made = bench.streams()
    began = time.monotonic()
    while rows.left_s() > sum(LAST.values()) + 2.0 and time.monotonic() - began < 12.0:
        try:
            with card_alone():
                item = next(made, None)
        except Exception as error:  # noqa: BLE001 - the rows that are written stand
            rows.write("constants/broken", error=str(error)[:300])
            break
        if item is None:
            break
        rows.write(f"constants/{item[0]}", **item[1])
    rows.run("lab/occupancy", lambda: card_lab.run_occupancy(card, 200), 10.0)


def numba_tasks(rows: Rows, predictions: dict[str, Any]) -> None:
    """The tasks as numba compiles them."""
    card = card_lab.Card()
    for task, sizes in card_lab.SIZES.items():
        n = sizes[min(1, len(sizes) - 1)]
        rows.run(
            f"lab/numba/{task}/{n}",
            lambda task=task, n=n: _joined(predictions, f"lab/numba/{task}/{n}", lambda: card_lab.run_numba(card, task, n)),
            8.0,
        )


def _joined(predictions: dict[str, Any], key: str, work: Any) -> dict[str, Any]:
    with card_alone():
        found = work()
    predicted = predictions.get(key, {})
    if predicted.get("predicted_s"):
        found["over_measured"] = predicted["predicted_s"] / float(found["cold"]["median_s"])
    return {**predicted, **found}


NVCC_SOURCE = r"""
template <int N> __device__ void work(float* x, int n, float* tile) {
  float v[N];
  #pragma unroll
  for (int i = 0; i < N; ++i) v[i] = x[threadIdx.x + i * n];
  if (tile) { tile[threadIdx.x] = v[0]; __syncthreads(); v[0] += tile[threadIdx.x ^ 1]; }
  for (int k = 0; k < n; ++k) {
    #pragma unroll
    for (int i = 0; i < N; ++i) v[i] = v[i] * v[(i * 7 + 3) % N] + v[(i + 1) % N]; }
  #pragma unroll
  for (int i = 0; i < N; ++i) x[threadIdx.x + i * n] = v[i]; }
extern "C" __global__ void few(float* x, int n) { work<8>(x, n, 0); }
extern "C" __global__ void many(float* x, int n) { work<64>(x, n, 0); }
extern "C" __global__ void shared_few(float* x, int n) { __shared__ float tile[3000]; work<8>(x, n, tile); }
extern "C" __global__ void __launch_bounds__(512, 2) bounded(float* x, int n) { __shared__ float tile[1024]; work<96>(x, n, tile); }
extern "C" __global__ void dynamic_part(float* x, int n) { extern __shared__ float tile[]; work<32>(x, n, tile); }
"""
NVCC_KERNELS = ("few", "many", "shared_few", "bounded", "dynamic_part")


def compiled(rows: Rows) -> None:
    """nvcc's cubin and its log as the command reads them, against the driver, for four sizes of block."""
    import cupy

    with tempfile.TemporaryDirectory() as folder:
        source, cubin, log = (Path(folder) / n for n in ("kernels.cu", "kernels.cubin", "kernels.log"))
        source.write_text(NVCC_SOURCE)
        words = ["nvcc", "-cubin", "-arch=sm_90", "-Xptxas", "-v", "-o", str(cubin), str(source)]
        made = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
        log.write_text(made.stderr + made.stdout)
        if made.returncode:
            rows.write("compiled/nvcc", error=made.stderr[-500:])
            return
        with card_alone():
            module = cupy.RawModule(path=str(cubin))
            theirs = {k: module.get_function(k) for k in NVCC_KERNELS}
            for kernel in theirs.values():
                _ = kernel.num_regs
        for name, kernel in theirs.items():
            for block in (256,):
                for option, file in (("--cubin", cubin), ("--ptxas-log", log)):

                    def ask(
                        name: str = name, kernel: Any = kernel, block: int = block, option: str = option, file: Path = file
                    ) -> dict[str, Any]:
                        words = [sys.executable, "-m", "gpuwise", "lab", "occupancy", "--on", "H100-SXM", option, str(file)]
                        words += ["--kernel", name, "--block", str(block), "--json"]
                        said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20, env=environment())
                        with card_alone():
                            blocks = card_lab.occupancy_of(kernel, block, 0)
                        found = {"theirs": blocks, "regs": kernel.num_regs, "shared_bytes": kernel.shared_size_bytes}
                        if said.returncode:
                            return found | {"said": said.stderr[-300:]}
                        return found | {"ours": json.loads(said.stdout.splitlines()[-1])}

                    rows.run(f"compiled/{name}/{block}/{option.strip('-')}", ask, 20.0)


def profiled() -> None:
    """What Nsight Compute looks at: each task once."""
    card = card_lab.Card()
    for task, n in PROFILED:
        card_lab.launch_once(card, task, n)
    card.cupy.cuda.Device().synchronize()


def counters(rows: Rows, predictions: dict[str, Any]) -> None:
    names = "|".join(sorted({task.replace("-", "_") for task, _ in PROFILED}))
    lines: list[str] = []
    for metrics in (METRICS, METRICS.split(",smsp__average_warps")[0]):  # without the stalls, where one has another name
        words = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--metrics", metrics, "-k", f"regex:^({names})$"]
        words += [sys.executable, __file__, "--section", "profiled", "--out", str(rows.path), "--budget", "20"]
        limit = max(rows.left_s(), 1.0)
        made = subprocess.run(words, capture_output=True, text=True, check=False, timeout=limit, env=environment())
        lines = [line for line in made.stdout.splitlines() if line.startswith('"')]
        if not made.returncode and len(lines) >= 3:
            break
        rows.write("counters/refused", error=made.stdout[-500:] + made.stderr[-500:])
    if len(lines) < 3:
        return
    table_rows = list(csv.DictReader(lines))
    for (task, n), found in zip(PROFILED, table_rows[1:], strict=False):
        kept = {k: v for k, v in found.items() if "__" in k}
        predicted = predictions.get(f"lab/{task}/{n}", {})
        rows.write(
            f"counters/{task}/{n}",
            kernel=found.get("Kernel Name"),
            measured=kept,
            units=table_rows[0].get("dram__bytes_read.sum"),
            predicted=predicted,
        )


# the processor


def processor(rows: Rows, *, tiny: bool) -> None:
    """This machine's processor as ``gpuwise bench`` measures it, then tasks on all its cores with cold caches, and copies."""
    import numpy as np
    import torch

    from gpuwise.lab.tasks import find_task, launch_of

    cores = os.cpu_count() or 1
    flushed = torch.ones((16 if tiny else 128) << 20)
    sizes: dict[str, list[int]] = {}
    for task in PROCESSOR_TASKS:
        found, step = find_task(task), 32 if task.startswith("attention") else 1
        usual = found.usual // (8 if tiny else 1)
        least = max(found.small // 4, step)
        sizes[task] = sorted({max(step, int(n) // step * step) for n in np.geomspace(min(least, usual), usual, CROSSOVER_SIZES)})
    for turn in (3, 2, 1, 0):
        for task in PROCESSOR_TASKS:
            if turn >= len(sizes[task]):
                continue
            n = sizes[task][turn]

            def one(task: str = task, n: int = n) -> dict[str, Any]:
                made = launch_of(find_task(task), n)
                given = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in made.arguments.items()}
                call = _library(torch, task, given)
                call()
                cold: list[float] = []
                for _ in range(5):
                    flushed.add_(1.0)
                    began = time.perf_counter()
                    call()
                    cold.append(time.perf_counter() - began)
                return {
                    "cpu_s": statistics.median(cold),
                    "cpu_least_s": min(cold),
                    "copied_bytes": made.copied_bytes,
                    "cores": cores,
                    "threads": torch.get_num_threads(),
                }

            rows.run(f"processor/{task}/{n}", one, 3.0)
    if torch.cuda.is_available():
        rows.run("processor/copies", lambda: _copies(torch, sizes), 4.0)


def _library(torch: Any, task: str, a: dict[str, Any]) -> Any:
    """The task as PyTorch does it."""
    out = a.get("out")
    return {
        "vector-add": lambda: torch.add(a["x"], a["y"], out=out),
        "matmul-naive": lambda: torch.mm(a["a"], a["b"], out=a["c"]),
        "reduction": lambda: a["x"].sum(),
        "transpose": lambda: out.copy_(a["a"].t()),
        "divergence": lambda: torch.mul(a["x"], 0.5, out=out),
        "gather": lambda: torch.index_select(a["x"], 0, a["index"], out=out),
        "softmax": lambda: torch.softmax(a["x"], 1, out=out),
        "attention-fused": lambda: torch.nn.functional.scaled_dot_product_attention(a["q"][None, None], a["k"][None, None], a["v"][None, None]),
        "convolution": lambda: torch.nn.functional.conv2d(a["x"][None, None], a["w"][None, None], padding=1),
    }[task]  # fmt: skip


def _copies(torch: Any, sizes: dict[str, list[int]]) -> dict[str, Any]:
    """Seconds of half of a task's bytes each way, from pageable and from pinned memory."""
    from gpuwise.lab.tasks import find_task, launch_of

    found: dict[str, Any] = {}
    for task in PROCESSOR_TASKS:
        for n in sizes[task]:
            count = max(int(launch_of(find_task(task), n).copied_bytes / 2), 4)
            for kind in ("pageable", "pinned"):
                host = torch.ones(count, dtype=torch.uint8, pin_memory=kind == "pinned")
                there, back = (
                    torch.empty(count, dtype=torch.uint8, device="cuda"),
                    torch.empty_like(host, pin_memory=kind == "pinned"),
                )
                taken: list[float] = []
                for _ in range(4):
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                    there.copy_(host)
                    back.copy_(there)
                    torch.cuda.synchronize()
                    taken.append(time.perf_counter() - began)
                found[f"{task}/{n}/{kind}"] = statistics.median(taken[1:])
    return found


def _here() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "GPUWISE_RECORDS": str(Path(folder) / "records.sqlite"),
            "XDG_CONFIG_HOME": folder,
            "XDG_DATA_HOME": folder,
        }
        words = [*(sys.executable, "-m", "gpuwise", "bench", "--device", "cpu", "--only", "matmul-fp32", "--only", "memory")]
        words += ["--each", "0.4s", "--save", "--json"]
        said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=12, env={**environment(), **os.environ})
        if said.returncode:
            return {"said": (said.stdout[-400:] + said.stderr[-400:])}
        from gpuwise.cli.this_machine import processor_of

        cpu = processor_of("this")
        words = [sys.executable, "-m", "gpuwise", "lab", "cpu-vs-gpu", "2048", "--on", "H100-SXM", "--against", "this", "--json"]
        versus = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=9, env={**environment(), **os.environ}
        )
        return {
            "cpu": {
                n: dict(v) if isinstance(v, Mapping) else v for n, v in ((f.name, getattr(cpu, f.name)) for f in fields(cpu))
            },
            "bench": said.stdout.splitlines()[-1][:6000],
            "versus": versus.stdout[-3000:],
            "versus_error": versus.stderr[-300:],
        }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| item | predicted us | cold | clean | hot | predicted / cold - floor | regs | right |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    floor = next((r["cold"]["median_s"] for r in rows if r["item"] == "lab/floor"), 3.6e-6)
    for r in rows:
        if "cold" in r and isinstance(r["cold"], dict):
            cold, hot, clean = (r[k]["median_s"] if k in r else float("nan") for k in ("cold", "hot", "clean"))
            ours = r.get("predicted_s", float("nan"))
            lines.append(
                f"| {r['item']} | {ours * 1e6:.2f} | {cold * 1e6:.2f} | {clean * 1e6:.2f} | {hot * 1e6:.2f} | {ours / (cold - floor):.2f} | "
                f"{r.get('regs', '')} | {r.get('right', '')} |"
            )
        elif "traceback" in r or "error" in r:
            lines.append(f"{r['item']}: {str(r.get('error'))[:160]}")
    return "\n".join(lines)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("lab_card.jsonl"), help="rows are appended to this file")
    parser.add_argument("--budget", type=float, default=66.0, help="seconds in all")
    parser.add_argument("--predict", type=Path, help="write predictions to this file, and do nothing else")
    parser.add_argument("--table", type=Path, help="show a file of rows, and do nothing else")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="which of " + ", ".join(SECTIONS))
    parser.add_argument("--section", help="only this one, in this process")
    parser.add_argument("--tiny", action="store_true", help="small sizes: a test of the script")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
