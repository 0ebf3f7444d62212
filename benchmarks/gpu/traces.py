"""Traces of real steps: every kernel with the operation, shapes and formats that launched it, and the step's own time.

    python benchmarks/gpu/traces.py --out FOLDER --budget 200 [--only ITEM ...] [--tiny]

The steps are those of ``training_steps.py`` and ``trace_models.py``. ``FOLDER/ITEM.json.gz`` is a trace that
``gpuwise profile --trace`` reads, with what no reader needs left out; ``FOLDER/traces.jsonl`` has a line for each item and
for each operation of the sweep, written as soon as it is measured. An item that fails or takes too long is a line with its error.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import trace_models
import training_steps
from training import ItemTimeout, add

KEPT = {
    "cpu_op",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_runtime",
    "cuda_driver",
    "user_annotation",
    "python_function",
    "ac2g",
}
ARGUMENTS = {
    "Input Dims",
    "Input type",
    "Input Strides",
    "Concrete Inputs",
    "External id",
    "correlation",
    "stream",
    "device",
    "bytes",
    "Sequence number",
    "Fwd thread id",
    "grid",
    "block",
    "registers per thread",
    "shared memory",
    "est. achieved occupancy %",
    "est. achieved occupancy",
}
ITEM_S, COMPILED_S = 20.0, 60.0
NO_TRACE = ("llama8b-generate",)
FIRST = (
    "gpt2",
    "resnet50-amp-nhwc",
    "bert-base",
    "llama1b-lora",
    "vit-b16",
    "llama1b-bf16",
    "resnet50-amp-nchw",
    "gpt2-compiled",
    "small-cnn",
    "lstm",
    "moe-1-layer",
    "resnet50-tf32",
    "resnet50-fp32",
)
"""Items of ``training_steps.py`` to be traced before those of ``trace_models.py``; the rest comes last."""


def jobs(only: list[str]) -> Iterator[tuple[str, Callable[[bool, str], Callable[[], object]]]]:
    """Items in order of worth."""
    checks = [i.name for i in training_steps.ITEMS]
    order = [*FIRST, "sweep", *trace_models.STEPS, *(n for n in checks if n not in FIRST)]
    for name in order:
        if only and name not in only:
            continue
        if name == "sweep":
            yield name, lambda tiny, device: lambda: None
        elif name in trace_models.STEPS:
            yield name, lambda tiny, device, n=name: trace_models.make_step(n, tiny, device)
        else:
            yield name, lambda tiny, device, n=name: training_steps.make_step(n, tiny, device)


def wait(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def step_row(step: Callable[[], object], device: str) -> dict[str, Any]:
    """Seconds of a step, those that the host needs to ask for it, and the peak."""
    import torch

    began = time.perf_counter()
    step()
    wait(device)
    first_s = time.perf_counter() - began
    for _ in range(2):
        step()
    wait(device)
    began = time.perf_counter()
    step()
    wait(device)
    n = max(3, min(12, int(1.0 / (time.perf_counter() - began))))
    row: dict[str, Any] = {"first_step_s": first_s}
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
        began = time.perf_counter()
        events[0].record()
        for event in events[1:]:
            step()
            event.record()
        wait(device)
        row["wall_step_s"] = (time.perf_counter() - began) / n
        row["step_s"] = median(a.elapsed_time(b) / 1e3 for a, b in pairwise(events))
        row |= {"allocated_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()}
    hosts: list[float] = []
    for _ in range(3):
        wait(device)
        began = time.perf_counter()
        step()
        hosts.append(time.perf_counter() - began)
    row["host_s"] = median(hosts)
    return row


def traced(step: Callable[[], object], device: str, path: Path) -> dict[str, Any]:
    """The trace of one step, less what no reader needs."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=kinds, record_shapes=True) as run:
        step()
        wait(device)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "trace.json"
        run.export_chrome_trace(str(whole))
        document = json.loads(whole.read_text("utf-8"))
    events: list[dict[str, Any]] = []
    kernels_s, launches = 0.0, 0
    for event in document["traceEvents"]:
        kind = event.get("cat")
        if kind not in KEPT and event.get("ph") != "M":
            continue
        if kind == "kernel":
            kernels_s, launches = kernels_s + event["dur"] / 1e6, launches + 1
        if "args" in event and event.get("ph") == "X":
            event["args"] = {k: v for k, v in event["args"].items() if k in ARGUMENTS}
        events.append(event)
    document["traceEvents"] = events
    with gzip.open(path, "wt", 6, encoding="utf-8") as file:
        json.dump(document, file, separators=(",", ":"))
    return {"kernels_s": kernels_s, "launches": launches, "trace_bytes": path.stat().st_size}


