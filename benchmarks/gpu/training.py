"""Training and inference steps of usual models on one GPU: predicted blind, then measured, then set side by side.

    python benchmarks/gpu/training.py --predict PREDICTED.json [--items practice] [--on H100-SXM] [--only ITEM ...]
    python benchmarks/gpu/training.py --out MEASURED.jsonl --budget 160 [--items practice] [--only ITEM ...] [--after OTHER.jsonl]
    python benchmarks/gpu/training.py --table PREDICTED.json MEASURED.jsonl

``--predict`` needs no GPU: ``make_step`` of ``training_steps.py`` (or of ``practice/steps.py``) is captured as it is, and where
the model has a name the catalogue is asked too. ``--out`` runs the same function on the GPU and adds one line of JSON for each
item as soon as it is done: an item that fails or hangs is a line with its error, and costs no other.

Energy and power are of the GPU alone, from NVML's counter. A line of kind ``kernels`` is a second run of an item under the
profiler: seconds and launches of each kernel in one step; of kind ``capture``, the prediction made again on the machine with the
GPU, which must be that of a machine without one; of kind ``profile``, what ``gpuwise profile`` says of the step. ``--tiny``
shrinks every model to try the script on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import math
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import training_steps
from practice import steps as practice_steps
from training_steps import KERNELS, Item, Step

ON = "H100-SXM"
SETS = {"usual": training_steps, "practice": practice_steps}
"""Names of ``--items``. Items of practice have their kernels in the line of their step."""
GRACE_S, STARTS_S = 8.0, 90.0
"""A worker that does not end an item by itself is killed so long after the item's limit; what a start may take."""
CAPTURES, PROFILES = ("gpt2", "resnet50-amp-nhwc"), ("moe-1-layer", "gpt2")
"""Items that are captured beside the GPU, and that ``gpuwise profile`` looks at: one whose host runs far ahead, one usual."""
PROFILE_S = 60.0
LAST = ("llama8b-generate", "resnet50-amp-nhwc-compiled")
"""Items that come after the kernels of the first."""


def home_of(item: Item) -> Any:
    """The file that has the item."""
    return next(m for m in SETS.values() if item in m.ITEMS)


# --- predicted ---


def estimate_of(value: Any) -> dict[str, float] | None:
    """An interval as JSON."""
    return None if value is None else {"low": value.low, "expected": value.expected, "high": value.high}


def times_power(step_s: dict[str, float] | None, on: str, power_w: Any = None) -> dict[str, float] | None:
    """Joules of the GPU alone over a step at ``power_w``, or as plans have its power in training."""
    from gpuwise.facts.hardware.naming import find_accelerator
    from gpuwise.money.combine import product
    from gpuwise.money.power import accelerator_power_w
    from gpuwise.predict.estimate import Estimate

    power = power_w or accelerator_power_w(find_accelerator(on))
    if power is None or step_s is None:
        return None
    return estimate_of(product([Estimate(**step_s, basis="derived"), power]))


def own_code(item: Item, on: str, tiny: bool) -> dict[str, Any]:
    """What ``gpuwise fit`` and ``gpuwise plan`` say of the item's code, from one capture."""
    from gpuwise import fit_step

    settings = (f"item={item.name}", *(("tiny=True",) if tiny else ()))
    from gpuwise.workload.capture.target import find_target

    began = time.monotonic()
    answer = fit_step(find_target(f"{home_of(item).__file__}:make_step", settings), on, remedies=False)
    memory, at = answer.estimate.memory, answer.estimate.time
    row: dict[str, Any] = {
        "parameters": answer.parameters,
        "allocated_bytes": estimate_of(memory.allocated),
        "reserved_bytes": estimate_of(memory.reserved),
        "process_bytes": estimate_of(memory.process),
        "context_bytes": estimate_of(memory.context),
        "steady_allocated_bytes": memory.steady.allocated_bytes,
        "first_allocated_bytes": memory.first.allocated_bytes,
        "capture_s": round(time.monotonic() - began, 1),
    }
    if at is None:
        return {**row, "no_time": answer.estimate.no_time}
    step_s = estimate_of(answer.estimate.step_time_s)
    return {
        **row,
        "step_s": step_s,
        "energy_j": times_power(step_s, on, at.power_w),
        "power_w": estimate_of(at.power_w),
        "host_s": at.host_total_s,
        "device_s": at.device_total_s,
        "launch_bound_share": at.launch_bound_share,
        "kernels": at.kernels,
        "flop": at.flop,
        "compiled": at.compiled,
        "family_s": dict(at.family_s),
        "phase_s": dict(at.phase_s),
    }


