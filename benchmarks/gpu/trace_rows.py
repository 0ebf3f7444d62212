"""Kernels of the traces of ``traces.py``, grouped by step, operation, inputs and kernel.

python benchmarks/gpu/trace_rows.py FOLDER kernels.csv.gz
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

COLUMNS = ("item", "op", "dims", "types", "strides", "concrete", "kernel", "grid", "block", "n", "total_us", "median_us")


def text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def main(folder: Path, out: Path) -> None:
    """A kernel's operation is the innermost one that was open when it was launched: that of its External id."""
    with gzip.open(out, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for path in sorted(folder.glob("*.json.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as trace:
                events = json.load(trace)["traceEvents"]
            ops = {e["args"].get("External id"): e for e in reversed(events) if e.get("cat") == "cpu_op"}
            groups: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
            for event in events:
                if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
                    continue
                given = event["args"]
                op = ops.get(given.get("External id"), {"name": "?", "args": {}})
                a = op["args"]
                inputs = (text(a.get("Input Dims")), text(a.get("Input type")), text(a.get("Input Strides")))
                shape = (str(given.get("grid")), str(given.get("block")))
                key = (op["name"], *inputs, text(a.get("Concrete Inputs"))[:120], event["name"][:160], *shape)
                groups[key].append(event["dur"])
            for key, times in groups.items():
                writer.writerow(
                    (path.name.removesuffix(".json.gz"), *key, len(times), round(sum(times), 3), round(median(times), 3))
                )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
