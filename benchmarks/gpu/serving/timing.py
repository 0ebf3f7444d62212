"""Lines of the output, and seconds of a run on the device: as a CUDA graph, queued, awaited one by one."""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

QUEUED_S, AWAITED_S = 0.4, 0.4
"""Of timing runs queued, three samples at the least, and awaited one by one."""


class OverTimeError(Exception):
    """An item lasted too long."""


class Rows:
    """The lines of the output, each with its prediction and the state of the GPU."""

    def __init__(self, out: Path, predicted: dict[str, Any], tiny: bool) -> None:
        self.out, self.predicted, self.tiny = out, predicted, tiny
        out.parent.mkdir(parents=True, exist_ok=True)

    def add(self, item: str, measured: dict[str, Any], predicted: str | None = None, **more: Any) -> None:
        """Append one line and print it shortly."""
        row = {"item": item, "tiny": self.tiny, "measured": measured, "predicted": self.predicted.get(predicted or item), **more}
        row["at"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with contextlib.suppress(Exception):
            row["gpu"] = gpu_state()
        with self.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
        print(item, json.dumps(measured)[:300], flush=True)


def gpu_state() -> dict[str, Any]:
    """Clocks, power, temperature and reasons of lower clocks, as NVML says."""
    import pynvml

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    return {
        "name": str(pynvml.nvmlDeviceGetName(gpu)),
        "sm_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "memory_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
        "power_w": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000.0,
        "temperature_c": pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
        "reasons": hex(pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)),
    }


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def synchronise() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """``run`` as a CUDA graph's replay; itself where there is no CUDA."""
    import torch

    if not torch.cuda.is_available():
        return run
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(_: Callable[[], Any] = run) -> None:  # what ``run`` holds must not be given back while the graph reads it
        graph.replay()

    return replay


def wall_s(run: Callable[[], Any], most: int = 20, seconds: float = AWAITED_S) -> float:
    """Median seconds of ``run`` with a synchronisation after each, as a server waits for its tokens."""
    least = 5 if device() == "cuda" else 1
    for _ in range(3 if device() == "cuda" else 0):
        run()
    synchronise()
    found: list[float] = []
    over = time.perf_counter() + seconds
    while len(found) < least or (len(found) < most and time.perf_counter() < over):
        begin = time.perf_counter()
        run()
        synchronise()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def queued_s(run: Callable[[], Any], each: int = 10, samples: int = 7) -> float:
    """Median seconds of ``run`` on the device, ``each`` of them queued one after the other."""
    import torch

    if not torch.cuda.is_available():
        return wall_s(run, 1, 0.0)
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    found: list[float] = []
    over = time.perf_counter() + QUEUED_S
    for _ in range(samples):
        if len(found) > 2 and time.perf_counter() > over:
            break
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(each):
            run()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3 / each)
    return statistics.median(found)


def both(run: Callable[[], Any], each: int = 10) -> dict[str, float]:
    """Of a run as a graph, queued and awaited one by one, and launched kernel by kernel."""
    graph = captured(run)
    times = {"graph_s": queued_s(graph, each), "graph_awaited_s": wall_s(graph, most=20 if device() == "cuda" else 1)}
    del graph
    return times | {"eager_s": wall_s(run, most=10 if device() == "cuda" else 1)}


def attempt(rows: Rows, item: str, measure: Callable[[], dict[str, Any]], predicted: str | None = None) -> None:
    """One line of the output, whatever comes of it, with the prediction of ``predicted`` (None: of its own name); time that is
    over goes on."""
    try:
        rows.add(item, measure(), predicted or item)
    except OverTimeError:
        raise
    except Exception:  # noqa: BLE001 - a failure is a line of the record
        rows.add(item, {}, error=traceback.format_exc()[-3000:])
    free_memory()


@contextlib.contextmanager
def torch_memory() -> Iterator[None]:
    """Gives the device's memory back afterwards."""
    try:
        yield
    finally:
        free_memory()


def free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
