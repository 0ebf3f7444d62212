"""Single operations of PyTorch: each a function that makes its tensors and returns a call.

The same function is captured on the pretended card for the prediction and run on the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Call = Callable[[], object]
OPERATIONS: dict[str, Callable[[], Call]] = {}
DEVICE = "cuda"
SHRINK = 1
"""Sizes are divided by this where there is no card."""


def operation(name: str) -> Callable[[Callable[[], Call]], Callable[[], Call]]:
    def keep(make: Callable[[], Call]) -> Callable[[], Call]:
        OPERATIONS[name] = make
        return make

    return keep


def randn(*shape: int, dtype: str = "bfloat16", grad: bool = False) -> Any:
    import torch

    return torch.randn(*shape, device=DEVICE, dtype=getattr(torch, dtype), requires_grad=grad)


def scaled(n: int) -> int:
    return max(n // SHRINK, 8) if SHRINK > 1 and n > 8 else n


def gemm(m: int, n: int, k: int, dtype: str = "bfloat16", tf32: bool = False) -> Callable[[], Call]:
    def make() -> Call:
        import torch
        import torch.nn.functional as F

        torch.backends.cuda.matmul.allow_tf32 = tf32
        x, w = randn(scaled(m), scaled(k), dtype=dtype), randn(scaled(n), scaled(k), dtype=dtype)
        return lambda: F.linear(x, w)

    return make


for _side in (1024, 2048, 4096, 8192):
    OPERATIONS[f"gemm-bf16-{_side}"] = gemm(_side, _side, _side)
for _rows in (1, 8, 64, 512):
    OPERATIONS[f"gemm-bf16-{_rows}x14336x4096"] = gemm(_rows, 14336, 4096)
OPERATIONS["gemm-bf16-8192x50257x768"] = gemm(8192, 50257, 768)
OPERATIONS["gemm-bf16-4096x4096x14336"] = gemm(4096, 4096, 14336)
OPERATIONS["gemm-fp16-4096"] = gemm(4096, 4096, 4096, "float16")
OPERATIONS["gemm-tf32-4096"] = gemm(4096, 4096, 4096, "float32", tf32=True)
OPERATIONS["gemm-fp32-4096"] = gemm(4096, 4096, 4096, "float32")


@operation("bmm-bf16-128x1024x1024x64")
def _bmm() -> Call:
    import torch

    a, b = randn(scaled(128), scaled(1024), 64), randn(scaled(128), 64, scaled(1024))
    return lambda: torch.bmm(a, b)


def attention(batch: int, heads: int, kv_heads: int, queries: int, keys: int, d: int, causal: bool) -> Callable[[], Call]:
    def make() -> Call:
        import torch.nn.functional as F

        q = randn(batch, heads, scaled(queries), d)
        k, v = randn(batch, kv_heads, scaled(keys), d), randn(batch, kv_heads, scaled(keys), d)
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads)

    return make


OPERATIONS["attention-prefill-4x32x8x4096"] = attention(4, 32, 8, 4096, 4096, 128, True)
OPERATIONS["attention-prefill-1x32x32x8192-full"] = attention(1, 32, 32, 8192, 8192, 128, False)
OPERATIONS["attention-prefill-16x12x12x1024-d64"] = attention(16, 12, 12, 1024, 1024, 64, True)
OPERATIONS["attention-decode-32x32x32x4096"] = attention(32, 32, 32, 1, 4096, 128, False)
OPERATIONS["attention-decode-32x32x8x4096"] = attention(32, 32, 8, 1, 4096, 128, False)
OPERATIONS["attention-decode-1x32x32x32768"] = attention(1, 32, 32, 1, 32768, 128, False)


@operation("attention-forward-and-backward-4x32x32x2048")
def _attention_backward() -> Call:
    import torch.nn.functional as F

    q, k, v = (randn(4, 32, scaled(2048), 128, grad=True) for _ in range(3))
    up = randn(4, 32, scaled(2048), 128)

    def call() -> None:
        q.grad = k.grad = v.grad = None
        F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(up)

    return call


def pointwise(name: str, *shape: int, dtype: str = "bfloat16", **options: Any) -> Callable[[], Call]:
    def make() -> Call:
        import torch.nn.functional as F

        x = randn(*(scaled(n) for n in shape), dtype=dtype)
        function = getattr(F, name)
        return lambda: function(x, **options)

    return make


OPERATIONS["softmax-bf16-16384x4096"] = pointwise("softmax", 16384, 4096, dim=-1)
OPERATIONS["softmax-fp32-4096x50257"] = pointwise("softmax", 4096, 50257, dtype="float32", dim=-1)
OPERATIONS["gelu-bf16-16384x4096"] = pointwise("gelu", 16384, 4096)
OPERATIONS["gelu-bf16-1024x1024"] = pointwise("gelu", 1024, 1024)
OPERATIONS["dropout-bf16-16384x4096"] = pointwise("dropout", 16384, 4096, p=0.1)
OPERATIONS["max-pool-bf16-64x64x112"] = pointwise("max_pool2d", 64, 64, 112, 112, kernel_size=3, stride=2, padding=1)


def norm(name: str, rows: int, width: int, dtype: str = "bfloat16") -> Callable[[], Call]:
    def make() -> Call:
        import torch.nn.functional as F

        x, w = randn(scaled(rows), scaled(width), dtype=dtype), randn(scaled(width), dtype=dtype)
        function = getattr(F, name)
        return lambda: function(x, (x.shape[-1],), w)

    return make


OPERATIONS["layer-norm-bf16-16384x4096"] = norm("layer_norm", 16384, 4096)
OPERATIONS["layer-norm-bf16-2048x768"] = norm("layer_norm", 2048, 768)
OPERATIONS["rms-norm-bf16-16384x4096"] = norm("rms_norm", 16384, 4096)


@operation("add-bf16-16384x4096")
def _add() -> Call:
    a, b = randn(scaled(16384), scaled(4096)), randn(scaled(16384), scaled(4096))
    return lambda: a + b


def transposed_copy(side: int, dtype: str = "bfloat16") -> Callable[[], Call]:
    def make() -> Call:
        a = randn(scaled(side), scaled(side), dtype=dtype)
        return lambda: a.t().contiguous()

    return make


def embedding(tokens: int, words: int, width: int, dtype: str = "bfloat16") -> Callable[[], Call]:
    def make() -> Call:
        import torch
        import torch.nn.functional as F

        w = randn(scaled(words), scaled(width), dtype=dtype)
        at = torch.randint(0, scaled(words), (scaled(tokens),), device=DEVICE)
        return lambda: F.embedding(at, w)

    return make


OPERATIONS["transpose-copy-bf16-8192"] = transposed_copy(8192)
OPERATIONS["embedding-bf16-16384-of-50257x4096"] = embedding(16384, 50257, 4096)


@operation("cross-entropy-bf16-8192x50257")
def _cross_entropy() -> Call:
    import torch
    import torch.nn.functional as F

    x, y = randn(scaled(8192), scaled(50257)), torch.randint(0, scaled(50257), (scaled(8192),), device=DEVICE)
    return lambda: F.cross_entropy(x, y)


def _adamw(fused: bool) -> Callable[[], Call]:
    def make() -> Call:
        import torch

        shapes = [(50257, 768), *([(768, 768), (768, 2304), (768, 3072), (3072, 768), (768,), (768,)] * 12)]
        parameters = [randn(*(scaled(n) for n in shape), dtype="float32", grad=True) for shape in shapes]
        for p in parameters:
            p.grad = torch.ones_like(p)
        return torch.optim.AdamW(parameters, lr=1e-4, fused=fused, foreach=not fused).step

    return make


OPERATIONS["adamw-foreach-124M"] = _adamw(fused=False)
OPERATIONS["adamw-fused-124M"] = _adamw(fused=True)


def convolution(
    kernel: int, c_in: int, c_out: int, side: int, stride: int = 1, *, last: bool, batch: int = 64
) -> Callable[[], Call]:
    def make() -> Call:
        import torch
        import torch.nn.functional as F

        layout = torch.channels_last if last else torch.contiguous_format
        x = randn(scaled(batch), c_in, scaled(side), scaled(side)).to(memory_format=layout)
        w = randn(scaled(c_out), c_in, kernel, kernel).to(memory_format=layout)
        return lambda: F.conv2d(x, w, stride=stride, padding=kernel // 2 if kernel != stride else 0)

    return make


for _layout in ("nhwc", "nchw"):
    _last = _layout == "nhwc"
    OPERATIONS[f"conv-3x3-{_layout}-64x128x56"] = convolution(3, 128, 128, 56, last=_last)
    OPERATIONS[f"conv-1x1-{_layout}-64x256x56-to-64"] = convolution(1, 256, 64, 56, last=_last)
    OPERATIONS[f"conv-7x7-{_layout}-64x3x224-to-64"] = convolution(7, 3, 64, 224, 2, last=_last)


def batch_norm(channels: int, side: int, *, last: bool) -> Callable[[], Call]:
    def make() -> Call:
        import torch
        import torch.nn.functional as F

        x = randn(scaled(64), channels, scaled(side), scaled(side)).to(
            memory_format=torch.channels_last if last else torch.contiguous_format
        )
        mean, var, w, b = (torch.ones(channels, device=DEVICE) for _ in range(4))
        return lambda: F.batch_norm(x, mean, var, w, b, training=True)

    return make


OPERATIONS["batch-norm-nhwc-64x256x56"] = batch_norm(256, 56, last=True)
OPERATIONS["batch-norm-nchw-64x256x56"] = batch_norm(256, 56, last=False)
