"""Runs one case for real and prints what it took: ``python -m gpuwise.machine.bench.local.measure '{case}'``.

A fresh process for each case, so that peaks, context and cuDNN's choices of one do not colour the next. The last line
of stdout is one JSON document; a failure (out of memory too) is a result with its reason.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import time
import weakref
from typing import Any

from gpuwise.machine.bench.local.cases import LocalCase

WARM_STEPS = 3
LEAST_TIMED_STEPS = 5
MOST_TIMED_STEPS = 50
TIMED_S = 2.0
"""A case is timed for about this long, between the least and the most steps."""


def measure(case: LocalCase, device: str) -> dict[str, Any]:
    """Time and memory of ``case`` on ``device`` (``cuda`` or ``cpu``); ``{"failed": reason}`` if it does not run."""
    import torch

    try:
        return _on_gpu(case) if device == "cuda" else _on_cpu(case)
    except torch.OutOfMemoryError as full:
        return {"failed": "out of memory", "detail": str(full)[:300]}
    except Exception as wrong:  # noqa: BLE001 - any failure of a case is its result
        return {"failed": type(wrong).__name__, "detail": str(wrong)[:300]}


def _on_gpu(case: LocalCase) -> dict[str, Any]:
    """Bytes of the first and the fourth step as torch and the driver count them, and the median step by CUDA events."""
    import torch

    from gpuwise.machine.bench.local.models import make_step

    used_before = _smi("memory.used")
    step = make_step(case)
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    first_allocated = torch.cuda.max_memory_allocated()
    for _ in range(WARM_STEPS):
        torch.cuda.reset_peak_memory_stats()
        step()
    torch.cuda.synchronize()
    result: dict[str, Any] = {
        "first_allocated_bytes": first_allocated,
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "alloc_retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
    }
    times = _timed(step)
    used_after = _smi("memory.used")
    if used_before is not None and used_after is not None:
        result["process_bytes"] = int((used_after - used_before) * 2**20)
    ordered = sorted(times)
    return result | {
        "step_time_s": statistics.median(times),
        "steps_timed": len(times),
        "step_time_p10_s": ordered[len(ordered) // 10],
        "step_time_p90_s": ordered[-1 - len(ordered) // 10],
        "clock_sm_hz": _smi("clocks.sm", 1e6),
        "power_w": _smi("power.draw"),
        "temperature_c": _smi("temperature.gpu"),
        "throttle_reasons": _smi_text("clocks_event_reasons.active") or _smi_text("clocks_throttle_reasons.active"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def _timed(step: Any) -> list[float]:
    """Seconds of each step between CUDA events on the default stream; the host runs ahead as it does in training."""
    import torch

    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    one = max(time.perf_counter() - began, 1e-4)
    n = min(MOST_TIMED_STEPS, max(LEAST_TIMED_STEPS, int(TIMED_S / one)))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(marks)]


def _smi_text(field: str) -> str | None:
    """One field of the first GPU from nvidia-smi; None if not reported."""
    try:
        out = subprocess.run(
            ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "--id=0"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    text = out.stdout.strip()
    return text if text and "N/A" not in text and "not" not in text.lower() else None


def _smi(field: str, scale: float = 1.0) -> float | None:
    text = _smi_text(field)
    try:
        return None if text is None else float(text) * scale
    except ValueError:
        return None


def _on_cpu(case: LocalCase) -> dict[str, Any]:
    """Peak bytes of all live storages in the first and in the third step, counted at every operation."""
    import torch

    from gpuwise.machine.bench.local.models import make_step

    with ledger() as calls:
        step = make_step(case, "cpu")
        peaks: list[int] = []
        for _ in range(3):
            calls.peak = calls.live
            step()
            peaks.append(calls.peak)
    return {"first_allocated_bytes": peaks[0], "allocated_bytes": peaks[-1], "torch": torch.__version__}


def ledger() -> Any:
    """A dispatch mode with ``live`` and ``peak``: bytes of the storages that operations under it made and that live."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    class Ledger(TorchDispatchMode):
        live = 0
        peak = 0

        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self.known: dict[int, weakref.ref[Any]] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            tree_map_only(torch.Tensor, self.note, result)
            return result

        def note(self, tensor: torch.Tensor) -> None:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()  # pyright: ignore[reportPrivateUsage]
            if key in self.known:
                return
            self.live += size
            self.peak = max(self.peak, self.live)
            self.known[key] = weakref.ref(storage, lambda _: self.forget(key, size))

        def forget(self, key: int, size: int) -> None:
            self.live -= size
            self.known.pop(key, None)

    return Ledger()


if __name__ == "__main__":
    asked, on = LocalCase.from_dict(json.loads(sys.argv[1])), sys.argv[2]
    sys.stdout.write(json.dumps(measure(asked, on)) + "\n")
