"""GGUF files as the gguf package writes them, with holes in place of the tensors' content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

gguf: Any = pytest.importorskip("gguf")

Rows = Sequence[tuple[str, tuple[int, ...], str]]


def write_gguf(path: Path, kind: str, values: Mapping[str, Any], tensors: Rows, *, vocab: int = 0) -> Path:
    """A file of the architecture ``kind`` with ``values`` (``block_count``: 32 ...) and tensors (name, dimensions from the
    innermost on, type)."""
    writer = gguf.GGUFWriter(str(path), kind)
    for name, value in values.items():
        key = name if name.startswith(("general.", "tokenizer.", "split.")) else f"{kind}.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    if vocab:
        writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(vocab)])
    end = 0
    for name, shape, form in tensors:
        kind_of = getattr(gguf.GGMLQuantizationType, form)
        numbers, size = gguf.GGML_QUANT_SIZES[kind_of]
        n_bytes = -(-int(np.prod(shape)) // numbers) * size
        # the writer takes the shape of the bytes of a quantised tensor, outermost first
        outer = tuple(reversed(shape))
        raw = (*outer[:-1], outer[-1] // numbers * size) if numbers > 1 else outer
        writer.add_tensor_info(name, raw, np.dtype(np.uint8 if numbers > 1 else np.float32), n_bytes, raw_dtype=kind_of)
        end += -(-n_bytes // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    start = -(-path.stat().st_size // 32) * 32
    with path.open("r+b") as file:
        file.truncate(start + end)
    return path


def llama_8b(path: Path, *, vocab: int = 128_256, extra: Mapping[str, Any] | None = None) -> Path:
    """Llama 3.1 8B as Q4_K_M: output and half of the values' and downward matrices in Q6_K."""
    rows: list[tuple[str, tuple[int, ...], str]] = [("token_embd.weight", (4096, vocab), "Q4_K")]
    for i in range(32):
        wide = "Q6_K" if i % 2 else "Q4_K"
        rows += [(f"blk.{i}.{name}.weight", (4096,), "F32") for name in ("attn_norm", "ffn_norm")]
        rows += [
            (f"blk.{i}.attn_q.weight", (4096, 4096), "Q4_K"),
            (f"blk.{i}.attn_k.weight", (4096, 1024), "Q4_K"),
            (f"blk.{i}.attn_v.weight", (4096, 1024), wide),
            (f"blk.{i}.attn_output.weight", (4096, 4096), "Q4_K"),
            (f"blk.{i}.ffn_gate.weight", (4096, 14336), "Q4_K"),
            (f"blk.{i}.ffn_up.weight", (4096, 14336), "Q4_K"),
            (f"blk.{i}.ffn_down.weight", (14336, 4096), wide),
        ]
    rows += [
        ("output_norm.weight", (4096,), "F32"),
        ("output.weight", (4096, vocab), "Q6_K"),
        ("rope_freqs.weight", (64,), "F32"),
    ]
    values = {
        "general.name": "My fine-tune",
        "general.file_type": 15,
        "block_count": 32,
        "context_length": 131_072,
        "embedding_length": 4096,
        "feed_forward_length": 14336,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        **(extra or {}),
    }
    return write_gguf(path, "llama", values, rows, vocab=vocab)
