"""Rows of the card benchmark: one JSON line for each item, written as soon as it is done."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GPU = "H100-SXM"
"""The card all predictions are for."""


class ItemTimeout(Exception):
    """An item took longer than it may."""


class Rows:
    """Appends rows to ``path`` and keeps the time: no item begins after ``end_s`` of the monotonic clock."""

    def __init__(self, path: Path, section: str, end_s: float) -> None:
        self.path, self.section, self.end_s = path, section, end_s
        self.readings = _card()

    def left_s(self) -> float:
        return self.end_s - time.monotonic()

    def write(self, item: str, **values: Any) -> None:
        row = {**values, "section": self.section, "item": item, "written_s": round(time.time(), 3)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, default=str) + "\n")
            file.flush()

    def run(self, item: str, work: Callable[[], dict[str, Any] | None], limit_s: float = 10.0) -> bool:
        """Run one item and write what it gives with the card's state, or its traceback. Whether it gave something."""
        if self.left_s() < 0.5:
            self.write(item, skipped="no time left")
            return False
        began = time.monotonic()

        def stop(*_: object) -> None:
            raise ItemTimeout(f"{item} took longer than {limit_s:.0f} s")

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, min(limit_s, max(self.left_s(), 0.5)))
        try:
            values = work()
        except Exception as error:  # noqa: BLE001 - a failed item is a row
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.write(item, error=f"{type(error).__name__}: {error}"[:500], traceback=traceback.format_exc()[-1500:])
            return False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        if values is not None:
            more = {"took_s": round(time.monotonic() - began, 3), "card": self.readings()}
            self.write(item, **{**values, **more})
        return True


def _card() -> Callable[[], dict[str, float | None]]:
    """Clocks, power and temperature of the first card from the driver's library; nothing where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # noqa: BLE001 - no library, no card
        return dict

    def read() -> dict[str, float | None]:
        def one(get: Callable[[], float], scale: float = 1.0) -> float | None:
            try:
                return get() * scale
            except pynvml.NVMLError:
                return None

        return {
            "sm_clock_mhz": one(lambda: pynvml.nvmlDeviceGetClockInfo(handle, 1)),
            "memory_clock_mhz": one(lambda: pynvml.nvmlDeviceGetClockInfo(handle, 2)),
            "power_w": one(lambda: pynvml.nvmlDeviceGetPowerUsage(handle), 1e-3),
            "temperature_c": one(lambda: pynvml.nvmlDeviceGetTemperature(handle, 0)),
        }

    return read


def environment() -> dict[str, str]:
    """That of a subprocess that runs this checkout's gpuwise."""
    path = os.pathsep.join(p for p in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


def gpuwise(*words: str) -> list[str]:
    return [sys.executable, "-m", "gpuwise", *words]


def spread(seconds: Sequence[float]) -> dict[str, float | int]:
    """Median, 10th and 90th percentile and number of ``seconds``."""
    ranked = sorted(seconds)
    return {
        "median_s": statistics.median(ranked),
        "p10_s": ranked[len(ranked) // 10],
        "p90_s": ranked[(9 * len(ranked)) // 10],
        "n": len(ranked),
    }


def read_predictions(path: Path) -> dict[str, dict[str, Any]]:
    """Item to what was predicted of it; nothing where the file is not there."""
    own = ("section", "item", "written_s", "took_s", "card")
    rows = read_rows(path) if path.exists() else []
    return {r["item"]: {k: v for k, v in r.items() if k not in own} for r in rows}


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
