"""Seconds of one execution on a device of PyTorch, without what the host needs to launch it.

On a GPU the launches are captured into a CUDA graph, where that is possible, and timed between events; operands rotate through
more copies than the last-level cache holds, so each execution reads them from memory as in a training step. On the processor a
sample repeats the call until a nanosecond clock can resolve it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from gpuwise.machine.bench.subjects import Subject
from gpuwise.records.record import Value

SAMPLE_S = 0.004
"""Minimum length of a sample: events resolve half a microsecond."""
GRAPH_S = 0.001
"""Launches in one graph take about this long: replaying it then costs nothing against it."""
MOST_LAUNCHES = 256
MOST_COPIES = 64
CACHE_BYTES = 64 * 2**20
"""Cache size if PyTorch does not report the last-level cache: more than most have."""
WARM_S, STILL_WARM_S = 0.3, 0.03
"""Work before the first sample: clocks come up from idle. Shorter on a device that was at work within ``COLD_AFTER_S``."""
COLD_AFTER_S = 1.0
_BUSY_UNTIL: dict[str, float] = {}
"""Device -> when it was last seen at work, of ``time.perf_counter``."""


def copies_needed(subject: Subject, set_bytes: float) -> int:
    """How many sets of operands outgrow the last-level cache three times over; 1 on the processor."""
    if subject.kind == "cpu":
        return 1
    cache = subject.l2_bytes or (subject.accelerator.l2_bytes if subject.accelerator else None) or CACHE_BYTES
    return max(1, min(MOST_COPIES, math.ceil(3.0 * cache / max(set_bytes, 1.0))))


def sampler(subject: Subject, launch: Callable[[int], Any], copies: int = 1) -> tuple[Callable[[], float], dict[str, Value]]:
    """A function that times ``launch(i)``, ``i`` going round 0 .. copies - 1, and how it does so."""
    if subject.kind == "cpu":
        return _host_sampler(launch, copies), {"timed by": "host clock"}
    return _device_sampler(subject, launch, copies)


def _host_sampler(launch: Callable[[int], Any], copies: int) -> Callable[[], float]:
    launch(0)
    began = time.perf_counter()
    launch(0)
    repeats = max(1, math.ceil(SAMPLE_S / max(time.perf_counter() - began, 1e-7)))

    def sample() -> float:
        start = time.perf_counter()
        for i in range(repeats):
            launch(i % copies)
        return (time.perf_counter() - start) / repeats

    return sample


def _device_sampler(subject: Subject, launch: Callable[[int], Any], copies: int) -> tuple[Callable[[], float], dict[str, Value]]:
    import torch

    device = torch.device(subject.torch_name)
    torch.cuda.set_device(device)
    one = _warm(torch, device, launch, copies)
    in_graph = min(MOST_LAUNCHES, max(copies, math.ceil(GRAPH_S / one)))
    graph = _graph_of(torch, device, launch, copies, in_graph)

    def execute() -> None:
        if graph is not None:
            graph.replay()
            return
        for i in range(in_graph):
            launch(i % copies)

    execute()
    torch.cuda.synchronize(device)
    repeats = max(1, math.ceil(SAMPLE_S / (one * in_graph)))

    def sample() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(device)
        start.record(stream)
        for _ in range(repeats):
            execute()
        end.record(stream)
        end.synchronize()
        _BUSY_UNTIL[str(device)] = time.perf_counter()
        return start.elapsed_time(end) / 1e3 / (repeats * in_graph)

    how = "CUDA graph" if graph is not None else "launches back to back"
    return sample, {"timed by": how, "operand sets": copies}


def _warm(torch: Any, device: Any, launch: Callable[[int], Any], copies: int) -> float:
    """Runs for ``WARM_S`` and returns roughly the seconds of one launch."""
    launch(0)
    torch.cuda.synchronize(device)
    warm = time.perf_counter() - _BUSY_UNTIL.get(str(device), -COLD_AFTER_S) < COLD_AFTER_S
    end = time.perf_counter() + (STILL_WARM_S if warm else WARM_S)
    batch, one = 1, 1e-3
    while time.perf_counter() < end:
        began = time.perf_counter()
        for i in range(batch):
            launch(i % copies)
        torch.cuda.synchronize(device)
        one = max((time.perf_counter() - began) / batch, 1e-7)
        batch = max(1, min(1000, int(0.01 / one)))
    return one


_CAPTURING = threading.Lock()
"""One capture at a time in a process, as PyTorch asks; ``--stress`` makes its products in a thread for each card."""


def capture(torch: Any, device: Any, body: Callable[[], None]) -> Any:
    """The launches of ``body`` on ``device`` as a CUDA graph. Raises the libraries' errors.

    The stream is the device's own: PyTorch's default stream belongs to the first captured device, and launches on another
    device would run immediately and leave the graph empty. Other threads may allocate meanwhile.
    """
    with _CAPTURING:
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            body()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            body()
    return graph


def _graph_of(torch: Any, device: Any, launch: Callable[[int], Any], copies: int, in_graph: int) -> Any:
    """The launches as a CUDA graph; None where this operation cannot be captured."""

    def body() -> None:
        for i in range(in_graph):
            launch(i % copies)

    try:
        return capture(torch, device, body)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 - libraries refuse capture with errors of every kind
        torch.cuda.synchronize(device)
        return None
