"""``gpuwise doctor`` and ``gpuwise top`` on a real card under load, beside ``nvidia-smi``; what watching costs; energy."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from card_rows import Rows, environment, gpuwise

LOAD = """
import sys, time, torch
n = 8192
a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
end = time.monotonic() + float(sys.argv[1])
torch.cuda.synchronize()
print("ready", flush=True)
while time.monotonic() < end:
    for _ in range(20):
        a @ b
    torch.cuda.synchronize()
"""
TINY_LOAD = "import sys, time; print('ready', flush=True); time.sleep(float(sys.argv[1]))"
LOAD_S, WATCH_S, WARM_S, BLOCK_S = 60.0, 8.0, 4.0, 3.0
RAW = 9_000
"""Characters of a raw text that are kept."""
HZ, W, MIB = 1e6, 1.0, 2.0**20


def _yes(text: str) -> float | None:
    return {"Enabled": 1.0, "Disabled": 0.0}.get(text)


def _number(text: str) -> float | None:
    word = text.split(" ")[0]
    try:
        return float(int(word, 16)) if word.startswith("0x") else float(word)
    except ValueError:
        return None


FIELDS: dict[str, tuple[str, float, float, float]] = {
    # theirs: ours, unit of theirs in ours, tolerance relative and absolute (both in ours)
    "name": ("identity.name", 0, 0, 0),
    "uuid": ("identity.uuid", 0, 0, 0),
    "pci.bus_id": ("identity.pci_bus_id", 0, 0, 0),
    "serial": ("identity.serial", 0, 0, 0),
    "vbios_version": ("identity.vbios", 0, 0, 0),
    "compute_cap": ("identity.compute_capability", 0, 0, 0),
    "memory.total": ("identity.memory_bytes", MIB, 0, MIB),
    "power.default_limit": ("identity.power_limit_default_w", W, 0, 0.01),
    "power.min_limit": ("identity.power_limit_min_w", W, 0, 0.01),
    "power.max_limit": ("identity.power_limit_max_w", W, 0, 0.01),
    "clocks.max.sm": ("identity.sm_clock_max_hz", HZ, 0, 1),
    "clocks.max.memory": ("identity.memory_clock_max_hz", HZ, 0, 1),
    "pcie.link.gen.max": ("identity.pcie_generation_max", 1, 0, 0),
    "pcie.link.width.max": ("identity.pcie_width_max", 1, 0, 0),
    "mig.mode.current": ("identity.mig", 1, 0, 0),
    "persistence_mode": ("identity.persistence", 1, 0, 0),
    "ecc.mode.current": ("identity.ecc", 1, 0, 0),
    "utilization.gpu": ("sample.utilization", 0.01, 0, 0.1),
    "utilization.memory": ("sample.memory_utilization", 0.01, 0, 0.1),
    "memory.used": ("sample.memory_used_bytes", MIB, 0.01, 64 * MIB),
    "memory.reserved": ("sample.memory_reserved_bytes", MIB, 0, MIB),
    "power.draw": ("sample.power_w", W, 0.05, 5),
    "power.draw.instant": ("sample.power_w", W, 0.1, 10),
    "enforced.power.limit": ("sample.power_limit_w", W, 0, 0.01),
    "temperature.gpu": ("sample.temperature_c", 1, 0, 2),
    "temperature.memory": ("sample.memory_temperature_c", 1, 0, 2),
    "clocks.sm": ("sample.sm_clock_hz", HZ, 0.08, 1),
    "clocks.mem": ("sample.memory_clock_hz", HZ, 0, 1),
    "pstate": ("sample.performance_state", 1, 0, 0),
    "clocks_event_reasons.active": ("sample.event_reasons", 1, 0, 0),
    "pcie.link.gen.current": ("sample.pcie_generation", 1, 0, 0),
    "pcie.link.width.current": ("sample.pcie_width", 1, 0, 0),
    "fan.speed": ("sample.fan", 0.01, 0, 0.05),
    "ecc.errors.corrected.volatile.total": ("health.ecc_corrected", 1, 0, 0),
    "ecc.errors.uncorrected.volatile.total": ("health.ecc_uncorrected", 1, 0, 0),
    "ecc.errors.uncorrected.aggregate.total": ("health.ecc_uncorrected_ever", 1, 0, 0),
}


def nvidia_smi() -> str:
    """The program, also where only the driver's folder has it. Raises FileNotFoundError."""
    found = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path="/usr/local/nvidia/bin:/usr/lib/nvidia/bin")
    if found is None:
        raise FileNotFoundError("nvidia-smi")
    return found