def by_name(item: Item, on: str) -> dict[str, Any]:
    """What the catalogue says of the item's model: as teams reach, and as the stack's authors tuned it."""
    import io
    import shlex

    from gpuwise.cli.app import run

    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        run([*shlex.split(item.command)[1:], "--json"])
    lines = out.getvalue().strip().splitlines()
    answer = json.loads(lines[-1]) if lines else {"error": errors.getvalue().strip()}
    if "error" in answer:
        return {"command": item.command, "error": answer["error"]}
    if "best" not in answer:
        row = answer["rows"][0]
        found = {"step_s": {k: row["time_s"][k] for k in ("low", "expected", "high")}}
        return {"command": item.command, **found, "energy_j": times_power(found["step_s"], on)}
    best = answer["best"]
    if best is None:
        return {"command": item.command, "error": "; ".join(answer["reasons"]) or "nothing fits"}

    def part(value: dict[str, Any]) -> dict[str, float]:
        return {k: value[k] for k in ("low", "expected", "high")}

    step_s = part(best["step_time_s"])
    return {
        "command": item.command,
        "step_s": step_s,
        "tuned_step_s": part(best["tuned"]["step_time_s"]),
        "allocated_bytes": part(best["allocated_bytes"]),
        "process_bytes": part(best["memory_bytes"]),
        "needed_bytes": part(best["needed_bytes"]),
        "energy_j": times_power(step_s, on),
        "breakdown_s": best["breakdown_s"],
        "memory_parts_bytes": best["memory_parts_bytes"],
    }


def predict(items: Sequence[Item], path: Path, on: str, tiny: bool) -> None:
    """Every item by both front ends; the file is written again after each."""
    import torch

    import gpuwise

    head: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    done: dict[str, Any] = head.pop("items", {})
    for item in items:
        row: dict[str, Any] = {"unit": item.unit, "amount": item.amount}
        for way, ask in (("own", lambda i=item: own_code(i, on, tiny)), ("catalogue", lambda i=item: by_name(i, on))):
            if way == "catalogue" and not item.command:
                continue
            try:
                row[way] = ask()
            except Exception as error:  # noqa: BLE001 - one item costs no other
                row[way] = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()[-1500:]}
        done[item.name] = row
        said = {w: (row.get(w) or {}).get("step_s") or (row.get(w) or {}).get("error") for w in ("own", "catalogue")}
        print(item.name, json.dumps(said), flush=True)
        head = {**head, "on": on, "day": time.strftime("%Y-%m-%d"), "gpuwise": gpuwise.__version__, "torch": torch.__version__}
        path.write_text(json.dumps({**head, "items": done}, indent=1) + "\n", "utf-8")


# --- measured ---


