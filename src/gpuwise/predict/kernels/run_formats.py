"""The format a kernel computes in: the device's, not the tensor's.

fp32 in TF32 where the step allows it and the device has it, 16-bit formats in fp32 on devices without matrix units for
them, complex numbers as real ones.
"""

from __future__ import annotations

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels.gemm.formats import IMPLEMENTATIONS, math_dtype

HALF = ("fp16", "bf16")
MATRIX = ("fp16", "bf16", "tf32", "fp8", "mxfp8", "nvfp4", "int8")
"""Formats of the matrix units."""


def has_matrix_units(accelerator: Accelerator) -> bool:
    """Whether half precision runs faster than fp32 vectors: matrix units, from Volta on, on every CDNA, and on chips that publish
    no rate for fp32."""
    rates = accelerator.peak_flop_per_s
    return rates.get("fp16", rates.get("bf16", 0.0)) > 1.5 * rates.get("fp32", 0.0)


def matrix_units(accelerator: Accelerator) -> bool:
    """Whether products of 16-bit numbers summed in fp32 run faster than fp32 ones: not on Pascal, whose packed arithmetic
    sums in 16 bits."""
    capability = accelerator.compute_capability
    old = accelerator.vendor == "NVIDIA" and capability is not None and float(capability) < 7.0
    return has_matrix_units(accelerator) and not old


def arithmetic(accelerator: Accelerator, dtype: str) -> str:
    """The catalogue format whose rate limits products of ``dtype``: for weight storage formats (``int4_wo``, ``fp8_block``)
    the one they are multiplied in. Raises UnpredictableError if the device has none of them."""
    return math_dtype(accelerator, dtype) if dtype in IMPLEMENTATIONS and dtype not in IMPLEMENTATIONS[dtype].math else dtype


def run_format(accelerator: Accelerator, dtype: str, *, emulated: bool = True) -> str:
    """The format ``dtype`` is computed in on the device.

    Raises UnpredictableError if it has no rate for ``dtype`` and no substitute is allowed (``emulated`` False).
    """
    rates = accelerator.peak_flop_per_s
    # without a rate for fp32: one 16-bit pass, XLA's default precision on TPUs (docs.jax.dev, jax_default_matmul_precision)
    fp32 = "fp32" if "fp32" in rates else next((half for half in ("bf16", "fp16") if half in rates), "fp32")
    if dtype == "tf32":
        return "tf32" if "tf32" in rates else fp32
    if not emulated:
        accelerator.peak(arithmetic(accelerator, dtype))
        return dtype
    if dtype in HALF:
        return dtype if dtype in rates and matrix_units(accelerator) else fp32
    if dtype in ("c64", "c32"):
        return fp32
    if dtype == "c128":
        return "fp64"
    if dtype in ("i8", "u8"):
        return "int8" if "int8" in rates else fp32
    return dtype if dtype in rates else fp32


def default_precision(accelerator: Accelerator) -> tuple[str, str]:
    """Format of the matrix products and why: bf16 where there is one, fp16 with loss scaling before it."""
    for precision, why in (
        ("bf16", "the usual format"),
        ("fp16", "it has no bf16"),
        ("tf32", "it has no 16-bit rate"),
    ):
        if precision in accelerator.peak_flop_per_s:
            return precision, why
    return "fp32", "it has no matrix rate below it"
