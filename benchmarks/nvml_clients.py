"""Foreign programs that ask NVML, on the played driver: which read the right figures.

    python benchmarks/nvml_clients.py DIR [NAME ...]     # DIR holds environments (venv) with the programs installed
    python benchmarks/nvml_clients.py DIR --json FILE    # and a record of each

Nothing is installed. The programs are listed in nvml_clients.toml with how each is asked; one runs where its distribution is in
an environment of DIR. Right means: it ends with status 0, and everything it tells of both played cards is what they play, in
whatever unit.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from gpuwise.testing.fake_nvml import FakeNvml, fake_nvml

MIB, LIMIT_S = 1 << 20, 120.0
DRIVER = "570.124.06"
PLAYED: tuple[dict[str, float], ...] = (
    {"utilization": 0.73, "memory_used_bytes": 31234 * MIB, "power_w": 512.3, "temperature_c": 67.0},
    {"utilization": 0.41, "memory_used_bytes": 7777 * MIB, "power_w": 233.4, "temperature_c": 59.0},
)
NAMES = ("H100 80GB HBM3", "GeForce RTX 4090")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def forms(kind: str, fake: FakeNvml, card: int) -> list[float]:
    """Numbers that tell a reading in some unit."""
    played, gpu = PLAYED[card], fake.gpu(card)
    total = float(gpu.get("memory_total_bytes") or 0.0)  # type: ignore[arg-type]
    if kind == "utilization":
        return [100 * played["utilization"], played["utilization"]]
    if kind == "temperature":
        return [played["temperature_c"]]
    if kind == "power":
        return [played["power_w"], float(int(played["power_w"])), 1e3 * played["power_w"], played["power_w"] / 1e3]
    if kind == "memory_total":
        return [total / unit for unit in (1, 1024, MIB, 1 << 30, 1e6, 1e9)]
    used = played["memory_used_bytes"]
    # the first form of the question counts what the driver keeps as used
    held = [used, used + float(gpu.get("memory_reserved_bytes") or 0.0)]  # type: ignore[arg-type]
    if kind == "memory_share":
        return [factor * h / total for h in held for factor in (1, 100)]
    units = (1, 1024, MIB, 1 << 30, 1e3, 1e6, 1e9)
    return [h / unit for h in held for unit in units] + [factor * h / total for h in held for factor in (1, 100)]


def missing(kind: str, text: str, fake: FakeNvml, pid: int) -> str | None:
    """What a program should have told of ``kind`` and did not; None where it is right."""
    numbers = [float(n) for n in _NUMBER.findall(text)]
    if kind == "names":
        return next((f"name {n}" for n in NAMES if n not in text), None)
    if kind == "driver":
        return None if DRIVER in text else f"driver {DRIVER}"
    if kind == "uuids":
        return next((g.uuid for g in fake.gpus if g.uuid.removeprefix("GPU-") not in text), None)
    if kind == "pid":
        return None if pid in numbers else f"process {pid}"
    if kind == "count":
        return None if 2 in numbers else "count 2"
    if kind == "true":
        return None if "True" in text else "True"
    sums = {"sum": [100 * 1.14, 1.14], "power_sum": [745.7, 745.0, 745_700.0]}
    if kind in sums:
        return None if any(_near(n, f, 0.003) for n in numbers for f in sums[kind]) else kind
    share = 0.05 if kind == "watts" else 0.006 if kind.startswith("memory") else 0.002
    for card in range(len(PLAYED)):
        told = forms("power" if kind == "watts" else kind, fake, card)
        if not any(_near(n, f, share) for n in numbers for f in told):
            return f"{kind} of card {card}"
    return None


def _near(a: float, b: float, share: float) -> bool:
    return abs(a - b) <= share * b


def environments(folder: Path) -> list[tuple[Path, dict[str, str]]]:
    """Folders of programs, and the distributions beside them with their versions."""
    found: list[tuple[Path, dict[str, str]]] = []
    for python in sorted(folder.glob("*/bin/python")):
        places = [str(p) for p in python.parents[1].glob("lib/python3*/site-packages")]
        # an environment may lean on another by a line of a .pth file
        places += [
            line for p in list(places) for f in Path(p).glob("*.pth") for line in f.read_text().split() if Path(line).is_dir()
        ]
        names = {(d.metadata["Name"] or "").lower().replace("_", "-"): d.version for d in distributions(path=places)}
        found.append((python.parent, names))
    return found


def ask(name: str, client: dict[str, Any], bin_folder: Path, fake: FakeNvml) -> dict[str, Any]:
    """How one program did."""
    with subprocess.Popen(["sleep", "300"]) as process, tempfile.TemporaryDirectory() as home:
        try:
            for gpu in fake.gpus:
                gpu.add_process(process.pid, memory_bytes=1234 * MIB, sm=0.5, name="train")
            code = client.get("code")
            command = [str(bin_folder / "python"), "-W", "ignore", "-c", code] if code else client["command"]
            words = [w.replace("{bin}", str(bin_folder)) for w in command]
            began_s = time.monotonic()
            fake.reset_calls()
            environment = {**fake.env, "HOME": home, "COLUMNS": "200", "TERM": "dumb", "PYTHONPATH": ""}
            try:
                done = subprocess.run(
                    words, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=home
                )
                text, status, errors = done.stdout, done.returncode, done.stderr
            except subprocess.TimeoutExpired:
                text, status, errors = "", None, "no end"
            seen = text + errors
            lacks = [m for kind in client["tells"] if (m := missing(kind, seen, fake, process.pid))]
            right = status == 0 and not lacks
            last = (errors.strip().splitlines() or [""])[-1][:200]
            return {
                "name": name,
                "right": right,
                "status": status,
                "lacks": lacks,
                "calls": sum(fake.calls().values()),
                "seconds": round(time.monotonic() - began_s, 1),
                "last": "" if right else last,
            }
        finally:
            for gpu in fake.gpus:
                gpu.remove_process(process.pid)
            process.kill()


def main(arguments: Sequence[str]) -> int:
    """Run the clients and print a line of each; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args(arguments)
    clients = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    places = environments(given.folder)
    results: list[dict[str, Any]] = []
    with fake_nvml(["H100-SXM", "RTX 4090"], driver=DRIVER) as fake:
        for gpu, played in zip(fake.gpus, PLAYED, strict=True):
            gpu.set(**played)
        for name, client in clients.items():
            if given.names and name not in given.names:
                continue
            place = next(((b, n) for b, n in places if client["distribution"] in n), None)
            if place is None:
                print(f"{name:<28} not installed", flush=True)
                continue
            done = ask(name, client, place[0], fake) | {"version": place[1][client["distribution"]]}
            results.append(done)
            words = "right" if done["right"] else f"WRONG status {done['status']}, lacks {done['lacks']} {done['last']}"
            print(f"{name:<28} {done['version']:<14} {done['calls']:>6} calls {done['seconds']:>6} s  {words}", flush=True)
    print(f"{sum(r['right'] for r in results)} of {len(results)} right")
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
