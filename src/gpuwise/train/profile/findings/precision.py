"""Findings about number formats and sizes of matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpuwise.train.profile.families import CONVOLUTIONS
from gpuwise.train.profile.finding import Confidence, Evidence, Finding
from gpuwise.train.profile.products import Product
from gpuwise.train.profile.profile_data import ProfileData

TF32_FROM, BF16_FROM, FP16_FROM = (8, 0), (8, 0), (7, 0)
"""Compute capabilities with the units for it (CUDA C++ Programming Guide, arithmetic instructions)."""
HALF = ("fp16", "bf16")
UNKNOWN_GAIN = 2.0
"""Assumed gain without a data sheet: the minimum from halving the width. Rule of this project."""
ALIGNED = 8
"""Elements of 16 bits: operands of tensor cores want rows of whole 16 bytes (cuBLAS documentation, tensor core usage)."""
DOUBLE_FIX = ("model = model.float()", "batch = batch.float()  # torch.from_numpy keeps numpy's float64")
LARGE = 64
"""Products with a side below it are bound by other things."""


def no_tf32(data: ProfileData) -> Finding | None:
    """Products in fp32 on a device that has TF32."""
    capability = data.capability
    if capability is None or capability < TF32_FROM:
        return None
    found = [p for p in data.products if p.dtype == "fp32" and _is_plain_fp32(p)]
    seconds = sum(p.seconds for p in found)
    gain = _gain(data, "fp32", "tf32")
    return Finding(
        "fp32 without TF32",
        "Matrix products in fp32 leave the tensor cores idle",
        seconds * (1 - 1 / gain),
        _confidence(data),
        _evidence(found, data),
        ('torch.set_float32_matmul_precision("high")  # TF32: 10 bits of mantissa in products',),
    )


def _is_plain_fp32(product: Product) -> bool:
    """From the kernels that ran; names of TF32 kernels contain it."""
    names = [n.lower() for n in product.kernels]
    return bool(names) and not any("tf32" in n or "tensorop_s" in n or "s1688" in n for n in names)


def no_mixed_precision(data: ProfileData) -> Finding | None:
    """Products and convolutions in fp32 or TF32 where bf16 or fp16 would do."""
    capability = data.capability
    if capability is None or capability < FP16_FROM:
        return None
    wide = [p for p in data.products if p.dtype in ("fp32",)]
    narrow = sum(p.flop * p.count for p in data.products if p.dtype in (*HALF, "fp8"))
    if not wide or narrow > sum(p.flop * p.count for p in wide):
        return None
    half = "bf16" if capability >= BF16_FROM else "fp16"
    usual = "fp32" if any(_is_plain_fp32(p) for p in wide) else "tf32"
    gain = _gain(data, usual, half)
    convolved = data.part(CONVOLUTIONS)
    convolutions = (Evidence("convolutions", seconds=convolved),) if convolved else ()
    seconds = sum(p.seconds for p in wide) + convolved
    fix = [f'with torch.autocast("cuda", dtype=torch.{"bfloat16" if half == "bf16" else "float16"}):', "    loss = ..."]
    if half == "fp16":
        fix += ["scaler = torch.amp.GradScaler()", "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"]
    return Finding(
        "no mixed precision",
        "Products run in 32 bits",
        seconds * (1 - 1 / gain),
        _confidence(data),
        (*_evidence(wide, data), *convolutions),
        tuple(fix),
        note="it changes rounding: compare the loss over some hundred steps",
    )


def double_precision(data: ProfileData) -> Finding | None:
    """Products in fp64, mostly by numpy's default format."""
    wide = [p for p in data.products if p.dtype == "fp64"]
    if not wide:
        return _double_parameters(data)
    gain = _gain(data, "fp64", "fp32") if data.on_gpu else 2.0
    products = sum(p.seconds for p in wide)
    work = products if data.on_gpu else data.part("compute")
    others = (Evidence("the operations between them", seconds=work - products),) if work > products else ()
    return Finding(
        "double precision",
        "The model computes in fp64",
        work * (1 - 1 / gain),
        "high",
        (*_evidence(wide, data), *others),
        DOUBLE_FIX,
    )


