"""What watching costs in instructions, which no other work on the machine moves: `gpuwise top` beside other monitors.

    python benchmarks/watching_instructions.py [--nvitop FOLDER/bin/nvitop] [--cards 8] [--refreshes 5] [--only WORDS]

Needs valgrind and a C compiler. Every client watches the same played cards once a second under ``callgrind``, which counts the
instructions of all its threads in user space; the clock it sees is slowed (``slow_clock.c``), so that it misses no refresh
however slow that makes it. What the played library and the slowed clock execute themselves is left out. Counted over a window
that begins some refreshes after the start; and for one look, from start to end. Not counted: what the kernel does for a system
call. How many of those a client makes, ``--system-calls`` counts with ``strace`` at full speed.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from telemetry_overhead import FLOOR

from gpuwise.testing.fake_nvml import FakeNvml, fake_nvml, sine

COLUMNS, ROWS = 120, 40
WARM_UP = 3
"""Refreshes before anything is counted: caches fill, and what is read once has been read."""
ONCE_A_REFRESH = "nvmlDeviceGetUtilizationRates"
"""Every client asks this once of each card at a refresh."""
LEFT_OUT = ("libnvidia-ml.so.1", "slow_clock.so")
CALLGRIND = ["valgrind", "-q", "--tool=callgrind", "--callgrind-out-file=count"]
GPUWISE = [sys.executable, "-c", "import sys; from gpuwise.cli.app import run; sys.exit(run())", "top"]
COLLECT = """
import time
from nvitop import ResourceMetricCollector
with ResourceMetricCollector(interval=1.0)(tag="x"):
    while True: time.sleep(1)
