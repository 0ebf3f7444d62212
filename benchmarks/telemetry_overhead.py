"""What watching costs: processor and memory of ``gpuwise top`` beside other monitors, on cards that are played.

    python benchmarks/telemetry_overhead.py [--nvitop FOLDER/bin/nvitop] [--cards 8] [--seconds 20] [--rounds 3]

Every client watches the same fake ``libnvidia-ml.so.1`` at one refresh a second (nvitop at its own: it takes whole seconds), one
after another, ``rounds`` times; the medians are shown. Processor time is that of all threads, from the scheduler
(``/proc/PID/task/*/schedstat``): the lower quartile of the single seconds of a window that begins when the client has started.
The played library answers at once: a real driver adds its own time to every client alike. A busy machine makes all figures
larger: compare within one run.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import resource
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from gpuwise.testing.fake_nvml import FakeNvml, fake_nvml

WARM_UP_S = 6.0
TOP = [sys.executable, "-c", "import sys; from gpuwise.cli.app import run; sys.exit(run())", "top", "--interval", "1s"]
FLOOR = """
import time, pynvml as n
n.nvmlInit(); cards = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
while True:
    for c in cards:
        n.nvmlDeviceGetUtilizationRates(c); n.nvmlDeviceGetMemoryInfo(c); n.nvmlDeviceGetPowerUsage(c)
        n.nvmlDeviceGetTemperature(c, 0); n.nvmlDeviceGetClockInfo(c, 1); n.nvmlDeviceGetPerformanceState(c)
        n.nvmlDeviceGetComputeRunningProcesses(c)
    time.sleep(1)
