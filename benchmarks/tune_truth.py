"""Is what ``gpuwise tune`` keeps faster when whole processes are timed outside of it?

    python benchmarks/tune_truth.py CHECKOUTS --python PYTHON [--only NAME ...] [--minutes 3] [--pairs 4] [--record FILE]
        [--list FILE]

Every script of ``tests/foreign/scripts.toml`` (or of ``--list``) with ``tune = true`` (CHECKOUTS and PYTHON as for
``foreign_scripts.py``) is tuned in a copy of its folder. Where ``gpuwise.toml`` was written, the plain script and ``gpuwise
run`` are then timed in turns, each in a fresh process from its start to its end: seconds by the wall, and of the processor with
all its children, which a machine that others use disturbs less. A line of JSON for each script: what tune claimed, and both
ratios with their 95 % intervals. A gain is ``true`` where the interval of either lies above 1, ``slower`` where the wall's lies
below, else ``open``. Both runs have the start of Python, the imports and the data in them, ``gpuwise run`` its own start too,
which in scripts of a few seconds are most of it: with ``--times`` the script trains so many times as long, by the numbers after
:data:`LENGTHS`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foreign_scripts import LIST, STOPPED, SURROUNDINGS, _missing, _run, end, read_list

from gpuwise.train.tune.stats import Gain, gain_of

LENGTHS = (
    *("--epochs", "-e", "--n_epochs", "--num_epochs", "--train_epochs", "--num_train_epochs", "--trainer.max_epochs"),
    *("--nEpochs", "trainer.max_epochs", "--max-steps", "--max_iters", "--trainer.max_iters", "--niters", "--num_iters"),
)
"""Options of the scripts in the list that say how long they train."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--list", type=Path, default=LIST, help="scripts in the same format")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--levers", nargs="*", default=[], help="those to try; all where none is named")
    parser.add_argument("--limit-s", type=float, help="after which a tuning is stopped")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/gpuwise-tune-truth"))
    parser.add_argument("--record", type=Path)
    options = parser.parse_args(arguments)
    for script in read_list(options.list):
        if not script.get("tune") or (options.only and script["name"] not in options.only):
            continue
        row = json.dumps(truth_of(script, options))
        print(row, flush=True)
        if options.record is not None:
            with options.record.open("a", encoding="utf-8") as file:
                file.write(row + "\n")
    return 0


def truth_of(script: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """One script: what tune claims, and what whole processes say."""
    row: dict[str, Any] = {"name": script["name"]}
    source = (options.checkouts / script["repository"] / script["folder"]).resolve()
    missing = script["repository"] if not source.is_dir() else _missing(options.python, script.get("needs", ()))
    if missing:
        return {**row, "missing": missing}
    place = (options.scratch / script["name"]).resolve()
    shutil.rmtree(place, ignore_errors=True)
    python = str(options.python)
    folder = _run(place, script, source, python, [python, "-c", "pass"], 60.0)["folder"]
    environment = {**os.environ, **SURROUNDINGS, "HOME": str(place / "home"), **script.get("env", {})}
    environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    target = ["-m", script["module"]] if "module" in script else [script["path"]]
    # what is tuned is what is timed: a lever is held against the length of the script
    timed_arguments = longer(script["arguments"], options.times)
    arguments = ["--", *timed_arguments]
    config = str(place / "gpuwise.toml")
    tune = [python, "-m", "gpuwise", "tune", "--json", "--no-record", f"--minutes={options.minutes}", f"--config={config}"]
    tune += [f"--only={lever}" for lever in options.levers]
    began = time.monotonic()
    process = subprocess.Popen(
        [*tune, f"--out={place / 'out'}", *target, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=options.limit_s)
    except subprocess.TimeoutExpired:
        end(process)
        return {**row, "tune_s": round(time.monotonic() - began), "tune_code": STOPPED}
    row |= {"tune_s": round(time.monotonic() - began), "tune_code": process.returncode}
    if process.returncode:
        return {**row, "tail": errors[-500:]}
    told = json.loads(out.splitlines()[-1])
    row |= {"levers": told["levers"], "claimed": told["gain"], "could_not_tell": told["could_not_tell"], "spread": told["spread"]}
    row |= {name: told[name] for name in ("pairs_missing", "too_short", "run_length_s")}
    if not told["levers"]:
        return row
    plain = [python, *target, *timed_arguments]
    tuned = [python, "-m", "gpuwise", "run", "--no-record", f"--config={config}", *target, "--", *timed_arguments]
    walls, cpus = [], []
    for at in range(options.pairs):
        order = (plain, tuned) if at % 2 == 0 else (tuned, plain)
        first, second = (timed(command, folder, environment) for command in order)
        a, b = (first, second) if at % 2 == 0 else (second, first)
        # rates: one process a so many seconds
        walls.append((1.0 / a[0], 1.0 / b[0]))
        cpus.append((1.0 / a[1], 1.0 / b[1]))
    wall, cpu = gain_of(walls), gain_of(cpus)
    row |= {
        "times": options.times,
        "plain_s": [round(1.0 / w[0], 1) for w in walls],
        "tuned_s": [round(1.0 / w[1], 1) for w in walls],
    }
    return {**row, "wall": _row(wall), "cpu": _row(cpu), "verdict": verdict_of(wall, cpu)}


def longer(arguments: Sequence[str], times: int) -> list[str]:
    """The same for ``times`` as long a training, whether the number is an argument of its own or behind an equals sign."""
    out: list[str] = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if out and out[-1] in LENGTHS and argument.isdigit():
            out.append(str(times * int(argument)))
        elif equals and name in LENGTHS and value.isdigit():
            out.append(f"{name}={times * int(value)}")
        else:
            out.append(argument)
    return out


def timed(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    """Seconds by the wall and of the processor. Raises CalledProcessError where it fails.

    In a session of its own, as ``gpuwise run`` starts a script: Linux shares a crowded processor among sessions (autogroup).
    """
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    wall_s = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def verdict_of(wall: Gain, cpu: Gain) -> str:
    """``true``, ``slower`` or ``open``."""
    if wall.low > 1.0 or cpu.low > 1.0:
        return "true"
    return "slower" if wall.high < 1.0 else "open"


def _row(gain: Gain) -> list[float]:
    return [round(v, 3) for v in (gain.ratio, gain.low, min(gain.high, 1e6))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
