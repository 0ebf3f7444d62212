"""Output of ``llama-bench`` (llama.cpp tools/llama-bench/llama-bench.cpp): JSON, JSON lines, CSV, Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from gpuwise.files import csv_rows
from gpuwise.machine.model_speeds.fields import count, number, refuse
from gpuwise.serve.local_measured import MeasuredSpeed

PROGRAM = "llama-bench"
ON_PROCESSOR = frozenset({"CPU", "BLAS", "ZenDNN", ""})
"""Backends (``get_backend``) that compute on the processor."""
HALF = frozenset({"f16", "bf16", ""})
SETTINGS = {
    "ngl": "n_gpu_layers",
    "n_cpu_moe": "n_cpu_moe",
    "type_k": "type_k",
    "type_v": "type_v",
    "nkvo": "no_kv_offload",
    "ot": "tensor_buft_overrides",
}
"""Columns of the table with settings that matter here, and their fields."""
_TEST = re.compile(r"(?:pp ?(\d+))?\+?(?:tg ?(\d+))?(?: @ d(\d+))?")
_FORMAT = re.compile(r"\b((?:TQ|I?Q)\d\w*|BF16|F16|F32|MXFP4)\b(?: - (Small|Medium|Large))?")
_RATE = re.compile(r"(\S+)(?:\s*(?:±|\+-|\+/-)\s*(\S+))?")


def from_rows(rows: Iterator[Mapping[str, Any]] | list[Mapping[str, Any]], name: str) -> list[MeasuredSpeed]:
    """Of rows with the fields of ``test::get_fields``. Raises FieldError for a field that is missing or no number. Tests of a
    prompt and an answer together (``-pg``) are left out: they are neither speed."""
    found = [_speed(row, f"{name}: row {i}") for i, row in enumerate(rows, 1)]
    return [speed for speed in found if speed is not None]


def _speed(row: Mapping[str, Any], where: str) -> MeasuredSpeed | None:
    prompt, written, before = (count(row, field, where) for field in ("n_prompt", "n_gen", "n_depth"))
    if (prompt > 0) == (written > 0):
        return None
    rate = number(row, "avg_ts", where)
    if rate <= 0:
        refuse(where, "avg_ts is not above zero")
    samples = row.get("samples_ts")
    backends = {b.strip() for b in str(row.get("backends", "")).split(",")}
    on_processor = backends <= ON_PROCESSOR or str(row.get("n_gpu_layers")) == "0"
    description = str(row.get("model_type", ""))
    return MeasuredSpeed(
        "decode" if written else "prompt",
        PROGRAM,
        "llama.cpp",
        rate,
        written or prompt,
        before,
        number(row, "stddev_ts", where) if "stddev_ts" in row else 0.0,
        len(cast("list[object]", samples)) if isinstance(samples, list) else int(row.get("samples", 1)),
        model=str(row.get("model_filename") or ""),
        weights=format_of(description),
        on_processor=on_processor,
        gpus=() if on_processor else tuple(filter(None, (g.strip() for g in str(row.get("gpu_info", "")).split(",")))),
        processor=str(row.get("cpu_info", "")).strip(),
        whole=_is_whole(row, on_processor=on_processor),
        build=str(row.get("build_number") or row.get("build_commit") or ""),
    )


def format_of(description: str) -> str:
    """The format in ``llama_model_desc``: ``qwen2 7B Q4_K - Medium`` is Q4_K_M; empty where there is none."""
    found = _FORMAT.search(description)
    if found is None:
        return ""
    size = "" if found[2] is None or (found[1] == "Q2_K" and found[2] == "Medium") else f"_{found[2][0]}"
    return found[1] + size


def _is_whole(row: Mapping[str, Any], *, on_processor: bool) -> bool:
    """Whether all layers were on the device and the cache had 16 bits; a number of layers that a model may have is not taken
    for all of them."""
    layers = str(row.get("n_gpu_layers", "-1"))
    all_layers = on_processor or layers.startswith("-") or (layers.isdigit() and int(layers) >= 99)
    moved = str(row.get("n_cpu_moe", "0")) != "0" or str(row.get("tensor_buft_overrides", "none")) not in ("none", "")
    narrow = not {str(row.get(k, "")) for k in ("type_k", "type_v")} <= HALF
    return all_layers and not moved and not narrow and str(row.get("no_kv_offload", "0")).lower() in ("0", "false")


def from_csv(text: str, name: str) -> list[MeasuredSpeed]:
    """Of ``-o csv``."""
    (_, header), *lines = csv_rows(text, name)
    for i, (_, cells) in enumerate(lines, 1):
        if len(cells) != len(header):
            refuse(f"{name}: row {i}", "has another number of columns than the header")
    return from_rows([dict(zip(header, cells, strict=True)) for _, cells in lines], name)


def from_markdown(text: str, name: str) -> list[MeasuredSpeed]:
    """Of ``-o md``, the default: a table, and ``build: 8cf427ff (5163)`` below."""
    table = [line.strip().strip("|").split("|") for line in text.splitlines() if line.lstrip().startswith("|")]
    lines = [[c.strip() for c in cells] for cells in table]
    header = next((cells for cells in lines if "test" in cells and "t/s" in cells), None)
    if header is None:
        refuse(name, "has a table without the columns test and t/s")
    build = re.search(r"^build: (\w+)(?: \((\d+)\))?", text, re.MULTILINE)
    rows: list[Mapping[str, Any]] = []
    for i, cells in enumerate((c for c in lines if c != header and not set("".join(c)) <= set("-: ")), 1):
        if len(cells) != len(header):
            refuse(f"{name}: row {i}", "has another number of columns than the header")
        row = dict(zip(header, cells, strict=True))
        test, rate = _TEST.fullmatch(row["test"]), _RATE.fullmatch(row["t/s"])
        if test is None or not row["test"] or rate is None:
            refuse(f"{name}: row {i}", f"{row['test']!r} with {row['t/s']!r} is not a test of llama-bench")
        rows.append(
            {
                **{field: row[shown] for shown, field in SETTINGS.items() if shown in row},
                "model_type": row.get("model", ""),
                "backends": row.get("backend", ""),
                **dict(zip(("n_prompt", "n_gen", "n_depth"), (part or 0 for part in test.groups()), strict=True)),
                "avg_ts": rate[1],
                "stddev_ts": rate[2] or 0.0,
                "build_number": "" if build is None else build[2] or build[1],
            }
        )
    return from_rows(rows, name)
