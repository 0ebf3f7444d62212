"""Real jobs on ranks of this machine: each layout uninterrupted and with a rank killed, their weights compared to the last bit.

python benchmarks/ranks/jobs.py --out /tmp/ranks > record.md
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TEXT = [
    f"{ROOT}/examples/jobs/text.py:make_step",
    "--set",
    "length=128",
    "--set",
    "files=8",
    "--set",
    "layers=4",
    "--global-batch",
    "8",
]
IMAGES = [f"{ROOT}/examples/jobs/images.py:make_step", "--set", "images=256", "--set", "source=digits", "--global-batch", "32"]
LAYOUTS: dict[str, tuple[list[str], list[str]]] = {
    "text, 1 rank": (TEXT, ["--ranks", "1"]),
    "text, DDP 2, 2 loaders": (TEXT, ["--ranks", "2", "--workers", "2"]),
    "text, FSDP2 4": (TEXT, ["--ranks", "4", "--sharding", "zero3"]),
    "text, pipeline 2": (TEXT, ["--ranks", "2", "--pp", "2", "--micro-batch", "2"]),
    "text, pipeline 2 x FSDP2 2": (TEXT, ["--ranks", "4", "--pp", "2", "--micro-batch", "2", "--sharding", "zero3"]),
    "images, DDP 2, 2 loaders": (IMAGES, ["--ranks", "2", "--workers", "2"]),
    "images, FSDP2 4": (IMAGES, ["--ranks", "4", "--sharding", "zero3"]),
}


def train(
    words: list[str], out: Path, steps: int, kill_at: int | None, *, save_every: int = 8, limit_s: float | None = None
) -> dict[str, Any]:
    """One training; a rank is killed once it has made so many steps, and torchrun starts all again. Raises SystemExit with its
    last words where it fails, and TimeoutExpired after ``limit_s``."""
    ends = ["--total-steps", str(steps), "--save-every", str(save_every), "--out", str(out), "--json"]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([sys.executable, "-m", "gpuwise", "run", *words, *ends], stdout=subprocess.PIPE, stderr=errors)
        until_s = math.inf if limit_s is None else time.monotonic() + limit_s
        _kill_at(process, words, out, kill_at, until_s)
        try:
            left_s = None if limit_s is None else max(until_s - time.monotonic(), 0.1)
            told = process.communicate(timeout=left_s)[0].decode().splitlines()
        except subprocess.TimeoutExpired:
            # torchrun ends its ranks on it
            process.terminate()
            raise
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{words}: exit code {process.returncode}\n{errors.read().decode('utf-8', 'replace')[-1500:]}")
    return json.loads(told[-1])


def _kill_at(process: subprocess.Popen[bytes], words: list[str], out: Path, kill_at: int | None, until_s: float) -> None:
    victim = out / f"rank-{min(int(words[words.index('--ranks') + 1]) - 1, 1)}.jsonl"
    while kill_at is not None and process.poll() is None and time.monotonic() < until_s:
        events = [json.loads(line) for line in victim.read_text().splitlines()] if victim.exists() else []
        if any(e["event"] == "step" and e["step"] >= kill_at for e in events):
            os.kill(events[0]["pid"], signal.SIGKILL)
            break
        time.sleep(0.01)


def weights(out: Path, steps: int) -> dict[str, Any]:
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(out / "checkpoints" / f"step-{steps:09d}", out / "whole.pt")
    return torch.load(out / "whole.pt")["model"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", default="", help="names of layouts that hold this")
    options = parser.parse_args()
    first: dict[str, float] = {}
    sys.stdout.write(
        "| job and layout | loss | of one rank | weights after a kill | lost by it | expected | saves hold up | exchanges |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|---|---|\n")
    for name, (job, layout) in ((n, told) for n, told in LAYOUTS.items() if options.only in n):
        places = [options.out / name.replace(", ", "-").replace(" ", "_") / kind for kind in ("alone", "killed")]
        alone = train([*job, *layout], places[0], options.steps, None)
        killed = train([*job, *layout], places[1], options.steps, options.steps // 2 + 2)
        one, other = (weights(place, options.steps) for place in places)
        same = one.keys() == other.keys() and all(one[k].equal(other[k]) for k in one)
        reference = first.setdefault(name.split(",")[0], alone["loss"])
        lost = killed["losses"][0]["lost_s"] if killed["losses"] else float("nan")
        exact = all(c["predicted"] == c["measured"] for c in alone["collectives"].values())
        blocked = f"{alone['save_blocks']:.2%}" if alone["save_blocks"] is not None else ""
        expected = killed["expected_loss_s"]
        sys.stdout.write(
            f"| {name} | {alone['loss']:.6f} | {alone['loss'] / reference - 1:+.1e} | {'bit-equal' if same else 'DIFFER'}"
            f" | {lost:.1f} s | {f'{expected:.1f} s' if expected else ''} | {blocked} | {'exact' if exact else 'differ'} |\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