def _double_parameters(data: ProfileData) -> Finding | None:
    """The same without a trace, by the parameters."""
    described = () if data.facts is None or data.trace is not None else data.facts.optimizers or data.facts.models
    if not described or any(d.get("dtypes") != ["float64"] for d in described):
        return None
    work = data.part("compute")
    return Finding(
        "double precision",
        "The model computes in fp64",
        work / 2,
        "low",
        (Evidence("forward and backward passes of parameters in float64", seconds=work),),
        DOUBLE_FIX,
    )


def odd_sizes(data: ProfileData) -> Finding | None:
    """Products in 16 bits with sides that are not multiples of 8."""
    if data.capability is None:
        return None
    found = [
        p
        for p in data.products
        if p.dtype in HALF and min(p.m, p.n, p.k) >= LARGE and (p.n % ALIGNED or p.k % ALIGNED or p.m % ALIGNED)
    ]
    seconds = sum(p.seconds for p in found)
    aligned = [p for p in data.products if p.dtype in HALF and p not in found and min(p.m, p.n, p.k) >= LARGE and p.seconds > 0]
    if not found or seconds <= 0:
        return None
    rate = sum(p.flop * p.count for p in found) / seconds
    best = sum(p.flop * p.count for p in aligned) / sum(p.seconds for p in aligned) if aligned else UNKNOWN_GAIN * rate
    sides = sorted({s for p in found for s in (p.m, p.n, p.k) if s % ALIGNED}, reverse=True)[:3]
    return Finding(
        "odd sizes",
        "Sides of products are no multiples of 8",
        seconds * max(1 - rate / best, 0.0),
        "medium" if aligned else "low",
        _evidence(found, data),
        tuple(f"{s} -> {-(-s // 64) * 64}  # vocabulary or width, padded to a multiple of 64" for s in sides),
    )


def nchw(data: ProfileData) -> Finding | None:
    """Convolutions in half precision that transpose their tensors to channels-last first."""
    turned = _kernels(data, lambda n: "nchwToNhwc" in n or "nhwcToNchw" in n)
    if data.trace is None or not turned.any():
        return None
    seconds = data.kernel_seconds(turned)
    row = int(data.kernels[turned][0])
    return Finding(
        "NCHW convolutions",
        "Convolutions change their tensors' layout before and after",
        seconds,
        "high",
        (Evidence(data.trace.text(row)[:60], data.where(float(data.trace.start_s[row])), turned.sum() / data.n_steps, seconds),),
        ("model = model.to(memory_format=torch.channels_last)", "images = images.to(memory_format=torch.channels_last)"),
    )


def _kernels(data: ProfileData, matches: Callable[[str], bool]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if data.trace is None:
        return np.zeros(0, dtype=bool)
    return data.trace.named(matches)[data.kernels]


def _gain(data: ProfileData, before: str, after: str) -> float:
    """How many times faster products are, by the data sheet."""
    peaks = data.device.peak_flop_per_s or {}
    if before in peaks and after in peaks and peaks[before] > 0:
        return max(peaks[after] / peaks[before], 1.0)
    return UNKNOWN_GAIN


def _confidence(data: ProfileData) -> Confidence:
    return "medium" if data.device.peak_flop_per_s else "low"


def _evidence(products: Sequence[Product], data: ProfileData) -> tuple[Evidence, ...]:
    said = [Evidence(f"{p.op} {p.words} in {p.dtype}", data.where(p.first_s), p.count, p.seconds) for p in products[:3]]
    rest = list(products[3:])
    if rest:
        said.append(
            Evidence(f"and {len(rest)} more shapes", count=sum(p.count for p in rest), seconds=sum(p.seconds for p in rest))
        )
    return tuple(said)