class Nvml:
    """The driver's library by itself: it needs no package. Every reading is None where there is no driver."""

    def __init__(self) -> None:
        self.library: Any = None
        self.device = ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)) == 0:
                self.library = library
        except (OSError, AttributeError):
            pass

    def _number(self, name: str, kind: Any, *before: int) -> int | None:
        if self.library is None:
            return None
        value = kind()
        code = getattr(self.library, name)(self.device, *(ctypes.c_uint(b) for b in before), ctypes.byref(value))
        return int(value.value) if code == 0 else None

    def energy_j(self) -> float | None:
        """Since the driver was loaded."""
        value = self._number("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)
        return None if value is None else value / 1e3

    def power_w(self) -> float | None:
        value = self._number("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        return None if value is None else value / 1e3

    def sm_hz(self) -> float | None:
        value = self._number("nvmlDeviceGetClockInfo", ctypes.c_uint, 1)
        return None if value is None else value * 1e6

    def memory_hz(self) -> float | None:
        value = self._number("nvmlDeviceGetClockInfo", ctypes.c_uint, 2)
        return None if value is None else value * 1e6

    def celsius(self) -> int | None:
        return self._number("nvmlDeviceGetTemperature", ctypes.c_uint, 0)

    def used_bytes(self) -> int | None:
        """Of the whole GPU, all processes."""
        if self.library is None:
            return None
        value = (ctypes.c_ulonglong * 3)()
        return int(value[2]) if self.library.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(value)) == 0 else None

    def throttle(self) -> int | None:
        return self._number("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)


class Clocks:
    """The energy counter every 20 ms, clock, power and temperature every tenth of a second, from a thread."""

    def __init__(self, nvml: Nvml) -> None:
        self.nvml, self.rows = nvml, list[tuple[float | None, float | None, float | None, int | None]]()
        self.energy: list[tuple[float, float]] = []
        self.end = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        n, count = self.nvml, 0
        while not self.end.wait(0.02):
            used_j = n.energy_j()
            if used_j is not None and (not self.energy or self.energy[-1][1] != used_j):
                self.energy.append((time.perf_counter(), used_j))
            if count % 5 == 0:
                self.rows.append((n.sm_hz(), n.power_w(), n.celsius(), n.throttle()))
            count += 1

    def __enter__(self) -> Clocks:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end.set()
        self.thread.join()

    def power_w(self, began: float, ended: float) -> float | None:
        """Mean from the first to the last movement of the counter inside a stretch; None where it moved less than twice."""
        inside = [point for point in self.energy if began <= point[0] <= ended]
        if len(inside) < 2:
            return None
        (a_s, a_j), (b_s, b_j) = inside[0], inside[-1]
        return (b_j - a_j) / (b_s - a_s)

    def summary(self) -> dict[str, float | None]:
        """Means, and every reason for lower clocks that was seen."""

        def mean(values: Iterable[float | None]) -> float | None:
            there = [v for v in values if v is not None]
            return sum(there) / len(there) if there else None

        reasons = 0
        for row in self.rows:
            reasons |= row[3] or 0
        keys = ("sm_hz", "sampled_power_w", "celsius")
        return {**{k: mean(r[i] for r in self.rows) for i, k in enumerate(keys)}, "clock_reasons": reasons}


class Gpu:
    """What is asked of torch.cuda; on a CPU nothing is there, and times are the host's."""

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.there = torch, device == "cuda"

    def wait(self) -> None:
        if self.there:
            self.torch.cuda.synchronize()

    def clean(self) -> None:
        """Everything cached is given back, libraries' workspaces and compiled code too."""
        gc.collect()
        if not self.there:
            return
        self.torch.cuda.synchronize()
        if hasattr(self.torch._C, "_cuda_clearCublasWorkspaces"):
            self.torch._C._cuda_clearCublasWorkspaces()
        self.torch.cuda.empty_cache()
        self.torch.cuda.reset_peak_memory_stats()

    def memory(self) -> tuple[int, int]:
        """Most bytes allocated and reserved."""
        cuda = self.torch.cuda
        return (cuda.max_memory_allocated(), cuda.max_memory_reserved()) if self.there else (0, 0)

    def seconds(self, step: Step, n: int) -> list[float]:
        """Of ``n`` steps in a row, without a wait between them."""
        if not self.there:
            times: list[float] = []
            for _ in range(n):
                began = time.perf_counter()
                step()
                times.append(time.perf_counter() - began)
            return times
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
        self.torch.cuda.synchronize()
        events[0].record()
        for event in events[1:]:
            step()
            event.record()
        self.torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)]