"""


@dataclass(frozen=True, slots=True)
class Client:
    """A program that watches."""

    name: str
    words: list[str]
    screen: bool = False


@dataclass(frozen=True, slots=True)
class Count:
    """What one client did in a window."""

    instructions: int
    left_out: int
    refreshes: float
    seconds: float
    written_bytes: int


def clients(nvitop: Path | None, folder: Path) -> Iterator[Client]:
    """Everything that is compared."""
    yield Client("bare pynvml, 7 readings a card (floor)", [sys.executable, "-c", FLOOR])
    yield Client("gpuwise top --json", [*GPUWISE, "--json"])
    yield Client("gpuwise top --csv", [*GPUWISE, "--no-screen", "--csv", str(folder / f"{time.time_ns()}.csv")])
    yield Client("gpuwise top --record (SQLite)", [*GPUWISE, "--no-screen", "--record", str(folder / f"{time.time_ns()}.sqlite")])
    yield Client("gpuwise top --prometheus", [*GPUWISE, "--no-screen", "--prometheus", "127.0.0.1:0"])
    yield Client(f"gpuwise top, screen {COLUMNS}x{ROWS}", GPUWISE, screen=True)
    if nvitop is not None:
        python = str(nvitop.with_name("python"))
        yield Client(f"nvitop, screen {COLUMNS}x{ROWS}", [python, str(nvitop), "--interval", "1"], screen=True)
        yield Client("nvitop ResourceMetricCollector", [python, "-c", COLLECT])


def looks(nvitop: Path | None) -> Iterator[Client]:
    """What ends by itself."""
    yield Client("python -c pass", [sys.executable, "-c", "pass"])
    yield Client("gpuwise --version", [*GPUWISE[:-1], "--version"])
    yield Client("gpuwise top --once", [*GPUWISE, "--once"])
    yield Client("gpuwise top --once --json", [*GPUWISE, "--once", "--json"])
    yield Client("gpuwise top, screen, first frame", [*GPUWISE, "--count", "1"], screen=True)
    if nvitop is not None:
        yield Client("nvitop --once", [str(nvitop.with_name("python")), str(nvitop), "--once"])


def environment(fake: FakeNvml, **more: str) -> dict[str, str]:
    """The same for every client; texts are hashed alike in each run."""
    return {**fake.env, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONHASHSEED": "0", **more}


@contextmanager
def started(
    client: Client, before: list[str], env: dict[str, str], folder: Path
) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """The client, and the bytes it wrote to its terminal; killed at the end."""
    written, master, slave = [0], None, subprocess.DEVNULL  # Textual draws on stderr
    if client.screen:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [*before, *client.words], env=env, cwd=folder, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    if master is not None:
        os.close(slave)
        threading.Thread(target=_drain, args=(master, written), daemon=True).start()
    try:
        yield process, written
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if master is not None:
            os.close(master)


def _drain(master: int, written: list[int]) -> None:
    """Read what a screen writes, as a terminal would that answers no question."""
    try:
        while got := os.read(master, 65536):
            written[0] += len(got)
    except OSError:
        return


def watch(fake: FakeNvml, client: Client, folder: Path, given: argparse.Namespace) -> Count:
    """Count one client over ``--refreshes``. Raises RuntimeError where it ends."""
    slower = given.slower_screen if client.screen else given.slower
    env = environment(fake, LD_PRELOAD=str(folder / "slow_clock.so"), SLOW_CLOCK=str(slower))
    fake.reset_calls()
    with started(client, CALLGRIND, env, folder) as (process, written):
        while _asked(fake) < WARM_UP * given.cards:
            if process.poll() is not None:
                raise RuntimeError(f"ended with {process.returncode}")
            time.sleep(0.5)
        time.sleep(0.5 * slower)  # half way to the next refresh
        _control(process, "--zero")
        before, bytes_before, began_s = _asked(fake), written[0], time.monotonic()
        while _asked(fake) < before + given.refreshes * given.cards:
            if process.poll() is not None:
                raise RuntimeError(f"ended with {process.returncode}")
            time.sleep(0.5)
        time.sleep(0.5 * slower)
        seconds, refreshes = (time.monotonic() - began_s) / slower, (_asked(fake) - before) / given.cards
        written_bytes = written[0] - bytes_before
        _control(process, "--dump")
        counted = by_object(folder / "count.1")
        if given.keep is not None:
            given.keep.mkdir(parents=True, exist_ok=True)
            (folder / "count.1").rename(given.keep / re.sub(r"\W+", "_", client.name))
    return _count(counted, refreshes, seconds, written_bytes)


def look(fake: FakeNvml, client: Client, folder: Path, given: argparse.Namespace) -> Count:
    """Count one client from its start to its end; the second time, when everything is compiled."""
    subprocess.run(client.words, env=environment(fake), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    with started(client, CALLGRIND, environment(fake), folder) as (process, written):
        process.wait()
        counted = by_object(folder / "count")
        if given.keep is not None:
            given.keep.mkdir(parents=True, exist_ok=True)
            (folder / "count").rename(given.keep / re.sub(r"\W+", "_", client.name))
    return _count(counted, 1.0, 0.0, written[0])


def _count(counted: Counter[str], refreshes: float, seconds: float, written: int) -> Count:
    left_out = sum(n for name, n in counted.items() if name in LEFT_OUT)
    return Count(counted.total() - left_out, left_out, refreshes, seconds, written)


def _asked(fake: FakeNvml) -> int:
    return fake.calls().get(ONCE_A_REFRESH, 0)


def _control(process: subprocess.Popen[bytes], what: str) -> None:
    subprocess.run(["callgrind_control", what, str(process.pid)], check=True, capture_output=True)


def by_object(path: Path) -> Counter[str]:
    """Instructions by the library that executed them, from a file of callgrind's."""
    found, names, here, inclusive = Counter[str](), dict[str, str](), "", False
    for text in path.read_text(errors="replace").splitlines():
        if text.startswith("ob="):
            number, _, name = text[3:].partition(" ")
            here = names.setdefault(number, Path(name).name)
        elif text.startswith("cob="):
            number, _, name = text[4:].partition(" ")
            names.setdefault(number, Path(name).name)
        elif text.startswith("calls="):
            inclusive = True  # the next line is what the called function used
        elif text[:1] in "0123456789+-*" and text:
            if not inclusive:
                parts = text.split()
                found[here] += int(parts[1]) if len(parts) > 1 else 0
            inclusive = False
    return found


