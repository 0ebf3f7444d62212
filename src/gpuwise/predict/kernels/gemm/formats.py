"""Implementations of a matrix product: the arithmetic they use and the bytes they move. One literal table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwise.errors import UnknownNameError, UnsupportedFormatError
from gpuwise.facts.hardware.accelerators import Accelerator


@dataclass(frozen=True, slots=True)
class Format:
    """Bytes per element of A, B and C as the kernel reads and writes them, and the shapes it is instantiated for."""

    a: float
    b: float
    c: float
    a_before_quantising: float = 0.0
    """Bytes per element of A if the measured kernel also quantised it; 0 if it did not."""
    smallest_tile: tuple[int, int] = (16, 64)
    """Rows and columns of C that a thread block makes at least."""
    splits_k: bool = True
    """Whether several blocks may share the reduction of one tile."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """How products of one format are multiplied: the rate, the bytes and the coefficients that apply."""

    math: tuple[str, ...]
    """Catalogue dtypes whose peak rate applies; the first one the accelerator has counts."""
    form: Format
    coefficients: str
    """Key of the fitted coefficients."""
    rate_share: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    """Share of the peak, by family, if the kernel uses an older generation's instructions."""


_SCALED_FP4 = 0.5 + 1.0 / 16.0
"""NVFP4: 4 bits and an 8-bit scale for every 16 elements."""
_MXFP4 = 0.5 + 1.0 / 32.0
"""MXFP4: 4 bits and an 8-bit scale for every 32 elements."""

AMPERE_INSTRUCTIONS_ON_HOPPER = 0.629
"""Share of the warp-group rate that ``mma.sync`` reaches on H100 (Luo et al. 2024, arXiv:2402.13499). TensorRT-LLM 1.0
multiplies int8 with int8 on compute capabilities 8.0 to 9.0 by the kernels of 8.0 (``int8_gemm_template.h``,
``dispatchToArch``)."""
_CUTLASS_FP8 = Format(1, 1, 2, 2, splits_k=False)

IMPLEMENTATIONS: dict[str, Implementation] = {
    "bf16": Implementation(("bf16",), Format(2, 2, 2), "bf16"),
    "fp16": Implementation(("fp16",), Format(2, 2, 2), "bf16"),
    "tf32": Implementation(("tf32",), Format(4, 4, 4), "bf16"),
    "fp32": Implementation(("fp32",), Format(4, 4, 4), "bf16"),
    "fp64": Implementation(("fp64",), Format(8, 8, 8), "bf16"),
    "fp8": Implementation(("fp8",), _CUTLASS_FP8, "fp8"),
    "fp8_gemm": Implementation(("fp8",), Format(1, 1, 2), "bf16"),
    "mxfp8": Implementation(("mxfp8",), _CUTLASS_FP8, "fp8"),
    "fp8_block": Implementation(("fp8",), _CUTLASS_FP8, "fp8_block"),
    "nvfp4": Implementation(("nvfp4",), Format(_SCALED_FP4, _SCALED_FP4, 2, 2, (128, 128), splits_k=False), "nvfp4"),
    "mxfp4": Implementation(("mxfp4",), Format(_MXFP4, _MXFP4, 2, 2, (128, 128), splits_k=False), "nvfp4"),
    "int8": Implementation(("int8",), Format(1, 1, 2, splits_k=False), "sq"),
    "sq": Implementation(("int8",), Format(1, 1, 2, splits_k=False), "sq", {"Hopper": AMPERE_INSTRUCTIONS_ON_HOPPER}),
    "int8_wo": Implementation(("fp16", "bf16"), Format(2, 1, 2), "int8_wo"),
    "int8_wo_sglang": Implementation(("int8",), Format(1, 1, 2, 2, splits_k=False), "int8_wo_sglang"),
    "int4_wo": Implementation(("fp16", "bf16"), Format(2, 0.5 + 2.0 / 128.0, 2), "int4_wo"),
}
"""GEMM implementations by dtype or kernel name. ``fp8_gemm`` is the bare product of library kernels (A comes in fp8), as
training does it: it is in no table, so it takes the 16-bit kernels' coefficients. ``fp8`` scales per tensor or token
(CUTLASS), ``fp8_block`` per 128x128 block (DeepGEMM, CUTLASS, Triton); ``sq`` is SmoothQuant W8A8; ``_wo`` quantise the
weights only (``int4_wo`` in groups of 128): TensorRT-LLM's kernels. What SGLang runs under that name turns A into int8 first
(it exceeds the 16-bit peak of H100) and takes three to four times as long as 16-bit weights, so it is used only if a row names
it."""

WIDER = {"int8_wo": "bf16", "int4_wo": "bf16"}
"""Weight-only formats, and the format an engine multiplies in when the narrow kernel would be slower."""

ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float8": "fp8",
    "fp8_static": "fp8",
}


def implementation_name(dtype: str, implementation: str | None) -> str:
    """The key of :data:`IMPLEMENTATIONS`. Raises UnknownNameError."""
    key = implementation or dtype
    name = ALIASES.get(key, key)
    if name not in IMPLEMENTATIONS:
        raise UnknownNameError("matrix product dtype or implementation", key, IMPLEMENTATIONS)
    return name


def rate_share(accelerator: Accelerator, name: str) -> float:
    """Share of the peak in :func:`math_dtype` that ``name``'s instructions can reach on ``accelerator``."""
    return IMPLEMENTATIONS[name].rate_share.get(accelerator.family, 1.0)


def math_dtype(accelerator: Accelerator, name: str) -> str:
    """The catalogue dtype whose peak limits ``name`` on ``accelerator``. Raises UnsupportedFormatError when it
    has none."""
    dtypes = IMPLEMENTATIONS[name].math
    for dtype in dtypes:
        if dtype in accelerator.peak_flop_per_s:
            return dtype
    have = ", ".join(accelerator.peak_flop_per_s)
    raise UnsupportedFormatError(
        f"no {dtypes[0]} rate for accelerator",
        f"{accelerator.name} has no published dense {dtypes[0]} rate, which {name} products need",
        hint=f"it has {have}",
    )