def measured(item: Item, tiny: bool, device: str, nvml: Nvml, before_bytes: int | None) -> dict[str, Any]:
    """The item's step, timed, its memory and its energy."""
    gpu = Gpu(device)
    gpu.clean()
    idle_bytes = nvml.used_bytes()
    began = time.perf_counter()
    step = home_of(item).make_step(item.name, tiny, device)
    gpu.wait()
    row: dict[str, Any] = {
        "item": item.name,
        "kind": "step",
        "unit": item.unit,
        "amount": item.amount,
        "item_idle_bytes": idle_bytes,
    }
    row["build_s"] = time.perf_counter() - began
    began = time.perf_counter()
    step()
    gpu.wait()
    row["first_step_s"] = time.perf_counter() - began
    row["first_allocated_bytes"], row["first_reserved_bytes"] = gpu.memory()
    began = time.perf_counter()
    step()
    gpu.wait()
    second_s = time.perf_counter() - began
    for _ in range(3 if second_s < 1.0 else 0):
        step()
    gpu.wait()
    if gpu.there:
        gpu.torch.cuda.reset_peak_memory_stats()
    n = max(min(item.steps, int(4.0 / max(second_s, 1e-4))), 2)
    began = time.perf_counter()
    times = gpu.seconds(step, n)
    row |= {
        "steps_s": [round(t, 7) for t in times],
        "step_s": median(times),
        "wall_step_s": (time.perf_counter() - began) / n,
        "per_s": item.amount / median(times),
    }
    row["steady_allocated_bytes"], row["reserved_bytes"] = gpu.memory()
    row["allocated_bytes"] = max(row["steady_allocated_bytes"], row["first_allocated_bytes"])
    used = nvml.used_bytes()
    if used is not None:
        row |= {"used_bytes": used, "process_bytes": used - (before_bytes or 0)}
    hosts: list[float] = []
    alone: list[float] = []
    for _ in range(3 if row["step_s"] < 1.0 else 1):
        gpu.wait()
        began = time.perf_counter()
        step()
        hosts.append(time.perf_counter() - began)
        gpu.wait()
        alone.append(time.perf_counter() - began)
    row |= {"host_s": median(hosts), "alone_s": median(alone)}
    if item.energy_s and nvml.energy_j() is not None:
        row |= energy_of(step, gpu, nvml, item.energy_s, row["wall_step_s"])
    if item in practice_steps.ITEMS:
        row |= kernels_of(step, gpu)
    return row


