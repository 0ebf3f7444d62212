"""Further shapes of the families whose first shapes were measured on the card: to check by what was learnt from those."""

from __future__ import annotations

from collections.abc import Callable

from card_operations import (
    Call,
    attention,
    batch_norm,
    convolution,
    embedding,
    gemm,
    norm,
    pointwise,
    transposed_copy,
)

SHAPES: dict[str, Callable[[], Call]] = {
    # a row of the weight or of the result that begins off 16 bytes
    "gemm-bf16-8192x50304x768": gemm(8192, 50304, 768),
    "gemm-bf16-8192x50258x768": gemm(8192, 50258, 768),
    "gemm-bf16-8192x50260x768": gemm(8192, 50260, 768),
    "gemm-bf16-2048x32001x4096": gemm(2048, 32001, 4096),
    "gemm-bf16-4096x4096x4095": gemm(4096, 4096, 4095),
    "gemm-bf16-4095x4096x4096": gemm(4095, 4096, 4096),
    "gemm-bf16-4096x30522x1024": gemm(4096, 30522, 1024),
    "gemm-fp16-4096x50257x1024": gemm(4096, 50257, 1024, "float16"),
    # attention of one query
    "attention-decode-8x32x8x2048": attention(8, 32, 8, 1, 2048, 128, False),
    "attention-decode-8x32x8x16384": attention(8, 32, 8, 1, 16384, 128, False),
    "attention-decode-4x32x32x8192": attention(4, 32, 32, 1, 8192, 128, False),
    "attention-decode-1x32x8x131072": attention(1, 32, 8, 1, 131072, 128, False),
    "attention-decode-64x12x12x1024-d64": attention(64, 12, 12, 1, 1024, 64, False),
    "attention-prefill-1x32x8x512": attention(1, 32, 8, 512, 512, 128, True),
    "attention-prefill-32x12x12x512-d64-full": attention(32, 12, 12, 512, 512, 64, False),
    # rows
    "softmax-bf16-65536x1024": pointwise("softmax", 65536, 1024, dim=-1),
    "softmax-bf16-32768x2048": pointwise("softmax", 32768, 2048, dim=-1),
    "softmax-bf16-8192x8192": pointwise("softmax", 8192, 8192, dim=-1),
    "softmax-fp32-16384x2048": pointwise("softmax", 16384, 2048, dtype="float32", dim=-1),
    "softmax-bf16-262144x197": pointwise("softmax", 262144, 197, dim=-1),
    "layer-norm-bf16-65536x768": norm("layer_norm", 65536, 768),
    "layer-norm-bf16-8192x8192": norm("layer_norm", 8192, 8192),
    "rms-norm-bf16-32768x2048": norm("rms_norm", 32768, 2048),
    "layer-norm-fp32-16384x1024": norm("layer_norm", 16384, 1024, "float32"),
    # gathers
    "embedding-bf16-65536-of-50257x768": embedding(65536, 50257, 768),
    "embedding-bf16-2048-of-128256x4096": embedding(2048, 128256, 4096),
    "embedding-fp32-16384-of-30522x1024": embedding(16384, 30522, 1024, "float32"),
    # elements
    "dropout-bf16-8192x8192": pointwise("dropout", 8192, 8192, p=0.1),
    "dropout-fp32-4096x4096": pointwise("dropout", 4096, 4096, dtype="float32", p=0.1),
    "silu-bf16-8192x14336": pointwise("silu", 8192, 14336),
    "gelu-bf16-4096x4096": pointwise("gelu", 4096, 4096),
    "gelu-fp32-8192x4096": pointwise("gelu", 8192, 4096, dtype="float32"),
    "transpose-copy-bf16-4096": transposed_copy(4096),
    "transpose-copy-fp32-8192": transposed_copy(8192, "float32"),
    # images
    "batch-norm-nhwc-64x64x112": batch_norm(64, 112, last=True),
    "batch-norm-nchw-64x64x112": batch_norm(64, 112, last=False),
    "batch-norm-nhwc-64x1024x14": batch_norm(1024, 14, last=True),
    "batch-norm-nchw-64x1024x14": batch_norm(1024, 14, last=False),
    "max-pool-bf16-32x128x56": pointwise("max_pool2d", 32, 128, 56, 56, kernel_size=2, stride=2),
    "conv-7x7-nhwc-32x3x224-to-64": convolution(7, 3, 64, 224, 2, batch=32, last=True),
    "conv-16x16-nchw-64x3x224-to-768": convolution(16, 3, 768, 224, 16, last=False),
    "conv-3x3-nhwc-64x64x56-s2": convolution(3, 64, 128, 56, 2, last=True),
    "conv-3x3-nchw-64x256x14": convolution(3, 256, 256, 14, last=False),
    "conv-1x1-nchw-64x1024x14-to-256": convolution(1, 1024, 256, 14, last=False),
}
