"""Single operations of PyTorch: predicted from the captured operation, measured by events.

Each operation is a function that makes its tensors and returns a call. The same function is captured on the pretended card
for the prediction and run on the real one. ``cold``: the L2 is overwritten before each call, as ``gpuwise op`` takes it for a
training step. ``hot``: ten calls in a row. A spin kernel ahead of the first event lets the host run ahead, so that launches
cost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from card_rows import GPU, Rows, spread

Call = Callable[[], object]
OPERATIONS: dict[str, Callable[[], Call]] = {}
DEVICE = "cuda"
SHRINK = 1
"""Sizes are divided by this where there is no card."""
REPEATS, IN_A_ROW = 15, 10
FLUSH_BYTES = 256 << 20
SPIN_CYCLES, LONG_SPIN_CYCLES = 2_000_000, 30_000_000
SUSTAINED = ("gemm-bf16-8192", "gemm-bf16-4096", "attention-prefill-4x32x8x4096")
SUSTAINED_S = 0.6


def operation(name: str) -> Callable[[Callable[[], Call]], Callable[[], Call]]:
    def keep(make: Callable[[], Call]) -> Callable[[], Call]:
        OPERATIONS[name] = make
        return make

    return keep


def _randn(*shape: int, dtype: str = "bfloat16", grad: bool = False) -> Any:
    import torch

    return torch.randn(*shape, device=DEVICE, dtype=getattr(torch, dtype), requires_grad=grad)


def _s(n: int) -> int:
    return max(n // SHRINK, 8) if SHRINK > 1 and n > 8 else n


def _gemm(m: int, n: int, k: int, dtype: str = "bfloat16", tf32: bool = False) -> Callable[[], Call]:
    def make() -> Call:
        import torch
        import torch.nn.functional as F

        torch.backends.cuda.matmul.allow_tf32 = tf32
        x, w = _randn(_s(m), _s(k), dtype=dtype), _randn(_s(n), _s(k), dtype=dtype)
        return lambda: F.linear(x, w)

    return make


for _side in (1024, 2048, 4096, 8192):
    OPERATIONS[f"gemm-bf16-{_side}"] = _gemm(_side, _side, _side)
for _rows in (1, 8, 64, 512):
    OPERATIONS[f"gemm-bf16-{_rows}x14336x4096"] = _gemm(_rows, 14336, 4096)
OPERATIONS["gemm-bf16-8192x50257x768"] = _gemm(8192, 50257, 768)
OPERATIONS["gemm-bf16-4096x4096x14336"] = _gemm(4096, 4096, 14336)
OPERATIONS["gemm-fp16-4096"] = _gemm(4096, 4096, 4096, "float16")
OPERATIONS["gemm-tf32-4096"] = _gemm(4096, 4096, 4096, "float32", tf32=True)
OPERATIONS["gemm-fp32-4096"] = _gemm(4096, 4096, 4096, "float32")


@operation("bmm-bf16-128x1024x1024x64")
def _bmm() -> Call:
    import torch

    a, b = _randn(_s(128), _s(1024), 64), _randn(_s(128), 64, _s(1024))
    return lambda: torch.bmm(a, b)


def _attention(batch: int, heads: int, kv_heads: int, queries: int, keys: int, d: int, causal: bool) -> Callable[[], Call]:
    def make() -> Call:
        import torch.nn.functional as F

        q = _randn(batch, heads, _s(queries), d)
        k, v = _randn(batch, kv_heads, _s(keys), d), _randn(batch, kv_heads, _s(keys), d)
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads)

    return make


OPERATIONS["attention-prefill-4x32x8x4096"] = _attention(4, 32, 8, 4096, 4096, 128, True)
OPERATIONS["attention-prefill-1x32x32x8192-full"] = _attention(1, 32, 32, 8192, 8192, 128, False)
OPERATIONS["attention-prefill-16x12x12x1024-d64"] = _attention(16, 12, 12, 1024, 1024, 64, True)
OPERATIONS["attention-decode-32x32x32x4096"] = _attention(32, 32, 32, 1, 4096, 128, False)
OPERATIONS["attention-decode-32x32x8x4096"] = _attention(32, 32, 8, 1, 4096, 128, False)
OPERATIONS["attention-decode-1x32x32x32768"] = _attention(1, 32, 32, 1, 32768, 128, False)


@operation("attention-forward-and-backward-4x32x32x2048")
def _attention_backward() -> Call:
    import torch.nn.functional as F

    q, k, v = (_randn(4, 32, _s(2048), 128, grad=True) for _ in range(3))
    up = _randn(4, 32, _s(2048), 128)

    def call() -> None:
        q.grad = k.grad = v.grad = None
        F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(up)

    return call


def _pointwise(name: str, *shape: int, dtype: str = "bfloat16", **options: Any) -> Callable[[], Call]:
    def make() -> Call:
        import torch.nn.functional as F

        x = _randn(*(_s(n) for n in shape), dtype=dtype)
        function = getattr(F, name)
        return lambda: function(x, **options)

    return make


OPERATIONS["softmax-bf16-16384x4096"] = _pointwise("softmax", 16384, 4096, dim=-1)
OPERATIONS["softmax-fp32-4096x50257"] = _pointwise("softmax", 4096, 50257, dtype="float32", dim=-1)
OPERATIONS["gelu-bf16-16384x4096"] = _pointwise("gelu", 16384, 4096)
OPERATIONS["gelu-bf16-1024x1024"] = _pointwise("gelu", 1024, 1024)
OPERATIONS["dropout-bf16-16384x4096"] = _pointwise("dropout", 16384, 4096, p=0.1)
OPERATIONS["max-pool-bf16-64x64x112"] = _pointwise("max_pool2d", 64, 64, 112, 112, kernel_size=3, stride=2, padding=1)


def _norm(name: str, rows: int, width: int) -> Callable[[], Call]:
    def make() -> Call:
        import torch.nn.functional as F

        x, w = _randn(_s(rows), _s(width)), _randn(_s(width))
        function = getattr(F, name)
        return lambda: function(x, (x.shape[-1],), w)

    return make


OPERATIONS["layer-norm-bf16-16384x4096"] = _norm("layer_norm", 16384, 4096)
OPERATIONS["layer-norm-bf16-2048x768"] = _norm("layer_norm", 2048, 768)
OPERATIONS["rms-norm-bf16-16384x4096"] = _norm("rms_norm", 16384, 4096)


@operation("add-bf16-16384x4096")
def _add() -> Call:
    a, b = _randn(_s(16384), _s(4096)), _randn(_s(16384), _s(4096))
    return lambda: a + b


@operation("transpose-copy-bf16-8192")
def _transposed() -> Call:
    a = _randn(_s(8192), _s(8192))
    return lambda: a.t().contiguous()


@operation("embedding-bf16-16384-of-50257x4096")
def _embedding() -> Call:
    import torch
    import torch.nn.functional as F

    w, at = _randn(_s(50257), _s(4096)), torch.randint(0, _s(50257), (_s(16384),), device=DEVICE)
    return lambda: F.embedding(at, w)


@operation("cross-entropy-bf16-8192x50257")
def _cross_entropy() -> Call:
    import torch
    import torch.nn.functional as F

    x, y = _randn(_s(8192), _s(50257)), torch.randint(0, _s(50257), (_s(8192),), device=DEVICE)
    return lambda: F.cross_entropy(x, y)


def _adamw(fused: bool) -> Callable[[], Call]:
    def make() -> Call:
        import torch

        shapes = [(50257, 768), *([(768, 768), (768, 2304), (768, 3072), (3072, 768), (768,), (768,)] * 12)]
        parameters = [_randn(*(_s(n) for n in shape), dtype="float32", grad=True) for shape in shapes]
        for p in parameters:
            p.grad = torch.ones_like(p)
        return torch.optim.AdamW(parameters, lr=1e-4, fused=fused, foreach=not fused).step

    return make


OPERATIONS["adamw-foreach-124M"] = _adamw(fused=False)
OPERATIONS["adamw-fused-124M"] = _adamw(fused=True)


def _convolution(kernel: int, c_in: int, c_out: int, side: int, stride: int = 1, *, last: bool) -> Callable[[], Call]:
    def make() -> Call:
        import torch
        import torch.nn.functional as F

        layout = torch.channels_last if last else torch.contiguous_format
        x = _randn(_s(64), c_in, _s(side), _s(side)).to(memory_format=layout)
        w = _randn(_s(c_out), c_in, kernel, kernel).to(memory_format=layout)
        return lambda: F.conv2d(x, w, stride=stride, padding=kernel // 2)

    return make


for _layout in ("nhwc", "nchw"):
    _last = _layout == "nhwc"
    OPERATIONS[f"conv-3x3-{_layout}-64x128x56"] = _convolution(3, 128, 128, 56, last=_last)
    OPERATIONS[f"conv-1x1-{_layout}-64x256x56-to-64"] = _convolution(1, 256, 64, 56, last=_last)
    OPERATIONS[f"conv-7x7-{_layout}-64x3x224-to-64"] = _convolution(7, 3, 64, 224, 2, last=_last)


def _batch_norm(*, last: bool) -> Callable[[], Call]:
    def make() -> Call:
        import torch
        import torch.nn.functional as F

        x = _randn(_s(64), 256, _s(56), _s(56)).to(memory_format=torch.channels_last if last else torch.contiguous_format)
        mean, var, w, b = (torch.ones(256, device=DEVICE) for _ in range(4))
        return lambda: F.batch_norm(x, mean, var, w, b, training=True)

    return make


OPERATIONS["batch-norm-nhwc-64x256x56"] = _batch_norm(last=True)
OPERATIONS["batch-norm-nchw-64x256x56"] = _batch_norm(last=False)


# --- predictions ---


def predict(name: str) -> dict[str, Any]:
    """Device seconds of one operation on the card, as own code is timed: of a training step, and of a burst with a warm L2."""
    import numpy as np

    from gpuwise import capture
    from gpuwise.facts.hardware.naming import USUAL, find_accelerator
    from gpuwise.predict.kernels.conditions import Conditions
    from gpuwise.predict.kernels.registry import kernel_times
    from gpuwise.predict.step.capture_time import signature_times, step_rows

    card = find_accelerator(GPU, prefer=USUAL)
    captured = capture(
        OPERATIONS[name],
        optimizer=None,
        train=False,
        capability=(9, 0),
        device_name="NVIDIA H100 80GB HBM3",
        total_memory_bytes=int(card.memory_bytes),
    )
    span = captured.steps[-1]
    times = signature_times(captured, card)
    of_each = captured.op_signature[span.first_op : span.end_op]
    used, count = np.unique(of_each, return_counts=True)
    hot = kernel_times(step_rows(captured), card, Conditions(cold=False, sustained=False, emulated=True)).time_s
    names = [captured.signatures[int(i)].op for i in used.tolist()]
    return {
        "predicted_s": float((times.time_s[used] * count).sum()),
        "predicted_hot_s": float((hot * count).sum()),
        "basis": times.basis,
        "log_sigma": float(np.average(times.log_sigma[used], weights=np.maximum(times.time_s[used] * count, 1e-12))),
        "operations": {n: int(c) for n, c in zip(names, count.tolist(), strict=True)},
    }


# --- measurement ---


class Timing:
    """Seconds of calls between two events on the card; on a processor, of the wall clock."""

    def __init__(self) -> None:
        import torch

        self.torch, self.real = torch, DEVICE == "cuda"
        self.flushed = torch.empty(FLUSH_BYTES if self.real else 1024, dtype=torch.int8, device=DEVICE)

    def seconds(self, call: Call, times: int, *, cold: bool, spin: int) -> float:
        if not self.real:
            began = time.perf_counter()
            for _ in range(times):
                call()
            return (time.perf_counter() - began) / times
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(spin)
        if cold:
            self.flushed.zero_()
        first.record()
        for _ in range(times):
            call()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e-3 / times

    def wait(self) -> None:
        if self.real:
            self.torch.cuda.synchronize()


def measure(name: str, timing: Timing) -> dict[str, Any]:
    """Medians of the real operation."""
    import torch

    torch.manual_seed(1)
    call = OPERATIONS[name]()
    spin = LONG_SPIN_CYCLES if name.startswith("adamw") else SPIN_CYCLES
    for _ in range(3):
        call()
    timing.wait()
    cold = [timing.seconds(call, 1, cold=True, spin=spin) for _ in range(REPEATS)]
    hot = [timing.seconds(call, IN_A_ROW, cold=False, spin=spin) for _ in range(3)]
    found: dict[str, Any] = {"cold": spread(cold), "hot": spread(hot)}
    if name in SUSTAINED:
        found["sustained_s"] = _sustained(call, timing)
    return found


def _sustained(call: Call, timing: Timing) -> float:
    """Seconds a call in a run of ``SUSTAINED_S``: its second half, at the clock it has settled at by then."""
    halves: list[float] = []
    for _ in range(2):
        began, n = time.perf_counter(), 0
        while time.perf_counter() - began < SUSTAINED_S / 2:
            for _ in range(20):
                call()
            timing.wait()
            n += 20
        halves.append((time.perf_counter() - began) / n)
    return halves[-1]


def _kernel_names(call: Call) -> list[str]:
    """Kernels of one call with their microseconds, by the profiler of torch."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return [f"{e.device_time_total:.2f} us x{e.count} {e.key[:100]}" for e in seen.key_averages()][:10]


