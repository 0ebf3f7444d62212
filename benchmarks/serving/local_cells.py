"""Tokens a second of local machines on ``local/speed.parquet``: ``python benchmarks/serving/local_cells.py FOLDER`` (from the
checkout's root, with it on ``PYTHONPATH``).

One figure a cell of machine, cards, model, format, context and program: the median of its rows; asked with the context that the
source states, as ``op decode`` answers. "Fit" is the product as it is; "check" the same with constants of a fit without the
cell's machine and model family. Beside them stand active bytes over bandwidth times one share, the best on these cells, and the
formulas of other tools with their own constants (:mod:`local_rivals`).

Not counted: rows of a processor's graphics under the processor's name, a machine that the table's makers do not trust
(:data:`studies.serving.processor_fit.SCRAMBLED`), programs on MLX that are not MLX LM. Families whose kernels are young
(:data:`studies.serving.local_fit.YOUNG`) are a class of their own.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from local_rivals import RIVALS

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Estimate
from gpuwise.serve import processor, streams
from gpuwise.serve.engines.engine import ENGINES, engine_of
from gpuwise.serve.formats import FORMATS, weight_bytes_read
from studies.serving import local_fit, processor_fit
from studies.serving.local_rows import FOLDS, Row, read_rows

PROGRAMS = {"llamafile": "LocalScore", "mlx": "MLX LM", "llama.cpp": "llama.cpp"}


@dataclass(frozen=True, slots=True)
class Cell:
    """Tokens a second as measured, by the product, by a fit without the cell, and by the rivals."""

    measured: float
    found: Estimate
    check: float
    ideal: float
    rivals: tuple[float | None, ...]


def counted(r: Row) -> bool:
    if r.arch is None or r.device is None or r.users != 1 or "decode_tok_s" not in r.number or r.offloaded:
        return False
    if isinstance(r.device, Cpu):
        source, machine = processor_fit.SCRAMBLED
        doubted = r.text["source"].startswith(source) and r.text["machine"].endswith(machine)
        return r.text["backend"] in ("cpu", "") and not doubted and r.engine in ("llama.cpp", "llamafile")
    return r.engine in PROGRAMS and not any(word in r.text["engine"] for word in local_fit.APART)


def context_of(r: Row) -> float:
    assert r.arch is not None
    return min(max(r.number.get("context_tokens", 512), 128.0), float(r.arch.max_seq_len))


def asked(r: Row) -> Estimate | None:
    """The product's tokens a second; None where it answers otherwise."""
    assert r.arch is not None and r.device is not None
    try:
        if isinstance(r.device, Cpu):
            return processor.token_time(r.device, r.arch, FORMATS[r.weights].llama_cpp, context=context_of(r)).time_s.inverse()
        if not FORMATS[r.weights].local:
            return None
        engine = ENGINES[engine_of(r.weights).name]
        n = r.n_devices if engine.in_turn > 1 else 1
        return streams.token_time(r.arch, r.device, r.weights, context=context_of(r), n_devices=n, engine=engine).inverse()
    except GpuwiseError:
        return None


def without(rows: Sequence[Row]) -> Callable[[Row], float]:
    """Tokens a second of a row by constants fitted without its machine and family."""
    forms: dict[tuple[str, str, int], dict[str, object]] = {}
    for engine, name in (("llama.cpp", "single_stream"), ("mlx", "mlx_stream")):
        form = load_json(name)["form"]
        mine = [r for r in local_fit.token_rows(rows, engine) if r.filled and r.n_devices == 1]
        for vendor in form["vendors"]:
            own = [r for r in mine if r.device is not None and r.device.vendor == vendor]
            for fold in range(FOLDS):
                learn = [r for r in own if r.fold != fold]
                trial = deepcopy(form)
                if learn and len(learn) < len(own):
                    trial["vendors"][vendor] = local_fit.fit_vendor(form, learn)[0]
                forms[name, vendor, fold] = trial
    processors = processor_fit.processor_rows(rows)
    models = [processor_fit.document(processor_fit.fit_rows([r for r in processors if r.fold != fold])) for fold in range(FOLDS)]

    def of(r: Row) -> float:
        assert r.arch is not None and r.device is not None
        if isinstance(r.device, Cpu):
            work = streams.token_work(r.arch, FORMATS[r.weights].llama_cpp, context_of(r))
            parts = processor.seconds_by_part(models[r.fold], r.device, work)
            return 1.0 / processor.overlapped(models[r.fold], parts)
        engine = ENGINES[engine_of(r.weights).name]
        form = forms[engine.streams, r.device.vendor, r.fold]
        n = r.n_devices if engine.in_turn > 1 else 1
        return 1.0 / streams.seconds(form, r.arch, r.device, r.weights, context_of(r), n)

    return of


def error(values: Sequence[float | None], cells: Sequence[Cell]) -> str:
    found = [abs(v / c.measured - 1) for v, c in zip(values, cells, strict=True) if v is not None]
    return f"{100 * median(found):.0f} / {100 * sorted(found)[int(0.9 * (len(found) - 1))]:.0f}" if found else ""


def main() -> None:
    every = read_rows(Path(sys.argv[1]))
    cells: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for r in filter(counted, every):
        context = round(math.log2(max(r.number.get("context_tokens", 512), 128)))
        assert r.arch is not None
        cells[r.text["machine"], r.n_devices, r.arch.id, r.weights, context, r.engine].append(r)
    left_out = without(every)
    classes: dict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    for rows in cells.values():
        r, found = rows[0], asked(rows[0])
        assert r.arch is not None and r.device is not None
        if found is None:
            continue
        kind = "CPU" if isinstance(r.device, Cpu) else r.device.vendor
        model = "young" if r.text["family"] in local_fit.YOUNG else "dense" if r.arch.moe is None else "experts"
        ideal = r.device.memory_bandwidth_bytes_per_s / weight_bytes_read(r.arch, r.weights)
        measured = median(x.number["decode_tok_s"] for x in rows)
        rivals = tuple(rival(r.arch, r.device, r.weights) if r.n_devices == 1 else None for rival in RIVALS.values())
        classes[kind, PROGRAMS[r.engine], model].append(Cell(measured, found, left_out(r), ideal, rivals))
    now = [c for (kind, program, _), found in classes.items() for c in found if program != "LocalScore" or kind == "CPU"]
    share = median(c.measured / c.ideal for c in now)
    print(f"one share of bandwidth: {share:.2f}; errors: median / 90th percentile in %\n")
    names = ["device", "program", "model", "cells", "fit", "check", "ratio", "inside 80 %", "one share", *RIVALS]
    print("| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|")
    for (kind, program, model), found in [*sorted(classes.items()), (("all of today", "", ""), now)]:
        inside = 100 * sum(c.found.low <= c.measured <= c.found.high for c in found) / len(found)
        ratio = median(c.found.expected / c.measured for c in found)
        errors = [error([c.found.expected for c in found], found), error([c.check for c in found], found)]
        others = [error([share * c.ideal for c in found], found)]
        others += [error([c.rivals[i] for c in found], found) for i in range(len(RIVALS))]
        cellwise = [kind, program, model, str(len(found)), *errors, f"{ratio:.2f}", f"{inside:.0f} %", *others]
        print("| " + " | ".join(cellwise) + " |")


if __name__ == "__main__":
    main()