def smi(*words: str, limit_s: float = 8.0) -> str:
    made = subprocess.run([nvidia_smi(), *words], capture_output=True, text=True, timeout=limit_s, check=False)
    return made.stdout or made.stderr


def query_smi() -> dict[str, str]:
    """Field to text; a field that this version does not have is left out and asked for no more."""
    names = list(FIELDS)
    for _ in range(6):
        text = smi(f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits")
        bad = next((n for n in names if f'"{n}"' in text and "not a valid" in text), None)
        if bad is None:
            first = text.splitlines()[0] if text.strip() else ""
            values = [v.strip() for v in first.split(",")]
            if len(values) != len(names):
                raise ValueError(f"{len(values)} values for {len(names)} fields: {text[:200]}")
            return dict(zip(names, values, strict=True))
        names.remove(bad)
    raise ValueError("nvidia-smi refuses too many fields")


def compare_fields(frame: Mapping[str, Any], theirs: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row each: field, ours, theirs, whether they are equal within the tolerance of the field."""
    card = frame["cards"][0]
    made: list[dict[str, Any]] = []
    for field, text in theirs.items():
        path, unit, relative, absolute = FIELDS[field]
        part, _, name = path.partition(".")
        ours = (card.get(part) or {}).get(name)
        why = ((card.get(part) or {}).get("unknown") or {}).get(name)
        made.append({"field": field, "path": path, "ours": ours, "theirs": text, "why_unknown": why})
        made[-1]["equal"] = _equal(ours, text, unit, relative, absolute)
    return made


def _equal(ours: Any, text: str, unit: float, relative: float, absolute: float) -> bool | None:
    """None where both have nothing."""
    nothing = text.strip("[]").lower() in ("n/a", "not supported", "", "0") and unit == 0
    missing = text.strip("[]").lower() in ("n/a", "not supported", "unknown error", "requested functionality has been deprecated")
    if ours is None:
        return None if missing or nothing else False
    if unit == 0:
        said = ".".join(str(v) for v in ours) if isinstance(ours, list) else str(ours)
        return said.lower() == text.lower()
    value = _yes(text) if isinstance(ours, bool) else _number(text.removeprefix("P"))
    return value is not None and abs(float(ours) - value * unit) <= max(absolute, relative * abs(float(ours)))


def last_json(text: str) -> Any:
    return json.loads([line for line in text.splitlines() if line.strip()][-1])


def used_s(pid: int) -> float | None:
    """Processor seconds of all threads of a process so far; None where it has ended."""
    try:
        parts = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((t / "schedstat").read_text().split()[0]) for t in parts) * 1e-9
    except (OSError, ValueError, IndexError):
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:
            return None


def resident_bytes(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


class Watchers:
    """Several programs that watch the card at once, each with its processor seconds over one window."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        commands: dict[str, list[str]] = {
            "gpuwise top --json, 1 s": gpuwise("top", "--json", "--interval", "1s", "--duration", "40s"),
            "gpuwise top --json, 100 ms": gpuwise("top", "--json", "--interval", "100ms", "--duration", "40s"),
            "gpuwise top --record, 1 s": gpuwise(
                "top", "--no-screen", "--record", str(folder / "r.sqlite"), "--interval", "1s", "--duration", "40s"
            ),
        }
        with contextlib.suppress(FileNotFoundError):
            commands["nvidia-smi dmon, 1 s"] = [nvidia_smi(), "dmon", "-d", "1"]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.files: dict[str, Path] = {}
        for n, (name, words) in enumerate(commands.items()):
            self.files[name] = folder / f"{n}.out"
            with self.files[name].open("wb") as out:
                self.processes[name] = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, env=environment())
        self.began: dict[str, tuple[float, float | None]] = {}

    def begin(self) -> None:
        self.began = {n: (time.monotonic(), used_s(p.pid)) for n, p in self.processes.items()}

    def end(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for name, process in self.processes.items():
            at_s, before = self.began[name]
            after, rss = used_s(process.pid), resident_bytes(process.pid)
            span_s = time.monotonic() - at_s
            share = None if before is None or after is None else (after - before) / span_s
            per_minute = None if share is None else 60 * share
            found[name] = {"cpu_share": share, "cpu_s_per_minute": per_minute, "rss_bytes": rss, "window_s": span_s}
        return found

    def stop(self) -> None:
        for process in self.processes.values():
            end_process(process)


def end_process(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(3)


def frames_of(file: Path) -> list[dict[str, Any]]:
    """Whole lines of a stream of frames; the last may be cut."""
    made: list[dict[str, Any]] = []
    for line in file.read_text("utf-8", errors="replace").splitlines():
        try:
            document = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(document, dict) and document.get("cards"):
            made.append(document)
    return made


def periods(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Seconds between frames, and how often what they read was new."""
    ats = [f["at_s"] for f in frames]
    gaps = sorted(b - a for a, b in itertools.pairwise(ats))
    if not gaps:
        return {"frames": len(frames)}
    new = {
        name: sum(a["cards"][0]["sample"].get(name) != b["cards"][0]["sample"].get(name) for a, b in itertools.pairwise(frames))
        for name in ("power_w", "utilization", "sm_clock_hz", "energy_j")
    }
    return {
        "frames": len(frames),
        "median_s": gaps[len(gaps) // 2],
        "least_s": gaps[0],
        "most_s": gaps[-1],
        "changes_of": new,
        "span_s": ats[-1] - ats[0],
    }


def energy_of(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """The counter's joules between the first and last frame, and the driver's power integrated over the same span."""
    samples = [f["cards"][0]["sample"] for f in frames]
    counted = [s["energy_j"] for s in samples]
    integrated = sum(
        (a["power_w"] + b["power_w"]) / 2 * (b["at_s"] - a["at_s"])
        for a, b in itertools.pairwise(samples)
        if a["power_w"] is not None and b["power_w"] is not None
    )
    counter = counted[-1] - counted[0] if counted and None not in (counted[0], counted[-1]) else None
    ratio = integrated / counter if counter else None
    ours = [f["cards"][0]["energy_j"] for f in frames]
    return {
        "counter_j": counter,
        "integrated_j": integrated,
        "integrated_over_counter": ratio,
        "gpuwise_j": ours[-1] - ours[0] if None not in (ours[0], ours[-1]) else None,
        "gpuwise_basis": frames[-1]["cards"][0]["energy_basis"],
    }


def block() -> dict[str, Any]:
    """``gpuwise.machine.measure`` around a block, beside the driver's counter and 20 ms power readings of our own."""
    import pynvml

    from gpuwise.machine import measure

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    powers: list[tuple[float, float]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            powers.append((time.monotonic(), pynvml.nvmlDeviceGetPowerUsage(handle) * 1e-3))
            stop.wait(0.02)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    with measure() as m:
        energy_j = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) * 1e-3
        began = time.monotonic()
        time.sleep(BLOCK_S)
        energy_j = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) * 1e-3 - energy_j
        span_s = time.monotonic() - began
    stop.set()
    thread.join(1)
    inside = [(a, p) for a, p in powers if began <= a <= began + span_s]
    integrated = sum((p + q) / 2 * (b - a) for (a, p), (b, q) in itertools.pairwise(inside))
    changes = [b - a for (a, p), (b, q) in itertools.pairwise(inside) if p != q]
    card = m.cards[0]
    return {
        "ours": {n: getattr(card, n) for n in card.__slots__},
        "counter_j": energy_j,
        "integrated_j": integrated,
        "span_s": span_s,
        "power_readings": len(inside),
        "power_changes": len(changes),
    }


def held_back(doctor: Mapping[str, Any]) -> dict[str, Any]:
    """What the doctor found, in few words."""
    rows = {
        part: [{k: f.get(k) for k in ("id", "severity", "what", "why")} for f in doctor.get(part, [])]
        for part in ("findings", "notes")
    }
    return {"verdict": doctor.get("verdict"), "summary": doctor.get("summary"), **rows}


def main(rows: Rows, *, tiny: bool = False) -> None:
    """Top beside nvidia-smi three times under load, then costs and energy."""
    folder = Path(tempfile.mkdtemp(prefix="card-watch-"))
    load = subprocess.Popen(
        [sys.executable, "-c", TINY_LOAD if tiny else LOAD, str(LOAD_S)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    watchers: Watchers | None = None
    try:
        rows.run("watch/idle", lambda: {"smi": query_smi()}, 8.0)
        ready = _wait_for(load, 20.0)
        rows.write("watch/load", ready=ready, pid=load.pid)
        watchers = Watchers(folder)
        time.sleep(WARM_S)
        watchers.begin()
        began = time.monotonic()
        for n in range(3):
            rows.run(f"watch/once/{n}", lambda: _once(load.pid), 8.0)
        rows.run("watch/block", block, 8.0)
        time.sleep(max(0.0, WATCH_S - (time.monotonic() - began)))
        costs = watchers.end()
        watchers.stop()
        rows.write("watch/costs", costs=costs)
        for name in ("gpuwise top --json, 1 s", "gpuwise top --json, 100 ms"):
            frames = frames_of(watchers.files[name])
            rows.run(f"watch/period/{name}", lambda f=frames: periods(f), 5.0)
            rows.run(f"watch/energy/{name}", lambda f=frames: energy_of(f[2:]), 5.0)
            rows.run(f"watch/last/{name}", lambda f=frames: {"frame": f[-1]}, 5.0)
        rows.run("watch/recording", lambda: _recording(folder / "r.sqlite"), 8.0)
        for item, words in RAW_LISTS.items():
            rows.run(f"watch/smi/{item}", lambda w=words: {"text": smi(*w)[:RAW]}, 6.0)
    finally:
        if watchers is not None:
            watchers.stop()
        end_process(load)
        shutil.rmtree(folder, ignore_errors=True)


RAW_LISTS = {
    "pmon": ("pmon", "-c", "1", "-s", "um"),
    "dmon": ("dmon", "-c", "1", "-s", "pucvmet"),
    "apps": ("--query-compute-apps=pid,used_memory,process_name", "--format=csv"),
    "full": ("-q",),
}


def _wait_for(load: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Whether the load says that it runs."""
    said: list[bytes] = []
    stream = load.stdout
    if stream is None:
        return False
    thread = threading.Thread(target=lambda: said.append(stream.readline()), daemon=True)
    thread.start()
    thread.join(limit_s)
    return bool(said and said[0].strip() == b"ready")


def doctor(rows: Rows) -> None:
    """The doctor with nothing beside it: without the frameworks, then with them, which each start on the card."""
    rows.run("doctor/files", lambda: _doctor("--no-frameworks"), 20.0)
    rows.run("doctor/whole", lambda: _doctor(), 70.0)


def _doctor(*words: str) -> dict[str, Any]:
    began = time.monotonic()
    made = subprocess.run(
        gpuwise("doctor", "--json", "--notes", *words), capture_output=True, text=True, env=environment(), timeout=68, check=False
    )
    document = last_json(made.stdout)
    machine = document.get("machine", {})
    return {
        "exit": made.returncode,
        "wall_s": time.monotonic() - began,
        "stderr": made.stderr[-500:],
        **held_back(document),
        "machine": {k: v for k, v in machine.items() if len(json.dumps(v)) < 6_000},
        "left_out": [k for k, v in machine.items() if len(json.dumps(v)) >= 6_000],
    }


def _once(load_pid: int) -> dict[str, Any]:
    """``gpuwise top --once`` and ``nvidia-smi`` started at the same moment."""
    began = time.monotonic()
    ours = subprocess.Popen(
        gpuwise("top", "--once", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    time.sleep(0.4)  # the client has started by then
    theirs = query_smi()
    theirs_s = time.monotonic() - began
    apps = smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits").split("\n")
    out, error = ours.communicate(timeout=8)
    frame = last_json(out)
    fields = compare_fields(frame, theirs)
    card = frame["cards"][0]
    processes = [
        {"pid": p["gpu"]["pid"], "memory_bytes": p["gpu"]["memory_bytes"], "sm": p["gpu"]["sm_utilization"]}
        for p in card["processes"]
    ]
    return {
        "ours_wall_s": time.monotonic() - began,
        "theirs_at_s": theirs_s,
        "same": sum(f["equal"] is True for f in fields),
        "different": [f for f in fields if f["equal"] is False],
        "fields": fields,
        "processes_ours": processes,
        "processes_theirs": [a for a in apps if a.strip()],
        "load_pid": load_pid,
        "causes": frame.get("causes"),
        "stderr": error[-300:],
        "exit": ours.returncode,
    }


def _recording(file: Path) -> dict[str, Any]:
    import sqlite3

    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as store:
        tables = [r[0] for r in store.execute("select name from sqlite_master where type='table'")]
        counts = {t: store.execute(f'select count(*) from "{t}"').fetchone()[0] for t in tables}
    return {"bytes": file.stat().st_size, "rows": counts}
