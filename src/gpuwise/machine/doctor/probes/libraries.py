"""Imports what training would import beside torch, all in one process of its own with a time limit."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, cast

from gpuwise.machine.doctor.host import Host
from gpuwise.machine.doctor.observation import LibraryImport
from gpuwise.machine.doctor.probes.frameworks import question, signal_name


def try_imports(host: Host, python: str, modules: Sequence[str], limit_s: float) -> tuple[LibraryImport, ...]:
    """How the import of each went, in their order. One that ends the process or the time is named, and the others are tried
    without it while time is left; what was not tried is left out, and so is everything where torch itself does not import."""
    found: dict[str, LibraryImport] = {}
    left, end_s = list(modules), time.monotonic() + limit_s
    while left and (rest_s := end_s - time.monotonic()) > 0:
        ran = host.run((python, "-c", question(), "libraries", *left), limit_s=rest_s)
        begun = ""
        for said in _objects(ran.out):
            begun = str(said.get("library") or begun)
            if "imported" in said:
                error = said.get("error")
                found[str(said["imported"])] = LibraryImport(str(said["imported"]), str(error) if error else None)
        if begun not in left or begun in found:
            break
        # it began and did not end
        ended = f"no end after {ran.seconds:.0f} s" if ran.timed_out else f"ended by {signal_name(-(ran.status or 0))}"
        last = " ".join(ran.err.split())[-200:]
        found[begun] = LibraryImport(begun, f"{ended}: {last}" if last else ended)
        left = [m for m in left if m not in found]
    return tuple(found[m] for m in modules if m in found)


def _objects(text: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict):
            made.append(cast("dict[str, Any]", said))
    return made