def system_calls(fake: FakeNvml, client: Client, folder: Path, given: argparse.Namespace) -> Counter[str]:
    """System calls by name a refresh at full speed, of all threads."""
    fake.reset_calls()
    with started(client, [], environment(fake), folder) as (process, _):
        while _asked(fake) < WARM_UP * given.cards:
            if process.poll() is not None:
                raise RuntimeError(f"ended with {process.returncode}")
            time.sleep(0.5)
        to = folder / "calls"
        words = ["timeout", "-s", "INT", f"{3 * given.refreshes}", "strace", "-f", "-qq", "-o", str(to), "-p", str(process.pid)]
        before = _asked(fake)
        subprocess.run(words, capture_output=True, check=False)
        refreshes = max(1.0, (_asked(fake) - before) / given.cards)
    names = Counter(m[1] for m in re.finditer(r"^\d+ +(\w+)\(", to.read_text(errors="replace"), re.MULTILINE))
    return Counter({name: round(n / refreshes) for name, n in names.items()})


@contextmanager
def played(n_cards: int) -> Iterator[FakeNvml]:
    """H100 cards whose use and power move, two processes on each."""
    with fake_nvml(["H100-SXM"] * n_cards) as fake:
        children = [subprocess.Popen(["sleep", "86400"]) for _ in range(2 * n_cards)]
        for n in range(n_cards):
            fake.gpu(n).set(utilization=sine(0.2, 0.95, 30 + n), power_w=sine(200, 690, 20 + n), temperature_c=66)
            for child in children[2 * n : 2 * n + 2]:
                fake.gpu(n).add_process(child.pid, memory_bytes=(20 + n) * 2**30, sm=0.4)
        try:
            yield fake
        finally:
            for child in children:
                child.kill()
                child.wait()


def main() -> None:
    """Count and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvitop", type=Path, help="the nvitop to compare with")
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--refreshes", type=int, default=5)
    parser.add_argument("--slower", type=int, default=4, help="how many times slower the clock of a client runs")
    parser.add_argument("--slower-screen", type=int, default=8, help="and of one with a screen")
    parser.add_argument("--only", default="", help="clients whose name has these words")
    parser.add_argument("--keep", type=Path, help="keep callgrind's files in this folder")
    parser.add_argument("--system-calls", action="store_true", help="count system calls instead")
    given = parser.parse_args()
    with played(given.cards) as fake, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_to = ["cc", "-O2", "-fPIC", "-shared", "-o", str(folder / "slow_clock.so")]
        subprocess.run([*compile_to, str(Path(__file__).with_name("slow_clock.c")), "-ldl"], check=True)
        chosen = [c for c in clients(given.nvitop, folder) if given.only in c.name]
        if given.system_calls:
            for client in chosen:
                calls = system_calls(fake, client, folder, given)
                most = ", ".join(f"{k} {n}" for k, n in calls.most_common(6))
                print(f"{client.name:<44} {calls.total():>6} a refresh: {most}", flush=True)
            return
        print(f"{'client':<44} {'M a refresh':>11} {'refreshes':>9} {'in s':>6} {'fake, M':>8} {'kB':>7}")
        for client in chosen:
            c = watch(fake, client, folder, given)
            print(
                f"{client.name:<44} {c.instructions / c.refreshes / 1e6:>11.2f} {c.refreshes:>9.1f} {c.seconds:>6.1f} "
                f"{c.left_out / c.refreshes / 1e6:>8.3f} {c.written_bytes / c.refreshes / 1e3:>7.2f}",
                flush=True,
            )
        print(f"\n{'one look':<44} {'M instr':>9}")
        for client in looks(given.nvitop):
            if given.only in client.name:
                print(f"{client.name:<44} {look(fake, client, folder, given).instructions / 1e6:>9.1f}", flush=True)


if __name__ == "__main__":
    main()
