"""Bytes of number formats: the one table.

:data:`TENSOR_BYTES` are formats that a tensor is stored in, as PyTorch stores them; :data:`FORMAT_BYTES` formats that a
product computes in, with those narrower than a byte.
"""

from __future__ import annotations

TENSOR_BYTES: dict[str, int] = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
    "fp4": 1,  # torch.float4_e2m1fn_x2 holds two numbers in an element
    "i64": 8,
    "i32": 4,
    "i16": 2,
    "i8": 1,
    "u64": 8,
    "u32": 4,
    "u16": 2,
    "u8": 1,
    "bool": 1,
    "c128": 16,
    "c64": 8,
    "c32": 4,
}
"""Bytes of one element of a tensor."""
FORMAT_BYTES: dict[str, float] = {
    **{name: float(TENSOR_BYTES[name]) for name in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")},
    "mxfp8": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5,
    "int4": 0.5,
}
"""Bytes of one number of a format that products compute in, block scales apart."""