# --- operations by themselves ---


def sweep_calls(tiny: bool) -> Iterator[tuple[dict[str, Any], Callable[[], Callable[[], object]]]]:
    """Grids of operations whose time depends on more than bytes and FLOP: each with a maker of its call."""
    import torch
    import torch.nn.functional as F

    cut = 64 if tiny else 1
    device = "cuda" if torch.cuda.is_available() else "cpu"
    types = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}

    def randn(*shape: int, dtype: str = "bf16") -> Any:
        return torch.randn(*shape, device=device, dtype=types[dtype])

    # products whose sides no multiple of 8 divides
    for dtype, tf32 in (("bf16", False), ("fp32", True)):
        for m, n, k in (
            (4096, 50257, 768),
            (4096, 50256, 768),
            (4096, 50258, 768),
            (4096, 50260, 768),
            (4096, 50304, 768),
            (4096, 768, 50257),
            (50257, 768, 4096),
            (4096, 4095, 4096),
            (4096, 4097, 4096),
            (4096, 4098, 4096),
            (4096, 4100, 4096),
            (4096, 4104, 4096),
            (4096, 4096, 4095),
            (4096, 4096, 4098),
            (4096, 4096, 4100),
            (4095, 4096, 4096),
            (1024, 1023, 1024),
            (1024, 1000, 1024),
            (512, 30522, 768),
            (512, 2, 768),
            (8192, 10, 512),
            (8192, 13, 512),
            (8192, 16, 2048),
            (8192, 2048, 16),
            (8192, 8, 2048),
            (8192, 2048, 8),
            (8192, 64, 2048),
            (8192, 2048, 64),
            (2048, 8192, 2048),
            (64, 2048, 2048),
            (64, 8192, 2048),
            (200, 3000, 1000),
        ):
            for layout in ("nt", "nn", "tn"):
                if layout != "nt" and dtype == "fp32":
                    continue

                m, n, k = (max(side // cut, 2) for side in (m, n, k)) if tiny else (m, n, k)

                def product(
                    m: int = m, n: int = n, k: int = k, dtype: str = dtype, tf32: bool = tf32, layout: str = layout
                ) -> Any:
                    torch.backends.cuda.matmul.allow_tf32 = tf32
                    a = randn(m, k, dtype=dtype) if layout[0] == "n" else randn(k, m, dtype=dtype).T
                    b = randn(n, k, dtype=dtype).T if layout[1] == "t" else randn(k, n, dtype=dtype)
                    return lambda: a @ b

                yield {"op": "product", "dtype": "tf32" if tf32 else dtype, "m": m, "n": n, "k": k, "layout": layout}, product
    # one pass over memory, by what it computes and how wide the rows are
    for dtype in ("bf16", "fp32"):
        for size in (1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26):
            for name, function in {
                "relu": F.relu,
                "gelu": F.gelu,
                "silu": F.silu,
                "exp": torch.exp,
                "neg": torch.neg,
                "sigmoid": torch.sigmoid,
                "to_other": lambda x: x.to(torch.float32 if x.dtype == torch.bfloat16 else torch.bfloat16),
                "add_scalar": lambda x: x + 1.0,
                "dropout": lambda x: F.dropout(x, 0.1),
                "native_dropout": lambda x: torch.native_dropout(x, 0.1, True),
                "sum": torch.sum,
                "isfinite": torch.isfinite,
                "clone": torch.clone,
                "zeros_like": torch.zeros_like,
                "mul_self": lambda x: x * x,
                "where": lambda x: torch.where(x > 0, x, 0.0),
                "cumsum": lambda x: torch.cumsum(x.view(-1, 1024), 1) if x.numel() >= 1024 else x,
            }.items():

                def unary(size: int = size, dtype: str = dtype, function: Any = function) -> Any:
                    x = randn(size // cut, dtype=dtype)
                    return lambda: function(x)

                yield {"op": name, "dtype": dtype, "elements": size}, unary
        for rows, width in (
            (2048, 768),
            (8192, 768),
            (32768, 768),
            (8192, 1024),
            (8192, 2048),
            (8192, 4096),
            (16384, 4096),
            (2048, 8192),
            (65536, 128),
            (65536, 64),
            (4096, 12288),
            (4096, 32000),
            (4096, 50257),
            (2048, 128256),
            (262144, 256),
            (100352, 192),
            (12544, 384),
        ):
            for name in (
                "softmax",
                "log_softmax",
                "layer_norm",
                "layer_norm_backward",
                "rms_norm",
                "softmax_backward",
                "mean_last",
                "sum_first",
                "sum_last_fp32",
                "argmax",
                "max_last",
                "cross_entropy",
                "cross_entropy_backward",
                "transpose_copy",
                "add_row",
                "mul_column",
                "rotate_half",
                "pow_mean",
                "cat_last",
                "slice_copy",
            ):
                if width > 12288 and name in ("layer_norm", "layer_norm_backward", "rms_norm", "rotate_half", "pow_mean"):
                    continue

                def rowwise(name: str = name, rows: int = rows, width: int = width, dtype: str = dtype) -> Any:
                    return row_call(name, max(rows // cut, 4), width, dtype, randn)

                yield {"op": name, "dtype": dtype, "rows": rows, "width": width}, rowwise
        for entries, width, count in (
            (50257, 768, 8192),
            (128256, 2048, 4096),
            (30522, 768, 8192),
            (10000, 512, 16384),
            (200000, 64, 32768),
        ):
            for name in ("embedding", "embedding_backward", "index_select", "gather_rows", "index_add"):

                def looked(
                    name: str = name, entries: int = entries, width: int = width, count: int = count, dtype: str = dtype
                ) -> Any:
                    return lookup_call(name, entries, width, count, dtype, randn, device)

                yield {"op": name, "dtype": dtype, "entries": entries, "width": width, "count": count}, looked
    # images
    for dtype in ("bf16", "fp32"):
        for layout in ("nchw", "nhwc"):
            for batch, channels, side in (
                (128, 64, 112),
                (128, 64, 56),
                (128, 256, 56),
                (128, 512, 28),
                (128, 1024, 14),
                (128, 2048, 7),
                (8, 320, 64),
                (32, 32, 32),
            ):
                for name in (
                    "batch_norm",
                    "batch_norm_backward",
                    "batch_norm_eval",
                    "group_norm",
                    "group_norm_backward",
                    "max_pool",
                    "max_pool_backward",
                    "avg_pool",
                    "upsample",
                    "add",
                    "relu_backward",
                    "mean_spatial",
                ):

                    def image(
                        name: str = name, dtype: str = dtype, layout: str = layout, shape: Any = (batch, channels, side, side)
                    ) -> Any:
                        return image_call(name, randn(max(shape[0] // cut, 1), *shape[1:], dtype=dtype), layout)

                    yield {"op": name, "dtype": dtype, "layout": layout, "shape": [batch, channels, side, side]}, image
            for given, out, kernel, stride, side, groups, batch in (
                (3, 64, 7, 2, 224, 1, 128),
                (3, 32, 3, 2, 224, 1, 128),
                (3, 96, 4, 4, 224, 1, 64),
                (3, 768, 16, 16, 224, 1, 64),
                (3, 64, 3, 1, 224, 1, 64),
                (64, 64, 1, 1, 56, 1, 128),
                (64, 64, 3, 1, 56, 1, 128),
                (64, 256, 1, 1, 56, 1, 128),
                (256, 128, 1, 1, 56, 1, 128),
                (128, 128, 3, 2, 56, 1, 128),
                (256, 256, 3, 1, 14, 1, 128),
                (512, 2048, 1, 1, 7, 1, 128),
                (512, 512, 3, 1, 7, 1, 128),
                (320, 320, 3, 1, 64, 1, 8),
                (1280, 1280, 3, 1, 16, 1, 8),
                (96, 96, 7, 1, 56, 96, 64),
                (96, 96, 3, 1, 112, 96, 128),
                (144, 144, 5, 1, 56, 144, 64),
                (384, 384, 3, 1, 14, 384, 128),
                (256, 256, 3, 1, 28, 8, 64),
                (32, 32, 3, 1, 32, 1, 32),
                (512, 256, 4, 2, 16, 1, 128),
            ):
                images = max(batch // cut, 1)
                for name in ("conv", "conv_backward", "conv_input", "conv_weight"):

                    def convolve(
                        name: str = name,
                        dtype: str = dtype,
                        layout: str = layout,
                        sizes: Any = (given, out, kernel, stride, side, groups, images),
                    ) -> Any:
                        return conv_call(name, dtype, layout, sizes, randn)

                    row = {
                        "op": name,
                        "dtype": "tf32" if dtype == "fp32" else dtype,
                        "layout": layout,
                        "batch": batch,
                        "given": given,
                    }
                    yield {**row, "out": out, "kernel": kernel, "stride": stride, "side": side, "groups": groups}, convolve
    # attention as PyTorch picks it
    for batch, heads, kv_heads, queries, keys, width, causal in (
        (8, 12, 12, 1024, 1024, 64, True),
        (64, 12, 12, 128, 128, 64, False),
        (64, 12, 12, 197, 197, 64, False),
        (2, 32, 8, 2048, 2048, 64, True),
        (1, 32, 8, 2048, 2048, 128, True),
        (4, 32, 32, 4096, 4096, 128, True),
        (8, 8, 8, 4096, 4096, 40, False),
        (8, 8, 8, 1024, 1024, 80, False),
        (8, 8, 8, 256, 256, 160, False),
        (16, 12, 12, 512, 512, 64, False),
        (1, 32, 8, 1, 1024, 128, False),
        (1, 32, 8, 1, 8192, 128, False),
        (1, 32, 32, 1, 8192, 128, False),
        (32, 32, 8, 1, 1024, 128, False),
        (32, 32, 32, 1, 1024, 128, False),
        (64, 32, 8, 1, 4096, 128, False),
        (2, 8, 4, 2048, 2048, 256, True),
    ):
        rows = max(batch // cut, 1)
        for name in ("attention", "attention_backward", "attention_masked", "attention_repeated"):
            if queries == 1 and name == "attention_backward":
                continue

            def attend(name: str = name, sizes: Any = (rows, heads, kv_heads, queries, keys, width, causal)) -> Any:
                return attention_call(name, sizes, randn, device)

            shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": queries, "keys": keys, "width": width}
            yield {"op": name, "dtype": "bf16", **shape, "causal": causal}, attend


def row_call(name: str, rows: int, width: int, dtype: str, randn: Callable[..., Any]) -> Callable[[], object]:
    """An operation over rows."""
    import torch
    import torch.nn.functional as F

    x = randn(rows, width, dtype=dtype)
    w, column = randn(width, dtype=dtype), randn(rows, 1, dtype=dtype)
    up = randn(rows, width, dtype=dtype)
    ids = torch.randint(width, (rows,), device=x.device)

    def back(make: Callable[[Any], Any]) -> Callable[[], object]:
        leaf = x.clone().requires_grad_()
        y = make(leaf)
        grad = up if y.shape == up.shape else torch.ones_like(y)
        return lambda: torch.autograd.grad(y, leaf, grad, retain_graph=True)

    ww = w.clone().requires_grad_()
    calls: dict[str, Callable[[], Callable[[], object]]] = {
        "softmax": lambda: lambda: F.softmax(x, -1),
        "log_softmax": lambda: lambda: F.log_softmax(x, -1),
        "layer_norm": lambda: lambda: F.layer_norm(x, (width,), w, w),
        "layer_norm_backward": lambda: back(lambda t: F.layer_norm(t, (width,), ww, ww)),
        "rms_norm": lambda: lambda: F.rms_norm(x, (width,), w),
        "softmax_backward": lambda: back(lambda t: F.softmax(t, -1)),
        "mean_last": lambda: lambda: x.mean(-1),
        "sum_first": lambda: lambda: x.sum(0),
        "sum_last_fp32": lambda: lambda: x.float().pow(2).mean(-1, keepdim=True),
        "argmax": lambda: lambda: x.argmax(-1),
        "max_last": lambda: lambda: x.max(-1),
        "cross_entropy": lambda: lambda: F.cross_entropy(x, ids),
        "cross_entropy_backward": lambda: back(lambda t: F.cross_entropy(t, ids)),
        "transpose_copy": lambda: lambda: x.T.contiguous(),
        "add_row": lambda: lambda: x + w,
        "mul_column": lambda: lambda: x * column,
        "rotate_half": lambda: lambda: torch.cat((-x[:, width // 2 :], x[:, : width // 2]), -1),
        "pow_mean": lambda: lambda: x.pow(2),
        "cat_last": lambda: lambda: torch.cat((x, up), -1),
        "slice_copy": lambda: lambda: x[:, : width // 2].contiguous(),
    }
    return calls[name]()


def lookup_call(name: str, entries: int, width: int, count: int, dtype: str, randn: Any, device: str) -> Callable[[], object]:
    """Rows of a table by index."""
    import torch
    import torch.nn.functional as F

    table, ids = randn(entries, width, dtype=dtype), torch.randint(entries, (count,), device=device)
    up = randn(count, width, dtype=dtype)
    if name == "embedding":
        return lambda: F.embedding(ids, table)
    if name == "embedding_backward":
        leaf = table.requires_grad_()
        y = F.embedding(ids, leaf)
        return lambda: torch.autograd.grad(y, leaf, up, retain_graph=True)
    if name == "index_select":
        return lambda: torch.index_select(table, 0, ids)
    if name == "index_add":
        return lambda: table.index_add_(0, ids, up)
    where = ids[:, None].expand(count, width)
    return lambda: torch.gather(table, 0, where)


def image_call(name: str, x: Any, layout: str) -> Callable[[], object]:
    """An operation over images, or its backward pass alone."""
    import torch
    import torch.nn.functional as F

    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    x = x.to(memory_format=form)
    channels = x.shape[1]
    w = torch.ones(channels, device=x.device, requires_grad=True)
    mean, variance = torch.zeros(channels, device=x.device), torch.ones(channels, device=x.device)
    bases: dict[str, Callable[[Any], Any]] = {
        "batch_norm": lambda t: F.batch_norm(t, mean, variance, w, w, training=True),
        "batch_norm_eval": lambda t: F.batch_norm(t, mean, variance, w, w),
        "group_norm": lambda t: F.group_norm(t, 32, w.to(t.dtype), w.to(t.dtype)),
        "max_pool": lambda t: F.max_pool2d(t, 3, 2, 1),
        "avg_pool": lambda t: F.avg_pool2d(t, 2),
        "upsample": lambda t: F.interpolate(t, scale_factor=2.0, mode="nearest"),
        "add": lambda t: t + x,
        "relu": F.relu,
        "mean_spatial": lambda t: t.mean((2, 3)),
    }
    base = bases[name.removesuffix("_backward")]
    if not name.endswith("_backward"):

        def forward() -> object:
            with torch.no_grad():
                return base(x)

        return forward
    leaf = x.clone(memory_format=form).requires_grad_()
    y = base(leaf)
    up = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, leaf, up, retain_graph=True)


def conv_call(name: str, dtype: str, layout: str, sizes: Any, randn: Any) -> Callable[[], object]:
    """A convolution, and its gradients together or one by one."""
    import torch

    given, out, kernel, stride, side, groups, batch = sizes
    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    x = randn(batch, given, side, side, dtype=dtype).to(memory_format=form)
    w = randn(out, given // groups, kernel, kernel, dtype=dtype).to(memory_format=form)
    pad = 0 if stride == kernel else kernel // 2

    def forward() -> Any:
        return torch.ops.aten.convolution(x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups)

    if name == "conv":
        return forward
    up = torch.randn_like(forward())
    mask = {"conv_backward": [True, True, False], "conv_input": [True, False, False], "conv_weight": [False, True, False]}[name]
    return lambda: torch.ops.aten.convolution_backward(
        up, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups, mask
    )


def attention_call(name: str, sizes: Any, randn: Any, device: str) -> Callable[[], object]:
    """Attention by torch's own choice; with a mask; with key-value heads repeated beforehand."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    batch, heads, kv_heads, queries, keys, width, causal = sizes
    q = randn(batch, heads, queries, width)
    k, v = (randn(batch, kv_heads, keys, width) for _ in range(2))
    grouped = kv_heads != heads
    if name == "attention_repeated":
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        return lambda: scaled_dot_product_attention(q, k, v, is_causal=causal)
    if name == "attention_masked":
        mask = torch.ones(batch, 1, queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
        return lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
    if name == "attention":
        return lambda: scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    y = scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=grouped)
    up = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, leaves, up, retain_graph=True)


def sweep(path: Path, tiny: bool, device: str, until: float) -> dict[str, Any]:
    """Time each call of the grids: median of launches in a row behind a spin kernel, so that the host is ahead."""
    import torch

    # as torch comes, whatever a step before has set
    torch.backends.cudnn.allow_tf32 = True
    done = failed = 0
    flush = torch.empty((256 << 20) // (64 if tiny else 1), dtype=torch.int8, device=device)
    seen: set[tuple[Any, ...]] = set()
    for row, make in sweep_calls(tiny):
        kind = tuple(row.get(k) for k in ("op", "dtype", "layout"))
        if tiny and kind in seen:
            continue
        seen.add(kind)
        if time.time() > until:
            return {"rows": done, "failed": failed, "error": "the sweep's time is over"}
        try:
            call = make()
            call()
            wait(device)
            began = time.perf_counter()
            call()
            wait(device)
            once_s = time.perf_counter() - began
            if device == "cuda":
                n = max(2, min(8, int(0.008 / max(once_s, 1e-5))))
                pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(n)]
                torch.cuda._sleep(3_000_000)
                for first, last in pairs:
                    flush.zero_()
                    first.record()
                    call()
                    last.record()
                wait(device)
                row["cold_s"] = median(a.elapsed_time(b) / 1e3 for a, b in pairs)
                torch.cuda._sleep(2_000_000)
                pairs[0][0].record()
                for _ in range(n):
                    call()
                pairs[0][1].record()
                wait(device)
                row["hot_s"] = pairs[0][0].elapsed_time(pairs[0][1]) / 1e3 / n
            else:
                row["once_s"] = once_s
        except (RuntimeError, ValueError, TypeError) as error:
            row["error"] = str(error)[:200]
            failed += 1
        done += 1
        add(path, {"item": "sweep", **row})
    return {"rows": done, "failed": failed}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--budget", type=float, default=200.0, help="seconds in all")
    parser.add_argument("--sweep-s", type=float, default=60.0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    deadline = time.time() + options.budget
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.tiny |= device == "cpu"
    options.out.mkdir(parents=True, exist_ok=True)
    log = options.out / "traces.jsonl"

    def late(*_: object) -> None:
        raise ItemTimeout

    signal.signal(signal.SIGALRM, late)
    for name, make in jobs(options.only):
        left = deadline - time.time()
        if left < 4.0:
            add(log, {"item": name, "error": "the budget is over"})
            continue
        began = time.perf_counter()
        limit_s = (
            left if options.tiny else options.sweep_s + 5 if name == "sweep" else COMPILED_S if "compiled" in name else ITEM_S
        )
        signal.setitimer(signal.ITIMER_REAL, min(limit_s, left))
        row: dict[str, Any] = {"item": name, "kind": "trace"}
        try:
            if name == "sweep":
                row |= sweep(
                    log, options.tiny, device, time.time() + (left - 3 if options.tiny else min(options.sweep_s, left - 3))
                )
            else:
                step = make(options.tiny, device)
                row |= step_row(step, device)
                if name not in NO_TRACE:
                    row |= traced(step, device, options.out / f"{name}.json.gz")
        except (Exception, ItemTimeout) as error:  # noqa: BLE001 - one item costs no other
            row |= {"error": f"{type(error).__name__}: {str(error)[:300]}", "traceback": traceback.format_exc()[-1500:]}
            error.__traceback__ = None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        step = None
        gc.collect()
        if "compiled" in name:
            torch._dynamo.reset()
        if device == "cuda":
            torch.cuda.empty_cache()
        add(log, {**row, "item_s": round(time.perf_counter() - began, 2)})
        print(name, {k: v for k, v in row.items() if k in ("step_s", "host_s", "error", "rows", "failed")}, flush=True)


if __name__ == "__main__":
    sys.exit(main())
