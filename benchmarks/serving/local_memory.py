"""Memory of local machines, as ``fit --for run`` counts it, on ``local/memory.csv``: ``python benchmarks/serving/local_memory.py
FOLDER`` (from the checkout's root, with it on ``PYTHONPATH``). Rows of llama.cpp and ollama whose model and format are known.

The cache is compared where a log states it, equal meaning within 1 %; recurrent states are in a log's line of the whole context
alone (``memory-breakdown``), one a slot. The whole is weights, cache and buffers where all lies on one device: as asked by
name, and with the file's own bytes of weights, as where a GGUF file is named.

"Fits" is asked of ``local/speed.parquet``, one answer a cell of machine, cards, model, format and context: yes where all was on
the device, no where a part was in RAM.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.memory.kv_cache import ELEMENT_BYTES, kv_cache_bytes, state_bytes
from gpuwise.serve.engines.engine import ENGINES, LOCAL_ENGINE
from gpuwise.serve.formats import FORMATS, GGUF, find_format, weight_bytes
from gpuwise.serve.local_machine import machine_of
from gpuwise.serve.local_run import format_fit
from gpuwise.serve.memory import local_memory
from gpuwise.units import MIB
from studies.serving.local_rows import SHORT, Row, find_arch, read_rows

EQUAL = 0.01


@dataclass(frozen=True, slots=True)
class Measured:
    """MiB of one row: 0 where it does not state one."""

    arch: Architecture
    weights: str
    """Empty: not stated, or a format without a name here."""
    context: int
    text: dict[str, str]

    def mib(self, name: str) -> float:
        return float(self.text[name] or 0.0)


def read(path: Path) -> Iterator[Measured]:
    with path.open() as file:
        for row in csv.DictReader(file):
            arch = find_arch(row["model_hf_id"] or row["model"])
            try:
                weights = find_format(row["quant"]).name
            except GpuwiseError:
                weights = ""
            if arch is not None and row["context"] and not row["engine"].startswith("ik_llama"):
                yield Measured(arch, weights, int(float(row["context"])), row)


def cache_mib(m: Measured, *, states: bool) -> float:
    """Of all slots, which divide the context; keys and values may differ in format."""
    slots = int(m.text["n_parallel"] or 1)
    halves = [k if k in ELEMENT_BYTES else "fp16" for k in m.text["kv_type"].split("/")]
    layouts = [replace(ENGINES[LOCAL_ENGINE].cache, dtype=k) for k in halves]
    cache = sum(float(kv_cache_bytes(m.arch, math.ceil(m.context / slots), layout)) for layout in layouts) / len(layouts)
    return slots * (cache - (0.0 if states else state_bytes(m.arch))) / MIB


def whole_mib(m: Measured, *, own_bytes: bool) -> float:
    memory = local_memory(ENGINES[LOCAL_ENGINE], m.arch, 1e15, m.weights, n_devices=1, context=m.context)
    weights = m.mib("weights_mib") if own_bytes else memory.weights / MIB
    return weights + cache_mib(m, states=True) + memory.workspace / MIB


def is_whole(m: Measured) -> bool:
    """Whether all layers are on the device, as 62/62."""
    here, _, of = m.text["offloaded_layers"].partition("/")
    return here in ("all", of)


def fits(folder: Path) -> list[tuple[Row, int, bool]]:
    """A row of each cell, its context and whether the answer is right; of rows that state a reserved context, of a short one."""
    cells: dict[tuple[object, ...], tuple[Row, int]] = {}
    for r in read_rows(folder):
        known = r.arch is not None and isinstance(r.device, Accelerator) and r.engine in ("llama.cpp", "llamafile")
        if known and r.users == 1 and not r.text["gpu_list"] and FORMATS[r.weights].file == GGUF:
            context = int(r.context) if r.filled else SHORT
            near = round(math.log2(max(context, 128)))
            cells.setdefault((r.text["machine"], r.n_devices, r.arch, r.weights, near, r.offloaded), (r, context))
    found: list[tuple[Row, int, bool]] = []
    for r, context in cells.values():
        assert r.arch is not None
        machine = machine_of(find_cluster(r.text["machine"] if r.n_devices == 1 else f"{r.n_devices}x {r.text['machine']}"))
        memory = format_fit(r.arch, machine, r.weights, context, reach=False).memory
        found.append((r, context, memory.fits != r.offloaded))
    return found


def show(name: str, ratios: Sequence[float], within: float) -> None:
    held = 100 * sum(abs(q - 1) <= within for q in ratios) / len(ratios)
    error = 100 * median(abs(q - 1) for q in ratios)
    print(f"| {name} | {len(ratios)} | {error:.1f} % | {median(ratios):.2f} | {held:.0f} % |")


def main() -> None:
    rows = list(read(Path(sys.argv[1]) / "local" / "memory.csv"))
    kinds: dict[str, list[Measured]] = defaultdict(list)
    for m in rows:
        if m.weights and m.mib("total_mib") and m.mib("weights_mib") and is_whole(m):
            kinds[m.text["kind"]].append(m)
    print("| what | rows | median error | ratio | within |\n" + "|---" * 5 + "|")
    stated = [m for m in rows if m.mib("kv_mib")]
    show("cache, 1 %", [cache_mib(m, states="memory-breakdown" in m.text["note"]) / m.mib("kv_mib") for m in stated], EQUAL)
    named = [m for m in rows if m.weights and m.mib("weights_mib")]
    show("weights by name, 5 %", [weight_bytes(m.arch, m.weights) / MIB / m.mib("weights_mib") for m in named], 0.05)
    for kind, mine in sorted(kinds.items()):
        for own, words in ((False, "by name"), (True, "of its file")):
            show(f"whole, {kind}, {words}, 5 %", [whole_mib(m, own_bytes=own) / m.mib("total_mib") for m in mine], 0.05)
    answers = fits(Path(sys.argv[1]))
    print(f"\nfits: {sum(right for *_, right in answers)} of {len(answers)} cells right; others:")
    for r, context, right in answers:
        if not right:
            assert r.arch is not None
            ran = f"ran {'in part' if r.offloaded else 'whole'} ({r.text['source'][:20]})"
            print(f"- {r.text['machine']} x{r.n_devices}, {r.arch.id} {r.weights}, {context:,} tokens: {ran}")


if __name__ == "__main__":
    main()
