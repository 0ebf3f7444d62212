"""What gpuwise says of a real H100 beside what it is: its commands, its kernel model and its lab.

    python benchmarks/gpu/card.py --predict FILE                  # on any machine, before: what is predicted
    python benchmarks/gpu/card.py --out FILE --budget 100         # on the card
    python benchmarks/gpu/card.py --table FILE                    # a row file as tables

One JSON line a row, written when it is done: ``section``, ``item``, then

- ``kernels/*``: ``predicted_s`` (a training step: cold L2, long run), ``predicted_hot_s`` (warm L2, burst), ``cold`` and ``hot``
  (medians between events), ``over_measured`` (predicted over cold), ``sustained_s``, ``kernels``; ``kernels/event-floor`` is what
  an empty kernel takes by the same clock.
- ``truth/*``: ``value`` under the key of ``gpuwise bench`` whose ``bench/*`` row it checks.
- ``lab/TASK/SIZE``: ``predicted_s`` of the simulator, ``cold`` and ``hot``, registers and blocks ours and theirs, whether the
  values were ``right``; ``lab/strided/N``; ``lab/occupancy``: ``different`` of ``asked``; ``lab/numba/*``: the lab's own source.
- ``watch/once/N``: every field of ``gpuwise top`` beside ``nvidia-smi`` (``equal`` null: neither has it); ``watch/doctor``;
  ``watch/costs``; ``watch/period/*``; ``watch/energy/*``; ``watch/block``; ``watch/smi/*`` as text.
- ``shapes``: as kernels, of shapes that were chosen after those were measured; ``doctor/*``: the doctor with nothing beside it.
- ``bench/DEVICE/KEY``: one result of ``gpuwise bench`` with what it expected.

A failed item has ``error`` and ``traceback``; one there was no time for has ``skipped``. The card's settings are never changed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import card_bench
import card_kernels
import card_lab
import card_operations
import card_watch
from card_rows import ROOT, Rows, environment, read_predictions, read_rows

RECORDS = ROOT / "benchmarks" / "records" / "gpu"
PREDICTIONS = (RECORDS / "card_predictions_2026-11-26.jsonl", RECORDS / "card_predictions_2026-11-26b.jsonl")
SECTIONS: dict[str, float] = {
    "kernels": 32.0,
    "lab": 22.0,
    "watch": 28.0,
    "bench": 45.0,
    "shapes": 36.0,
    "doctor": 75.0,
    "versus": 30.0,
}
"""Seconds a section may take at most."""
USUAL = "kernels,lab,watch,bench"
TINY_SHRINK = 64


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    sys.path.insert(0, str(ROOT / "src"))
    if options.table is not None:
        print(table(read_rows(options.table)))
        return 0
    if options.predict is not None:
        predict(options.predict)
        return 0
    predictions = {item: row for path in PREDICTIONS for item, row in read_predictions(path).items()}
    if options.section:
        _section(options, predictions)
        return 0
    end_s = time.monotonic() + options.budget
    rows = Rows(options.out, "card", end_s)
    rows.write("card/start", budget_s=options.budget, predictions=len(predictions), commit=_commit(), card=rows.readings())
    for name in options.sections.split(","):
        limit_s = SECTIONS[name]
        left_s = min(limit_s, end_s - time.monotonic() - 1.0)
        if left_s < 4.0:
            rows.write(f"card/{name}", skipped="no time left")
            continue
        _run_section(options, rows, name, left_s)
    rows.write("card/end", left_s=rows.left_s())
    return 0


def _run_section(options: argparse.Namespace, rows: Rows, name: str, left_s: float) -> None:
    """In a process of its own, so that what breaks the card's context breaks one section only."""
    words = [sys.executable, __file__, "--section", name, "--out", str(options.out), "--budget", f"{left_s:.1f}"]
    words += ["--tiny"] if options.tiny else []
    began = time.monotonic()
    process = subprocess.Popen(
        words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        _, error = process.communicate(timeout=left_s + 1.0)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # the section's own group: what it started goes with it
        _, error = process.communicate()
    text = error.decode(errors="replace")[-1500:] if process.returncode else ""
    rows.write(f"card/{name}", took_s=time.monotonic() - began, exit=process.returncode, stderr=text)


def _section(options: argparse.Namespace, predictions: dict[str, Any]) -> None:
    rows = Rows(options.out, options.section, time.monotonic() + options.budget)
    if options.tiny:
        card_operations.DEVICE, card_operations.SHRINK, card_kernels.REPEATS = "cpu", TINY_SHRINK, 3
    try:
        if options.section == "kernels":
            card_kernels.main(rows, predictions)
        elif options.section == "lab":
            card_lab.main(rows, predictions)
        elif options.section == "shapes":
            card_kernels.main(rows, predictions, further=True)
        elif options.section == "watch":
            card_watch.main(rows, tiny=options.tiny)
        elif options.section == "doctor":
            card_watch.doctor(rows)
        elif options.section == "versus":
            card_bench.versus_rows(rows, tiny=options.tiny)
        else:
            card_bench.main(rows, tiny=options.tiny)
    except Exception as error:  # noqa: BLE001 - the rows that are written stand
        rows.write(f"{options.section}/broken", error=str(error)[:500], traceback=traceback.format_exc()[-1500:])


def predict(path: Path) -> None:
    """Write what gpuwise says of every kernel and task that no earlier file has, one row each."""
    rows = Rows(path, "predictions", time.monotonic() + 3600.0)
    path.unlink(missing_ok=True)
    rows.write("card/start", commit=_commit())
    earlier = {item for known in PREDICTIONS if known != path for item in read_predictions(known)}
    for name in card_kernels.ALL:
        if f"kernels/{name}" in earlier:
            continue
        rows.run(f"kernels/{name}", lambda name=name: card_kernels.predict(name), 60.0)
    for task, n in [*card_lab.items(), *(("strided", s) for s in card_lab.STRIDES)]:
        if f"lab/{task}/{n}" not in earlier:
            rows.run(f"lab/{task}/{n}", lambda task=task, n=n: card_lab.predict(task, n), 120.0)


def _commit() -> str:
    try:
        made = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return made.stdout.strip()


def table(rows: list[dict[str, Any]]) -> str:
    """Kernels and tasks with both times and their ratio; fields that differ; results of the bench; what failed."""
    lines: list[str] = []
    for r in rows:
        item = r["item"]
        if "traceback" in r or "skipped" in r:
            lines.append(f"{item:<58} {r['error'] if 'traceback' in r else r['skipped']}")
        elif "cold" in r:
            predicted = r.get("predicted_s")
            ours = "-" if predicted is None else f"{predicted * 1e6:.2f}"
            ratio = "" if predicted is None else f"{predicted / r['cold']['median_s']:.2f}"
            hot = f"{r['hot']['median_s'] * 1e6:.2f}" if "hot" in r else ""
            lines.append(f"{item:<58} predicted {ours:>10} us  cold {r['cold']['median_s'] * 1e6:>10.2f}  hot {hot:>10}  {ratio}")
        elif item.startswith("watch/once"):
            lines += [
                f"{item:<14} {f['field']:<42} ours {f['ours']} theirs {f['theirs']} {f['why_unknown'] or ''}"
                for f in r["different"]
            ]
        elif item.startswith(("bench/", "truth/")) and "value" in r:
            lines.append(f"{item:<58} {r['value']!r:>24} expected {r.get('expected')}")
    return "\n".join(lines)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("card.jsonl"), help="rows are appended to this file")
    parser.add_argument("--budget", type=float, default=100.0, help="seconds in all")
    parser.add_argument("--predict", type=Path, help="write predictions to this file, and do nothing else")
    parser.add_argument("--table", type=Path, help="show a file of rows, and do nothing else")
    parser.add_argument("--sections", default=USUAL, help=f"which, with commas between, in this order: {', '.join(SECTIONS)}")
    parser.add_argument("--section", choices=tuple(SECTIONS), help="only this one, in this process")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the processor: a test of the script")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
