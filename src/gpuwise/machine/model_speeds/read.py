"""The one reader of speeds that other programs print: it recognises which one wrote the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from gpuwise.errors import FileError
from gpuwise.files import parse_json
from gpuwise.machine.model_speeds import llama_bench, printed, vllm
from gpuwise.machine.model_speeds.fields import HINT
from gpuwise.serve.local_measured import MeasuredSpeed

KNOWN = "llama-bench (json, jsonl, csv, md), `ollama run --verbose`, mlx_lm.generate, mlx_lm.benchmark, vllm bench serve"
_TEXTS: tuple[tuple[Callable[[str], object], Callable[[str, str], list[MeasuredSpeed]]], ...] = (
    (printed.OLLAMA.search, printed.from_ollama),
    (printed.MLX_TIMING.search, printed.from_mlx_benchmark),
    (printed.MLX_GENERATE.search, printed.from_mlx_generate),
)
_STARTS = ("[", "{", "|", "build_commit,")


def read_speeds(text: str, name: str) -> list[MeasuredSpeed]:
    """Speeds in ``text``, which is called ``name`` in errors. Raises FileError for another text, and for a program's output that
    is not whole or has no speed."""
    text = printed.ESCAPES.sub("", text)
    found = _read(text, name)
    if not found:
        raise FileError("has no speed that gpuwise reads", file=name, hint=f"it reads {KNOWN}")
    return found


def _read(text: str, name: str) -> list[MeasuredSpeed]:
    for is_its, read in _TEXTS:
        if is_its(text) is not None:
            return read(text, name)
    lines = text.splitlines(keepends=True)
    # logs of a program may come before its output
    first = next((i for i, line in enumerate(lines) if line.startswith(_STARTS)), len(lines))
    body = "".join(lines[first:])
    if body.startswith("|"):
        return llama_bench.from_markdown(body, name)
    if body.startswith("build_commit,"):
        return llama_bench.from_csv(body, name)
    if not body:
        return []
    if body.startswith("{") and '"build_commit"' in body.splitlines()[0]:
        rows = [parse_json(line, name, line=first + i, hint=HINT) for i, line in enumerate(body.splitlines(), 1) if line.strip()]
        return llama_bench.from_rows(_objects(rows, name), name)
    document = parse_json(body, name, hint=HINT)
    if isinstance(document, list) and document and all("avg_ts" in row for row in _objects(cast("list[Any]", document), name)):
        return llama_bench.from_rows(_objects(cast("list[Any]", document), name), name)
    if isinstance(document, dict) and vllm.is_vllm(cast("dict[str, Any]", document)):
        return vllm.from_document(cast("dict[str, Any]", document), name)
    return []


def _objects(rows: list[Any], name: str) -> list[Mapping[str, Any]]:
    for i, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise FileError(f"row {i} is not an object", file=name, hint=HINT)
    return cast("list[Mapping[str, Any]]", rows)