"""


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvitop", type=Path, help="the nvitop to compare with")
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop-only", action="store_true", help="only what one refresh costs in a loop")
    given = parser.parse_args()
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"telemetry-overhead-{os.getpid()}"
    folder.mkdir()
    with fake_nvml(["H100-SXM"] * given.cards) as fake:
        for n in range(given.cards):
            fake.gpu(n).set(utilization=0.95, power_w=640.0, temperature_c=66)
            fake.gpu(n).add_process(os.getpid(), memory_bytes=60e9, sm=0.9)
        in_a_loop(fake)
        if given.loop_only:
            return
        rows = watch_all(fake, given, folder)
        print(f"{given.cards} cards, one refresh a second, {given.seconds:.0f} s, median of {given.rounds}\n")
        print(f"{'client':<44} {'% of a core':>11} {'times floor':>11} {'RSS MB':>7} {'NVML calls/s':>12}")
        floor = statistics.median(c for c, _, _ in rows["pynvml, 7 readings a card (floor)"])
        for name, found in rows.items():
            cpu, rss, calls = (statistics.median(v) for v in zip(*found, strict=True))
            print(f"{name:<44} {cpu * 100:>11.2f} {cpu / floor:>11.1f} {rss / 1e6:>7.1f} {calls:>12.0f}")
        print(f"\n{'one look':<44} {'CPU s':>11} {'times bare':>11}")
        one_shot(fake, given)


def in_a_loop(fake: FakeNvml) -> None:
    """What the parts of one refresh cost with nothing between: the 20th of 400 times, which a busy machine moves least."""
    from gpuwise.machine.devices.find import find_devices
    from gpuwise.machine.telemetry.causes.table import find_causes
    from gpuwise.machine.telemetry.monitor import Monitor
    from gpuwise.machine.telemetry.outputs.csv_log import lines
    from gpuwise.machine.telemetry.recording.plain import to_plain

    with fake.in_process():
        found = find_devices(("nvidia",))
        (devices,) = found.backends
        monitor = Monitor(found.backends, health=False, watch_xids=False)
        frame, n = monitor.refresh(), len(monitor.refresh().cards)
        parts = {
            "asking the cards": lambda: [devices.sample(i) for i in range(n)],
            "a whole refresh": monitor.refresh,
            "finding causes": lambda: find_causes(frame),
            "a line of CSV a card": lambda: lines(frame, ()),
            "a document for JSON": lambda: to_plain(frame),
        }
        for name, part in parts.items():
            took: list[int] = []
            for _ in range(400):
                began = time.perf_counter_ns()
                part()
                took.append(time.perf_counter_ns() - began)
            print(f"{name:<44} {sorted(took)[20] / 1e6:>11.2f} ms")
        monitor.close()
        devices.close()
    print()


def watch_all(fake: FakeNvml, given: argparse.Namespace, folder: Path) -> dict[str, list[tuple[float, float, float]]]:
    """Every client in turn, ``rounds`` times: share of a core, bytes resident, NVML calls a second."""
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for n in range(given.rounds):
        clients: dict[str, tuple[list[str], bool]] = {
            "pynvml, 7 readings a card (floor)": ([sys.executable, "-c", FLOOR], False),
            "gpuwise top --json": ([*TOP, "--json"], False),
            "gpuwise top --record (SQLite), all causes": ([*TOP, "--no-screen", "--record", str(folder / f"{n}.sqlite")], False),
            "gpuwise top --csv": ([*TOP, "--no-screen", "--csv", str(folder / f"{n}.csv")], False),
            "gpuwise top --prometheus": ([*TOP, "--no-screen", "--prometheus", "127.0.0.1:0"], False),
            "gpuwise top, screen 120x40": (TOP, True),
        }
        if given.nvitop is not None:
            clients["nvitop, screen 120x40"] = ([str(given.nvitop), "--interval", "1"], True)
            collect = (
                "import time; from nvitop import ResourceMetricCollector\n"
                "c = ResourceMetricCollector(interval=1.0)\nwith c(tag='x'):\n  while True: time.sleep(1); c.collect()"
            )
            clients["nvitop ResourceMetricCollector"] = ([str(given.nvitop.with_name("python")), "-c", collect], False)
        for name, (words, screen) in clients.items():
            try:
                rows.setdefault(name, []).append(watch(fake, words, screen=screen, seconds=given.seconds))
            except RuntimeError as error:
                print(f"{name}: {error}", file=sys.stderr)
                rows.pop(name, None)
    return rows


def watch(fake: FakeNvml, words: Sequence[str], *, screen: bool, seconds: float) -> tuple[float, float, float]:
    """One client: share of a core, bytes resident, NVML calls a second over the window."""
    env = {**fake.env, "TERM": "xterm-256color", "OPENBLAS_NUM_THREADS": "1"}
    master = None
    if screen:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        process = subprocess.Popen(words, env=env, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(slave)
        threading.Thread(target=_drain, args=(master,), daemon=True).start()
    else:
        process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(WARM_UP_S)
        fake.reset_calls()
        began_s, used_s, each = time.monotonic(), _used_s(process.pid), list[float]()
        for _ in range(max(1, round(seconds))):
            time.sleep(1.0)
            before_s, used_s = used_s, _used_s(process.pid)
            each.append(used_s - before_s)
        if process.poll() is not None:
            raise RuntimeError(f"ended with {process.returncode}")
        span_s = time.monotonic() - began_s
        # one refresh a second: what others do on the machine only adds to some of them
        share = statistics.quantiles(each, n=4)[0] if len(each) > 1 else each[0]
        rss = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * resource.getpagesize()
    finally:
        process.kill()
        process.wait()
        if master is not None:
            os.close(master)
    return share, rss, sum(fake.calls().values()) / span_s


def _used_s(pid: int) -> float:
    """Processor seconds of every thread that lives."""
    return sum(int(t.read_text().split()[0]) for t in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _drain(master: int) -> None:
    """Read what a screen writes, and answer as a terminal would that knows nothing special."""
    try:
        while os.read(master, 65536):
            pass
    except OSError:
        return


def one_shot(fake: FakeNvml, given: argparse.Namespace) -> None:
    """Processor seconds of one look, beside a Python that does nothing."""
    clients = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "gpuwise --version": [*TOP[:3], "--version"],
        "gpuwise top --once": [*TOP[:4], "--once"],
        "gpuwise top --once --json": [*TOP[:4], "--once", "--json"],
    }
    if given.nvitop is not None:
        clients["nvitop --once"] = [str(given.nvitop), "--once"]
    used: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(5):
        for name, words in clients.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(words, env=fake.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    bare = min(used["python -c pass"])
    for name, found in used.items():
        middle = min(found)
        print(f"{name:<44} {middle:>11.2f} {middle / bare:>11.1f}")


if __name__ == "__main__":
    main()
