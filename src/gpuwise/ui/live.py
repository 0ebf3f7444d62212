"""What the GPUs do now, as server-sent events: the lines of ``gpuwise top --json``, one process a listener."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator
from typing import Any

from gpuwise.processes import END_AT_ONCE

LISTENERS = 4
"""Browsers that may listen at once: each has a process that asks the driver."""
LONGEST_LINE = 16 << 20


class Live:
    """Streams of the GPUs' figures."""

    def __init__(self) -> None:
        self._running: set[asyncio.subprocess.Process] = set()

    async def events(self, demo: bool) -> AsyncGenerator[bytes, None]:
        """Events until the listener leaves; one called ``refused`` where there is nothing to listen to."""
        if len(self._running) >= LISTENERS:
            yield event({"error": f"{LISTENERS} pages listen already"}, "refused")
            return
        words = ("-m", "gpuwise", "top", "--json", "--interval", "1s", *(("--demo",) if demo else ()))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=LONGEST_LINE,
            start_new_session=True,
        )
        self._running.add(process)
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                document: dict[str, Any] = json.loads(line)
                if "error" not in document and not document["cards"]:
                    yield event({"error": "No GPU answers here; the doctor below looks for the reason."}, "refused")
                    break
                yield event(document, "refused") if "error" in document else event(figures(document))
        finally:
            self._running.discard(process)
            end(process)
            await process.wait()

    async def stop(self) -> None:
        """End every stream."""
        for process in list(self._running):
            end(process)
            await process.wait()


def end(process: asyncio.subprocess.Process) -> None:
    """Kill ``process`` if it still runs."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, END_AT_ONCE)


def event(document: object, name: str = "message") -> bytes:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(document, allow_nan=False)}\n\n".encode()


def figures(document: dict[str, Any]) -> dict[str, Any]:
    """Figures of one refresh for the page: time (s), and utilisation (percent) of each card; None if not reported."""
    cards: list[dict[str, Any]] = document["cards"]
    busy = [card["sample"]["utilization"] if card["sample"] else None for card in cards]
    causes: list[dict[str, Any]] = document["causes"]
    said = [str(cause["sentence"]) for cause in causes] or ["Nothing holds the GPUs back."]
    return {
        "at": document["wall_s"],
        "names": [f"{card['number']} {card['identity']['name']}" for card in cards],
        "values": [None if b is None else 100 * b for b in busy],
        "text": ("Demonstration, no real GPU.\n" if document["demo"] else "") + "\n".join(said),
    }
