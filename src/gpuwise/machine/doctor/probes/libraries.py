"""Imports what training would import beside torch, in processes of their own with a time limit."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from gpuwise.machine.doctor.host import Host
from gpuwise.machine.doctor.observation import LibraryImport
from gpuwise.machine.doctor.probes.frameworks import question, signal_name

CPUS_EACH, MOST_PROCESSES = 2, 8
"""Processors for each process, which imports torch first (half a GB), and the most of them: on an H100's 16 cores eight libraries
one after another took 15 s and nine in four processes 19, torch itself 4 to 5 (benchmarks/records/gpu and foreign)."""

HANGS = 0.5
"""Share of the total time that one import must have had before it is reported as hanging."""


def try_imports(host: Host, python: str, modules: Sequence[str], limit_s: float, *, cpus: int = 1) -> tuple[LibraryImport, ...]:
    """Result of importing each, in order, in as many processes as ``cpus`` allow. Libraries not tried are omitted; the result
    is empty if torch itself fails."""
    processes = max(min(cpus // CPUS_EACH, MOST_PROCESSES, len(modules)), 1)
    parts = [modules[first::processes] for first in range(processes)]
    with ThreadPoolExecutor(max_workers=processes) as pool:
        done = {one.name: one for part in pool.map(partial(_imported, host, python, limit_s=limit_s), parts) for one in part}
    return tuple(done[m] for m in modules if m in done)


def _imported(host: Host, python: str, modules: Sequence[str], *, limit_s: float) -> tuple[LibraryImport, ...]:
    """Import ``modules`` one after another in one process. One that ends the process or uses up the time is reported, and the
    others are retried without it while time is left."""
    outcomes: dict[str, LibraryImport] = {}
    remaining, end_s = list(modules), time.monotonic() + limit_s
    while remaining and (rest_s := end_s - time.monotonic()) > 0:
        ran = host.run((python, "-c", question(), "libraries", *remaining), limit_s=rest_s)
        begun, after_s = "", 0.0
        for message in _objects(ran.out):
            if "library" in message:
                begun, after_s = str(message["library"]), float(message.get("after_s") or 0.0)
            if "imported" in message:
                error = message.get("error")
                outcomes[str(message["imported"])] = LibraryImport(str(message["imported"]), str(error) if error else None)
        if begun not in remaining or begun in outcomes or (ran.timed_out and ran.seconds - after_s < HANGS * limit_s):
            # the last is a slow machine, on which the others took the time
            break
        # it began and did not end
        ended = f"no end after {ran.seconds:.0f} s" if ran.timed_out else f"ended by {signal_name(-(ran.status or 0))}"
        last = " ".join(ran.err.split())[-200:]
        outcomes[begun] = LibraryImport(begun, f"{ended}: {last}" if last else ended)
        remaining = [m for m in remaining if m not in outcomes]
    return tuple(outcomes[m] for m in modules if m in outcomes)


def _objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects among the lines of ``text``."""
    objects: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            objects.append(cast("dict[str, Any]", value))
    return objects
