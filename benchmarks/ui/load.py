"""How fast the sliders of `gpuwise ui` are answered: open-loop requests to /api/moment at a fixed rate, latencies counted from
the moment each was due.

    python benchmarks/ui/load.py --rate 200 --seconds 20

The slowest are named with the second in which they were due. Beside each ``BESIDE``-th of them one is asked that costs nothing
(/api/state): what the machine, the client and the server's loop take of any answer. The layouts are those of a few people who
move three sliders (micro-batch, recompute and, by ``--mix``, sharding or, as the page has them, precision) of their own model
(``--models``), at random and so again and again; every layout is asked for the first time during the run, none before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from urllib.parse import urlencode, urlsplit

import psutil

MODELS = ("llama-3.1-8b", "qwen2.5-7b", "gpt2", "mistral-7b")
CONNECTIONS = 32
BESIDE = 10
SLOWEST = 20


MIXES = {"sharding": ("zero1", "zero2", "zero3"), "precision": ("bf16", "fp16", "fp8")}
"""The third slider and its values."""


def queries(seed: int, models: Sequence[str] = MODELS, mix: str = "sharding") -> list[str]:
    """What the sliders of each model can ask, shuffled."""
    plain = {"on": "8xH100-SXM", "tokens": "15B", "dp": "8", "sharding": "zero3"}
    found = [
        urlencode({**plain, "model": m, "micro_batch": b, "recompute": r, mix: value})
        for m in models
        for b in (1, 2, 4, 8)
        for r in ("none", "selective", "full")
        for value in MIXES[mix]
    ]
    random.Random(seed).shuffle(found)
    return found


class Client:
    """One connection that is kept open."""

    def __init__(self, port: int, cookie: str) -> None:
        self._port, self._cookie = port, cookie

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def ask(self, query: str, path: str = "/api/moment") -> int:
        head = f"GET {path}?{query} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nCookie: {self._cookie}\r\n\r\n"
        self._writer.write(head.encode())
        status = int((await self._reader.readline()).split()[1])
        length = 0
        while (line := await self._reader.readline()).strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        await self._reader.readexactly(length)
        return status


async def load(port: int, cookie: str, rate: float, seconds: float, pool: Sequence[str]) -> dict[str, object]:
    clients: asyncio.Queue[Client] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        client = Client(port, cookie)
        await client.open()
        clients.put_nowait(client)
    chosen = random.Random(1)
    took: list[float] = []
    slowest: list[tuple[float, float]] = []
    late: list[float] = []
    beside: list[float] = []
    statuses: dict[int, int] = {}
    start = time.perf_counter() + 0.1

    async def one(i: int) -> None:
        due = start + i / rate
        await asyncio.sleep(due - time.perf_counter())
        client = await clients.get()
        status = await client.ask(chosen.choice(pool))
        clients.put_nowait(client)
        took.append(time.perf_counter() - due)
        slowest.append((round(1e3 * took[-1], 1), round(i / rate, 2)))
        if i >= rate * seconds / 2:
            late.append(took[-1])
        statuses[status] = statuses.get(status, 0) + 1

    async def nothing(i: int) -> None:
        due = start + i / rate
        await asyncio.sleep(due - time.perf_counter())
        client = await empty.get()
        await client.ask("", "/api/state")
        empty.put_nowait(client)
        beside.append(time.perf_counter() - due)

    count = int(rate * seconds)
    empty: asyncio.Queue[Client] = asyncio.Queue()
    for _ in range(CONNECTIONS // 2):
        client = Client(port, cookie)
        await client.open()
        empty.put_nowait(client)
    await asyncio.gather(*(one(i) for i in range(count)), *(nothing(i) for i in range(0, count, BESIDE)))
    whole = time.perf_counter() - start
    return {
        "asked_per_s": rate,
        "answered_per_s": round(len(took) / whole, 1),
        "whole": percentiles(took),
        "second_half": percentiles(late),
        "nothing_beside": percentiles(beside),
        "slowest_ms_and_when_due_s": sorted(slowest, reverse=True)[:SLOWEST],
        "statuses": statuses,
        "layouts": len(pool),
    }


def processor_seconds(pid: int) -> float:
    """Of a process and its children so far."""
    mine = psutil.Process(pid)
    return sum(t.user + t.system for t in (p.cpu_times() for p in (mine, *mine.children(recursive=True))))


def percentiles(took: list[float]) -> dict[str, float]:
    """Milliseconds."""
    took = sorted(took)
    return {f"p{q}_ms": round(1e3 * took[min(len(took) - 1, int(q / 100 * len(took)))], 1) for q in (50, 95, 99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--mix", choices=MIXES, default="sharding")
    parser.add_argument("--models", nargs="+", default=MODELS)
    given = parser.parse_args()
    pool = queries(0, given.models, given.mix)
    server = subprocess.Popen(
        [sys.executable, "-m", "gpuwise", "ui", "--port", "0", "--no-browser", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        said = json.loads(server.stdout.readline())
        cookie = f"gpuwise-{said['port']}=" + urlsplit(said["address"]).query.removeprefix("token=")

        async def run() -> dict[str, object]:
            first = Client(said["port"], cookie)
            await first.open()
            await first.ask(urlencode({"model": "gpt2", "on": "4090", "dp": "1", "micro_batch": "1"}))  # it is up
            spent = processor_seconds(server.pid)
            answer = await load(said["port"], cookie, given.rate, given.seconds, pool)
            used = processor_seconds(server.pid) - spent
            return answer | {"server_processor_ms_a_request": round(1e3 * used / (given.rate * given.seconds), 2)}

        print(json.dumps(asyncio.run(run())))
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)


if __name__ == "__main__":
    main()
