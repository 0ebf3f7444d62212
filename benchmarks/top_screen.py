"""What the screen of `gpuwise top` costs, beside nvitop's, on cards that do not exist. Both run in turn, several rounds.

    python benchmarks/top_screen.py --nvitop /path/to/nvitop [--gpus 8] [--span 20] [--rounds 3]

nvitop 1.7.2 is installed apart (``python -m venv x && x/bin/pip install nvitop==1.7.2``). Each program has a terminal of its own
of 120 x 40 that is read and thrown away. Processor time is the scheduler's (``schedstat``), of all threads.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from gpuwise.testing.fake_nvml import fake_nvml, sine

COLUMNS, ROWS = 120, 40
WARM_S = 12.0
OURS = (
    "from gpuwise.machine.telemetry.monitor import Monitor\n"
    "from gpuwise.machine.telemetry.options import ScreenOptions\n"
    "from gpuwise.tui.top import run\n"
    # the fake waits for error events by polling every 2 ms, which a driver does not
    "with Monitor(watch_xids=False) as m: run(m, ScreenOptions(interval_s=1.0))"
)


def used_s(pid: int) -> float:
    """Processor time of all threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((t / "schedstat").read_text().split()[0]) for t in tasks) / 1e9


def read_for(fd: int, span_s: float) -> int:
    """Bytes the program wrote in this time."""
    n, end_s = 0, time.monotonic() + span_s
    while (left_s := end_s - time.monotonic()) > 0:
        if select.select([fd], [], [], left_s)[0]:
            n += len(os.read(fd, 65536))
    return n


def measure(argv: list[str], env: dict[str, str], span_s: float) -> tuple[float, float, float]:
    """Share of a core, bytes per second to the terminal, and memory in bytes."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe(argv[0], argv, env)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    read_for(fd, WARM_S)
    before_s, began_s = used_s(pid), time.monotonic()
    written = read_for(fd, span_s)
    took_s = time.monotonic() - began_s
    share = (used_s(pid) - before_s) / took_s
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)
    return share, written / took_s, pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvitop", required=True)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--span", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    programs = {"gpuwise top": [sys.executable, "-c", OURS], "nvitop": [args.nvitop, "--interval", "1"]}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in programs}
    with fake_nvml({"H100-SXM": args.gpus}) as fake:
        children = [subprocess.Popen(["sleep", "3600"]) for _ in range(2 * args.gpus)]
        for i in range(args.gpus):
            fake.gpu(i).set(utilization=sine(0.2, 0.95, 30 + i), power_w=sine(200, 690, 20 + i))
            for child in children[2 * i : 2 * i + 2]:
                fake.gpu(i).add_process(child.pid, memory_bytes=(20 + i) * 2**30)
        env = dict(fake.env, TERM="xterm-256color", COLORTERM="truecolor")
        try:
            for _ in range(args.rounds):
                for name, argv in programs.items():
                    found[name].append(measure(argv, env, args.span))
        finally:
            for child in children:
                child.kill()
                child.wait()
    print(f"{args.gpus} GPUs, 2 processes each, 1 Hz, {COLUMNS} x {ROWS}, {args.rounds} rounds of {args.span:g} s; load "
          f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")  # fmt: skip
    for name, runs in found.items():
        shares = ", ".join(f"{100 * r[0]:.2f}" for r in runs)
        print(f"{name:12} {100 * statistics.median(r[0] for r in runs):6.2f} % of a core (rounds {shares}), "
              f"{statistics.median(r[1] for r in runs):7.0f} B/s, "
              f"{statistics.median(r[2] for r in runs) / 2**20:.0f} MiB")  # fmt: skip
    ratios = sorted(a[0] / b[0] for a, b in zip(*found.values(), strict=True))
    print(f"ratio by round: {', '.join(f'{r:.2f}' for r in ratios)}")


if __name__ == "__main__":
    main()
