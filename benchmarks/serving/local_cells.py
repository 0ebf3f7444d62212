"""Tokens a second of local machines, as ``op decode`` answers them, on ``local/speed.parquet``: ``python
benchmarks/serving/local_cells.py FOLDER``. One figure a cell of machine, cards, model, format, context and engine: the median of
its rows. Prints the median error, the share inside the 80 % interval and the ratio by class, for today's programs and for
LocalScore, beside active bytes over bandwidth times one share: calculators' formula, with the share that is best on these cells.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.engines.engine import ENGINES, engine_of
from gpuwise.serve.formats import FORMATS, weight_bytes_read
from gpuwise.serve.processor import token_time as processor_time
from gpuwise.serve.streams import token_time
from studies.serving.local_rows import Row, read_rows


def asked(row: Row) -> Estimate | None:
    """The product's tokens a second, with the context that the source states; None where it answers otherwise."""
    assert row.arch is not None and row.device is not None
    context = min(max(row.number.get("context_tokens", 512), 128.0), float(row.arch.max_seq_len))
    try:
        if isinstance(row.device, Cpu):
            return processor_time(row.device, row.arch, FORMATS[row.weights].llama_cpp, context=context).time_s.inverse()
        if not FORMATS[row.weights].local:
            return None
        engine = engine_of(row.weights)
        n = row.n_devices if engine.in_turn > 1 else 1
        return token_time(row.arch, row.device, row.weights, context=context, n_devices=n, engine=ENGINES[engine.name]).inverse()
    except GpuwiseError:
        return None


def main() -> None:
    cells: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for r in read_rows(Path(sys.argv[1])):
        if r.arch is not None and r.device is not None and r.users == 1 and "decode_tok_s" in r.number and not r.offloaded:
            context = round(math.log2(max(r.number.get("context_tokens", 512), 128)))
            cells[r.text["machine"], r.n_devices, r.arch.id, r.weights, context, r.engine].append(r)
    classes: dict[tuple[str, str, str], list[tuple[float, Estimate, float]]] = defaultdict(list)
    for rows in cells.values():
        r, found = rows[0], asked(rows[0])
        if found is None or r.engine not in ("llama.cpp", "llamafile", "mlx"):
            continue
        assert r.arch is not None and r.device is not None
        kind = "CPU" if isinstance(r.device, Cpu) else r.device.vendor
        ideal = r.device.memory_bandwidth_bytes_per_s / weight_bytes_read(r.arch, r.weights)
        when = "LocalScore" if r.engine == "llamafile" else "MLX LM" if r.engine == "mlx" else "llama.cpp"
        measured = median(x.number["decode_tok_s"] for x in rows)
        classes[kind, when, "dense" if r.arch.moe is None else "experts"].append((measured, found, ideal))
    every = [one for found in classes.values() for one in found]
    share = median(m / ideal for m, _, ideal in every)
    print(f"one share of bandwidth: {share:.2f}")
    print("| device | program | model | cells | median error | ratio | inside 80 % | one share: error |\n" + "|---" * 8 + "|")
    for (kind, when, model), found in [*sorted(classes.items()), (("all", "", ""), every)]:
        error = 100 * median(abs(e.expected / m - 1) for m, e, _ in found)
        inside = 100 * sum(e.low <= m <= e.high for m, e, _ in found) / len(found)
        ratio = median(e.expected / m for m, e, _ in found)
        rival = 100 * median(abs(share * ideal / m - 1) for m, _, ideal in found)
        print(f"| {kind} | {when} | {model} | {len(found)} | {error:.1f} % | {ratio:.2f} | {inside:.0f} % | {rival:.0f} % |")


if __name__ == "__main__":
    main()