def energy_of(step: Step, gpu: Gpu, nvml: Nvml, seconds: float, step_s: float) -> dict[str, Any]:
    """Joules a step over at least ``seconds``, and the mean clock and power meanwhile. The counter moves in jumps, so power is
    that between two of its movements, and ``counted_j`` what it says of the whole stretch."""
    n = max(math.ceil(seconds / step_s), 3)
    for _ in range(max(min(3, n // 10), 1)):
        step()
    gpu.wait()
    with Clocks(nvml) as clocks:
        first_j, began = nvml.energy_j(), time.perf_counter()
        for _ in range(n):
            step()
        gpu.wait()
        ended = time.perf_counter()
        last_j = nvml.energy_j()
    elapsed = ended - began
    counted_j = ((last_j or 0.0) - (first_j or 0.0)) / n
    power_w = clocks.power_w(began, ended)
    row: dict[str, Any] = {"energy_steps": n, "energy_step_s": elapsed / n, "counted_j": counted_j, **clocks.summary()}
    row["power_w"] = counted_j * n / elapsed if power_w is None else power_w
    row["energy_j"] = row["power_w"] * elapsed / n
    return row


def traced(item: Item, tiny: bool, device: str) -> dict[str, Any]:
    """The item's step once more, for its kernels."""
    gpu = Gpu(device)
    gpu.clean()
    step = home_of(item).make_step(item.name, tiny, device)
    for _ in range(3):
        step()
    gpu.wait()
    return {"item": item.name, "kind": "kernels", **kernels_of(step, gpu)}


def kernels_of(step: Step, gpu: Gpu) -> dict[str, Any]:
    """Seconds and launches of every kernel of one step, the longest first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA if gpu.there else ProfilerActivity.CPU]) as run:
        step()
        gpu.wait()
    events = run.profiler.kineto_results.events()
    wanted = torch.autograd.DeviceType.CUDA if gpu.there else torch.autograd.DeviceType.CPU
    sums: dict[str, list[float]] = {}
    spans: list[tuple[int, int]] = []
    for event in events:
        if event.device_type() != wanted or event.name().startswith(("Optimizer.", "ProfilerStep")):
            continue
        total = sums.setdefault(event.name()[:240], [0, 0.0])
        total[0] += 1
        total[1] += event.duration_ns() / 1e9
        spans.append((event.start_ns(), event.start_ns() + event.duration_ns()))
    ranked = sorted(sums.items(), key=lambda pair: -pair[1][1])
    row: dict[str, Any] = {"busy_s": sum(s for _, s in sums.values())}
    if spans:
        row["span_s"] = (max(e for _, e in spans) - min(s for s, _ in spans)) / 1e9
    row["launches"] = sum(int(n) for n, _ in sums.values())
    row["kernels"] = [[name, int(n), round(s, 8)] for name, (n, s) in ranked[:60]]
    return row


class ItemTimeout(BaseException):
    """An item that took longer than it may; no library takes it for an error of its own."""


def work(jobs: Sequence[tuple[str, Item]], options: argparse.Namespace) -> None:
    """Do the jobs in this process; each is announced on stdout, so that the parent can end one that hangs."""
    nvml = Nvml()
    before = nvml.used_bytes()
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        options.tiny = True

    def late(*_: object) -> None:
        raise ItemTimeout

    signal.signal(signal.SIGALRM, late)
    add(options.out, {"kind": "machine", **machine(device, nvml, before)})
    for kind, item in jobs:
        left = options.deadline - time.time()
        if left < 5.0:
            add(options.out, {"item": item.name, "kind": kind, "error": "the budget is over"})
            continue
        limit = min(PROFILE_S if kind == "profile" else item.limit_s, left)
        print(f"begin {kind} {item.name} {limit}", flush=True)
        began = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            row = done(kind, item, options.tiny, device, nvml, before)
        except (Exception, ItemTimeout) as error:  # noqa: BLE001 - one item costs no other
            row = {"item": item.name, "kind": kind, "error": f"{type(error).__name__}: {str(error)[:300]}"}
            row["traceback"] = traceback.format_exc()[-2500:]
            error.__traceback__ = None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if "compiled" in item.name or item.name.endswith("-layers"):
            torch._dynamo.reset()
        row |= {"item_s": round(time.perf_counter() - began, 2), "at": round(time.time(), 1)}
        add(options.out, row)
        print(f"end {kind} {item.name}", flush=True)


def done(kind: str, item: Item, tiny: bool, device: str, nvml: Nvml, before: int | None) -> dict[str, Any]:
    """The line of one job."""
    if kind == "step":
        return measured(item, tiny, device, nvml, before)
    if kind == "kernels":
        return traced(item, tiny, device)
    Gpu(device).clean()
    idle_bytes = nvml.used_bytes()
    row = own_code(item, ON, tiny) if kind == "capture" else profiled(item, tiny)
    used = nvml.used_bytes()
    taken = None if used is None or idle_bytes is None else used - idle_bytes
    return {"item": item.name, "kind": kind, "taken_bytes": taken, **row}


def profiled(item: Item, tiny: bool) -> dict[str, Any]:
    """What ``gpuwise profile`` says of the step as a script."""
    script = str(Path(__file__).resolve().parent / "training_steps.py")
    command = [sys.executable, "-m", "gpuwise", "profile", "--json", script, "--", item.name, "400", *(["tiny"] if tiny else [])]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, errors = run.communicate()
        return {"code": run.returncode, "profile": json.loads(out.strip().splitlines()[-1])}
    except (IndexError, ValueError):
        return {"code": run.returncode, "error": errors.strip()[-1500:]}
    finally:
        # the command ends the script under it, which would go on with the GPU
        run.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(5.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)


def machine(device: str, nvml: Nvml, before: int | None) -> dict[str, Any]:
    """What the rows were measured with."""
    import importlib.metadata

    import torch

    row: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version(), "cores": os.cpu_count()}
    for name in ("transformers", "peft", "timm", "torchvision", "triton"):
        try:
            row[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            row[name] = None
    if device == "cuda":
        made = torch.cuda.get_device_properties(0)
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        used = nvml.used_bytes()
        row |= {"gpu": made.name, "memory_bytes": made.total_memory, "cudnn": torch.backends.cudnn.version()}
        row |= {"cuda": torch.version.cuda, "used_before_bytes": before, "used_with_context_bytes": used}
        row |= {"sm_hz": nvml.sm_hz(), "memory_hz": nvml.memory_hz(), "power_w": nvml.power_w(), "celsius": nvml.celsius()}
    return row


def lines_of(path: Path | None) -> list[dict[str, Any]]:
    """The rows of a file; none without one."""
    return [] if path is None else [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def add(path: Path, row: dict[str, Any]) -> None:
    """One line, at once."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


@dataclass(slots=True)
class Worker:
    """A process that does jobs, and what it says of them."""

    process: subprocess.Popen[str]
    until: float
    """When it is taken for hung."""
    deadline: float
    now: str = ""
    done: list[str] = field(default_factory=list[str])

    def listen(self) -> None:
        """Follow what it says until it ends."""
        for line in self.process.stdout or ():
            word, *rest = line.split() or [""]
            if word == "begin" and len(rest) == 3:
                self.now, self.until = f"{rest[0]}:{rest[1]}", time.time() + float(rest[2]) + GRACE_S
            elif word == "end" and len(rest) == 2:
                self.done.append(self.now)
                self.now, self.until = "", min(time.time() + STARTS_S, self.deadline + GRACE_S)


def jobs_of(names: Sequence[str]) -> list[str]:
    """Kinds and items in order of worth: the steps of the first, their kernels, the steps of the others, the rest."""
    steps, kernels = [f"step:{n}" for n in names], [f"kernels:{n}" for n in KERNELS if n in names]
    early = [s for s in steps if s.partition(":")[2] not in LAST]
    captures = [f"capture:{n}" for n in CAPTURES if n in names]
    profiles = [f"profile:{n}" for n in PROFILES if n in names]
    rest = [s for s in steps if s not in early]
    return [*early[:15], *kernels[:8], *captures, *early[15:], *profiles[:1], *kernels[8:], *rest, *profiles[1:]]


def supervise(names: Sequence[str], options: argparse.Namespace) -> None:
    """Workers do the jobs one after the other; one that hangs or dies is replaced, from the next job on."""
    had = {f"{r['kind']}:{r['item']}" for r in lines_of(options.after) if "item" in r and "error" not in r}
    jobs = [j for j in jobs_of(names) if j not in had]
    while jobs and time.time() < options.deadline:
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", *jobs, "--out", str(options.out)]
        command += ["--deadline", str(options.deadline), *(["--tiny"] if options.tiny else [])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        worker = Worker(process, min(time.time() + STARTS_S, options.deadline + GRACE_S), options.deadline)
        reader = threading.Thread(target=worker.listen, daemon=True)
        reader.start()
        while process.poll() is None and time.time() < worker.until:
            time.sleep(0.1)
        hung = process.poll() is None
        if hung:
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        reader.join(2.0)
        lost = worker.now or next((j for j in jobs if j not in worker.done), "")
        if code == 0 or not lost:
            return
        kind, _, name = lost.partition(":")
        add(
            options.out, {"item": name, "kind": kind, "error": "hung and was killed" if hung else f"the worker ended with {code}"}
        )
        jobs = [j for j in jobs[jobs.index(lost) + 1 :] if j not in worker.done]


# --- side by side ---

GIB = 1024.0**3
COLUMNS: tuple[tuple[str, str, float, str], ...] = (
    ("step_s", "step time", 1e3, "ms"),
    ("allocated_bytes", "allocated", 1 / GIB, "GiB"),
    ("reserved_bytes", "reserved", 1 / GIB, "GiB"),
    ("process_bytes", "process", 1 / GIB, "GiB"),
    ("energy_j", "energy a step", 1.0, "J"),
)


def table(predicted: Path, found: Path) -> str:
    """Markdown: each figure predicted and measured, its ratio and whether the 80 % interval holds it; then the medians."""
    told = json.loads(predicted.read_text("utf-8"))
    rows = lines_of(found)
    steps = {r["item"]: r for r in rows if r.get("kind") == "step"}
    lines: list[str] = []
    ends: list[str] = []
    machines = [r for r in rows if r.get("kind") == "machine"]
    if machines:
        m = machines[0]
        software = ", ".join(f"{k} {m[k]}" for k in ("torch", "transformers", "peft", "timm", "torchvision") if m.get(k))
        lines += [f"Measured on {m.get('gpu', 'a CPU')}, {software}. Predicted {told['day']} for {told['on']}.", ""]
    for key, title, scale, unit in COLUMNS:
        lines += [f"## {title.capitalize()}", "", f"| item | front end | predicted, {unit} | measured, {unit} | ratio | inside |"]
        lines += ["|---|---|---|---|---|---|"]
        ratios: dict[str, list[tuple[float, bool]]] = {}
        for name, row in told["items"].items():
            real = steps.get(name, {}).get(key)
            for way in ("own", "catalogue"):
                guess = (row.get(way) or {}).get(key)
                if not guess:
                    continue
                interval = f"{guess['expected'] * scale:.4g} [{guess['low'] * scale:.4g} to {guess['high'] * scale:.4g}]"
                if not real:
                    lines.append(f"| {name} | {way} | {interval} | - | - | - |")
                    continue
                ratio, inside = guess["expected"] / real, guess["low"] <= real <= guess["high"]
                ratios.setdefault(way, []).append((ratio, inside))
                lines.append(f"| {name} | {way} | {interval} | {real * scale:.4g} | {ratio:.2f} | {'yes' if inside else 'no'} |")
        lines.append("")
        for way, pairs in ratios.items():
            error, middle = median(abs(r - 1.0) for r, _ in pairs), median(r for r, _ in pairs)
            share = sum(i for _, i in pairs) / len(pairs)
            ends.append(f"| {title} | {way} | {len(pairs)} | {100 * error:.1f} % | {middle:.2f} | {100 * share:.0f} % |")
    summary = ["## Medians", "", "| figure | front end | items | median error | predicted / measured | inside 80 % |"]
    lines = [*summary, "|---|---|---|---|---|---|", *ends, "", *lines, "## As measured", ""]
    lines += [
        "| item | a second | host, ms | power, W | SM clock, MHz | launches | kernels busy, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    profiles = {r["item"]: r for r in rows if "busy_s" in r}

    def shown(value: float | None, scale: float = 1.0) -> str:
        return "-" if value is None else f"{value * scale:.4g}"

    for name, row in steps.items():
        if "error" in row:
            lines.append(f"| {name} | {row['error'][:120]} | | | | | |")
            continue
        p = profiles.get(name, {})
        cells = [f"{row['per_s']:.5g} {row['unit']}", shown(row.get("host_s"), 1e3), shown(row.get("power_w"))]
        cells += [shown(row.get("sm_hz"), 1e-6), shown(p.get("launches")), shown(p.get("busy_s"), 1e3)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", type=float, default=160.0, help="seconds for everything")
    parser.add_argument("--predict", type=Path)
    parser.add_argument("--on", default=ON)
    parser.add_argument("--items", choices=tuple(SETS), default="usual")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--after", type=Path, help="what is measured in that file is not measured again")
    parser.add_argument("--table", nargs=2, type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    named = {i.name: i for m in SETS.values() for i in m.ITEMS}
    unknown = [n for n in options.only if n not in named]
    if unknown:
        parser.error(f"no such item: {', '.join(unknown)}; there are {', '.join(named)}")
    if options.table:
        print(table(*options.table))
        return 0
    items = [named[n] for n in options.only] if options.only else list(SETS[options.items].ITEMS)
    if options.predict:
        predict(items, options.predict, options.on, options.tiny)
        return 0
    if options.out is None:
        parser.error("--out, --predict or --table")
    if options.worker:
        pairs = [job.partition(":") for job in options.worker]
        work([(kind, named[name]) for kind, _, name in pairs], options)
        return 0
    options.deadline = time.time() + options.budget
    supervise([i.name for i in items], options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