def truths(timing: Timing, rows: Rows) -> None:
    """Three figures of ``gpuwise bench`` measured without it, under the same keys."""
    import torch

    def product() -> dict[str, Any]:
        n = 8192 // SHRINK
        a, b = _randn(n, n), _randn(n, n)
        torch.matmul(a, b)
        taken = [timing.seconds(lambda: torch.matmul(a, b), 1, cold=False, spin=SPIN_CYCLES) for _ in range(15)]
        long = _sustained(lambda: torch.matmul(a, b), timing)
        rate = 2.0 * n**3
        return {"value": rate / spread(taken)["median_s"], "sustained_value": rate / long, "unit": "FLOP/s", **spread(taken)}

    def copy() -> dict[str, Any]:
        a = torch.ones((1 << 30) // SHRINK, dtype=torch.int8, device=DEVICE)
        b = torch.empty_like(a)
        b.copy_(a)
        taken = [timing.seconds(lambda: b.copy_(a), 1, cold=False, spin=SPIN_CYCLES) for _ in range(15)]
        return {"value": 2 * a.numel() / spread(taken)["median_s"], "unit": "B/s", **spread(taken)}

    def to_device(pinned: bool) -> dict[str, Any]:
        a = torch.ones((256 << 20) // SHRINK, dtype=torch.int8)
        a = a.pin_memory() if pinned and timing.real else a
        b = torch.empty_like(a, device=DEVICE)
        b.copy_(a)
        taken = list[float]()
        for _ in range(10):
            timing.wait()
            began = time.perf_counter()
            b.copy_(a, non_blocking=True)
            timing.wait()
            taken.append(time.perf_counter() - began)
        return {"value": a.numel() / spread(taken)["median_s"], "unit": "B/s", **spread(taken)}

    rows.run("truth/matmul-bf16-8192x8192x8192", product)
    rows.run("truth/memory-copy-1024MiB", copy)
    rows.run("truth/copy-h2d-pinned-256MiB", lambda: to_device(True))
    rows.run("truth/copy-h2d-pageable-256MiB", lambda: to_device(False))


def main(rows: Rows, predictions: dict[str, Any]) -> None:
    """All operations, then the truths of the bench."""
    import torch

    timing = Timing()

    def floor() -> dict[str, Any]:
        x = torch.zeros(32, device=DEVICE)
        x.add_(1)
        taken = [timing.seconds(lambda: x.add_(1), 1, cold=True, spin=SPIN_CYCLES) for _ in range(REPEATS)]
        return {"cold": spread(taken), "torch": torch.__version__, "device": _device_name()}

    rows.run("kernels/event-floor", floor)
    ordered = sorted(OPERATIONS, key=lambda n: n.split("-")[0] in ("adamw", "max", "transpose", "dropout"))
    for name in ordered:
        predicted = predictions.get(f"kernels/{name}", {})

        def one(name: str = name, predicted: dict[str, Any] = predicted) -> dict[str, Any]:
            found = measure(name, timing)
            if predicted.get("predicted_s"):
                found["over_measured"] = predicted["predicted_s"] / float(found["cold"]["median_s"])
            return {**predicted, **found}

        if rows.left_s() < 6.0:
            rows.write(f"kernels/{name}", skipped="no time left")
            continue
        rows.run(f"kernels/{name}", one, 12.0 if name.startswith("adamw") else 6.0)  # torch's optimizers import its compiler
        if timing.real:
            torch.cuda.empty_cache()
    truths(timing, rows)
    for name in ordered if timing.real else []:  # last: the profiler must not be there while others are timed
        if rows.left_s() > 3.0:
            rows.run(f"names/{name}", lambda name=name: {"kernels": _kernel_names(OPERATIONS[name]())}, 3.0)
            torch.cuda.empty_cache()


def _device_name() -> str:
    import torch

    return torch.cuda.get_device_name(0) if DEVICE == "cuda" else "cpu"
