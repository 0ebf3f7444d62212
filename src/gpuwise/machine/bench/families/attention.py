"""Fused attention, forward: PyTorch's scaled_dot_product_attention over a prompt, and for one new token of each sequence.

Shapes: q [batch, heads, queries, head_dim]; k, v [batch, kv_heads, keys, head_dim].
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.machine.bench.bounds import attention_bound
from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.families.products import LEAST_CAPABILITY
from gpuwise.machine.bench.prepared_case import Check, NotHereError, PreparedCase
from gpuwise.machine.bench.subjects import Subject, has_torch
from gpuwise.machine.bench.torch_timing import copies_needed, sampler
from gpuwise.workload.attention_flop import attention_pairs

CHECKED_HEADS, CHECKED_QUERIES = 4, 8


def make_attention(case: BenchCase, subject: Subject) -> PreparedCase:
    """Prepare an attention case. Raises NotHereError without PyTorch or the format."""
    if not has_torch():
        raise NotHereError("attention is measured with PyTorch", hint="pip install 'gpuwise[torch]'")
    import torch

    least = LEAST_CAPABILITY.get(case.dtype)
    if subject.kind == "cuda" and torch.version.hip is None and least and subject.capability and subject.capability < least:
        raise NotHereError(f"{subject.name} has no {case.dtype} unit")
    p = {name: int(value) for name, value in case.parameters.items()}
    batch, heads, shared, queries, keys, width = (
        p[name] for name in ("batch", "heads", "kv_heads", "queries", "keys", "head_dim")
    )
    kind = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[case.dtype]
    causal = queries > 1
    set_bytes = FORMAT_BYTES[case.dtype] * batch * width * (2 * heads * queries + 2 * shared * keys)
    sets = copies_needed(subject, set_bytes)
    generator = torch.Generator(device=subject.torch_name).manual_seed(20261122)

    def random(count: int, length: int) -> Any:
        return torch.randn((batch, count, length, width), dtype=kind, device=subject.torch_name, generator=generator)

    operands = [(random(heads, queries), random(shared, keys), random(shared, keys)) for _ in range(sets)]
    grouped: dict[str, Any] = {"enable_gqa": True} if heads != shared else {}
    attend = torch.nn.functional.scaled_dot_product_attention
    outputs: list[Any] = [None] * sets

    def launch(i: int) -> None:
        with torch.no_grad():
            outputs[i] = attend(*operands[i], is_causal=causal, **grouped)

    launch(0)
    sample, how = sampler(subject, launch, sets)

    def check() -> Check:
        launch(0)
        return check_attention(torch, case.dtype, *operands[0], outputs[0], causal=causal)

    def digest() -> Any:
        with torch.no_grad():
            return attend(*operands[0], is_causal=causal, **grouped)

    def close() -> None:
        operands.clear()
        outputs.clear()
        if subject.kind == "cuda":
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()

    flop = 4.0 * batch * heads * width * float(attention_pairs(queries, keys, causal=causal))
    return PreparedCase(sample, flop, check, close, how, digest)


def check_attention(torch: Any, dtype: str, q: Any, k: Any, v: Any, out: Any, *, causal: bool) -> Check:
    """``out`` against fp64 on the host, some heads and queries of the first and last sequence, each within its bound."""
    if not bool(torch.isfinite(out.to(torch.float32)).all()):
        return Check(False, math.inf, "not finite")
    batch, heads, queries, width = q.shape
    group = heads // k.shape[1]
    picked_heads = sorted({round(i * (heads - 1) / max(CHECKED_HEADS - 1, 1)) for i in range(CHECKED_HEADS)})
    picked_queries = sorted({round(i * (queries - 1) / max(CHECKED_QUERIES - 1, 1)) for i in range(CHECKED_QUERIES)})
    worst, compared = 0.0, 0
    for b in sorted({0, batch - 1}):
        for head in picked_heads:
            keys, values = (t[b, head // group].cpu().to(torch.float64) for t in (k, v))
            for row in picked_queries:
                # one new token attends to the whole cache; in a prompt with as many keys as queries a token attends to those
                # before it
                n_keys = row + 1 if causal else keys.shape[0]
                query = q[b, head, row].cpu().to(torch.float64)
                scores = keys[:n_keys] @ query / math.sqrt(width)
                largest = float((keys[:n_keys].abs() @ query.abs()).max()) / math.sqrt(width)
                p = torch.softmax(scores, 0)
                true, weighted = p @ values[:n_keys], p @ values[:n_keys].abs()
                computed = out[b, head, row].cpu().to(torch.float64)
                relative = attention_bound(dtype, width, n_keys, largest, 1.0, 0.0)
                output = attention_bound(dtype, width, n_keys, 0.0, 0.0, 1.0)
                bound = relative * weighted + output * true.abs()
                worst = max(worst, float(((computed - true).abs() / bound).max()))
                compared += width
    return Check(worst <= 1.0, worst, f"{compared:,} elements")
