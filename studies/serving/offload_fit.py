"""A model partly in the host's memory (``offload`` of ``coefficients/processor_stream.json``, in the form of
:mod:`gpuwise.serve.offload`), from the rows of ``local/speed.parquet`` that state which layers or experts the processor computes.

Groups of source and machine count the same; each is left out once for the errors and the width. Rows whose split was inferred
from the size are asked as ``fit --for run`` splits. Left out: a GTX 1650 whose host swaps, LocalScore, an Ivy Bridge Mac under
Vulkan. A factor of its own for experts makes the errors of what is left out larger (24 % for 20). Refit after the processor:
``fit(folder)``.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.cpus import Cpu, find_cpu
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.ram import Ram, take_ram
from gpuwise.interval import INTERVAL, Z80
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.local_machine import HOST, machine_of
from gpuwise.serve.local_run import format_fit
from gpuwise.serve.offload import Split, needed_split, split_bytes, split_seconds
from gpuwise.serve.streams import prompt_time as device_prompt
from studies.coefficient_files import write
from studies.optimizers import least_squares
from studies.serving.local_rows import Row, read_rows

APART = ("LocalScore", "Mac Pro 2013", "ik_llama.cpp github-data")
START = {"host_slowdown": math.log(1.3), "crossing_s": math.log(5e-5)}
PULL = 0.3
_EXPERTS = re.compile(r"n-cpu-moe (\d+)")
_LAYERS = re.compile(r"-ngl (\d+)")


def split_of(row: Row) -> Split | None:
    """Which part the row says is on the host; None where that is not known."""
    note, arch = row.text["offload_note"], row.arch
    assert arch is not None
    if found := _EXPERTS.search(note):
        return Split(expert_layers=min(int(found[1]), arch.n_moe_layers))
    if "exps=CPU" in note or "experts on CPU" in note:
        return Split(expert_layers=arch.n_moe_layers)
    if found := _LAYERS.search(note):
        return Split(layers=max(arch.n_layers - int(found[1]), 0))
    if "inferred" not in note:
        return None
    machine = machine_of(find_cluster(row.text["machine"]))
    return needed_split(arch, row.weights, format_fit(arch, machine, row.weights, int(row.context)).memory, machine.n_devices)


def host_of(row: Row) -> Cpu:
    """The processor that the row names, with its memory; else the usual one."""
    ram: Ram | None = None
    try:
        ram, _ = take_ram(row.text["ram_type_and_channels"])
        return find_cpu(row.text["cpu"], ram)
    except GpuwiseError:
        pass
    try:
        return find_cpu(row.text["cpu"])
    except GpuwiseError:
        return find_cpu(HOST)


def offload_rows(folder: Path) -> dict[tuple[str, str], list[tuple[Row, Split, Cpu]]]:
    """By source and machine."""
    groups: dict[tuple[str, str], list[tuple[Row, Split, Cpu]]] = defaultdict(list)
    for r in read_rows(folder):
        wanted = r.offloaded and r.arch is not None and isinstance(r.device, Accelerator) and r.users == 1
        if wanted and "decode_tok_s" in r.number and not r.text["source"].startswith(APART):
            split = split_of(r)
            if split is not None and (split.layers or split.expert_layers):
                groups[r.text["source"], r.text["machine"]].append((r, split, host_of(r)))
    return groups


def log_ratio(model: dict[str, Any], row: Row, split: Split, cpu: Cpu) -> float:
    """Log of predicted over measured seconds of a token."""
    assert row.arch is not None and isinstance(row.device, Accelerator)
    time = split_seconds(model, row.arch, row.device, cpu, row.weights, split, context=row.context)
    return math.log(time.total_s * row.number["decode_tok_s"])


def fit_groups(model: dict[str, Any], groups: Sequence[Sequence[tuple[Row, Split, Cpu]]]) -> dict[str, float]:
    """The two constants."""
    trial, begin = deepcopy(model), np.array(list(START.values()))

    def residual(x: np.ndarray) -> np.ndarray:
        trial["offload"] = dict(zip(START, np.exp(x).tolist(), strict=True))
        logs = [log_ratio(trial, *one) / len(group) ** 0.5 for group in groups for one in group]
        return np.array([*logs, *(PULL * (x - begin))])

    best = least_squares(residual, begin, loss="soft_l1", f_scale=0.2, diff_step=1e-2).x
    return {name: float(f"{math.exp(v):.3g}") for name, v in zip(START, best.tolist(), strict=True)}


def fit(folder: Path) -> dict[str, float]:
    """Write ``offload``; the errors."""
    document = deepcopy(load_json("processor_stream"))
    groups = offload_rows(folder)
    out: list[list[float]] = []
    for left in groups:
        trial = document | {"offload": fit_groups(document, [g for key, g in groups.items() if key != left])}
        out.append([log_ratio(trial, *one) for one in groups[left]])
    logs = np.array([q for group in out for q in group])
    weights = np.array([1.0 / len(group) for group in out for _ in group])
    order = np.argsort(np.abs(logs))
    reached = np.cumsum(weights[order]) / weights.sum()
    sigma = float(np.abs(logs)[order][np.searchsorted(reached, INTERVAL)]) / Z80
    offload = fit_groups(document, list(groups.values())) | {"log_sigma": round(sigma, 3)}
    offload |= _prompts(groups)
    errors = {
        f"offload, left out by source and machine, median ({len(logs)} rows)": round(float(np.median(np.abs(np.expm1(logs)))), 4)
    }
    errors["offload, the same, median of groups"] = round(float(np.median([np.median(np.abs(np.expm1(g))) for g in out])), 4)
    document["offload"] = offload
    document["provenance"]["errors"] |= errors
    write("processor_stream", document)
    return errors


def _prompts(groups: dict[tuple[str, str], list[tuple[Row, Split, Cpu]]]) -> dict[str, float]:
    """Share of PCIe's rate by rows of experts on the host, and the width."""
    shares: list[float] = []
    for group in groups.values():
        for r, split, _ in group:
            assert r.arch is not None and isinstance(r.device, Accelerator)
            tokens = int(r.number.get("prompt_tokens", 0))
            if split.expert_layers and tokens >= 512 and "prompt_tok_s" in r.number and r.device.pcie_bytes_per_s:
                moved = split_bytes(r.arch, r.weights, split)
                form = load_json("single_stream")["form"]
                left = tokens / r.number["prompt_tok_s"] - device_prompt(form, r.arch, r.device, r.weights)(tokens, 0.0)
                if left > 0:
                    shares.append(math.ceil(tokens / 512) * moved / left / r.device.pcie_bytes_per_s)
    middle = float(np.median(shares))
    spread = float(np.quantile(np.abs(np.log(np.array(shares) / middle)), INTERVAL)) / Z80
    return {"pcie_share": float(f"{middle:.2g}"), "prompt_log_sigma": round(max(spread, 0.3), 3)}
