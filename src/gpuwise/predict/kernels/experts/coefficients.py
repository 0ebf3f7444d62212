"""The fitted coefficients of a fused expert layer on one accelerator, with the log-normal widths of their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import UnknownNameError, UnsupportedFormatError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.predict.coefficients import load_arrays, load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels import boosted
from gpuwise.predict.kernels.clock import sustained_fraction
from gpuwise.predict.kernels.experts.loads import Loads
from gpuwise.predict.kernels.experts.physics import FIELDS, Format, PhysicalCoefficients
from gpuwise.predict.kernels.gemm.coefficients import NEAREST
from gpuwise.predict.kernels.gemm.physics import Device, device_of

F64 = NDArray[np.float64]

_SCALED_FP4 = 0.5 + 1.0 / 16.0
_MXFP4 = 0.5 + 1.0 / 32.0
FORMATS: dict[str, tuple[tuple[str, ...], Format]] = {
    "bf16": (("bf16",), Format(2, 2)),
    "fp16": (("fp16",), Format(2, 2)),
    "fp8": (("fp8",), Format(1, 1)),
    "fp8_block": (("fp8",), Format(1, 1)),
    "mxfp8": (("mxfp8",), Format(1, 1)),
    "nvfp4": (("nvfp4",), Format(_SCALED_FP4, _SCALED_FP4)),
    "int4_wo": (("bf16", "fp16"), Format(2, 0.5 + 2.0 / 128.0)),
    "w4a16_mxfp4": (("bf16",), Format(2, _MXFP4)),
    "w4a8_mxfp4_mxfp8": (("mxfp8", "fp8"), Format(1, _MXFP4)),
    "tf32": (("tf32",), Format(4, 4)),
    "fp32": (("fp32",), Format(4, 4)),
}
"""Catalogue dtypes whose peak applies (the first one present counts) and bytes per element inside the
products."""
SAME_KERNELS = {"fp16": "bf16", "tf32": "bf16", "fp32": "bf16", "mxfp8": "fp8"}
"""Formats without measurements, with the format whose coefficients they take."""
PREFERRED = (
    "sglang_flashinfer_trtllm_moe",
    "vllm_modeloptfp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic",
    "moe_torch_flow_cutlass",
    "sglang_fused_moe_triton",
    "sglang_marlin_moe",
)
"""Default kernels, best first; then the one measured with most rows."""
DURATION_EDGES_S = np.array([5e-5, 2e-4, 1e-3])


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Coefficients of one kernel and format on one accelerator. ``trees`` is None if no correction was fitted."""

    form: Format
    device: Device
    physics: PhysicalCoefficients
    trees: boosted.Trees | None
    reference_units: float
    basis: Basis
    sigma: F64
    kernel: str


def duration_class(time_s: F64) -> NDArray[np.intp]:
    """Index into ``Coefficients.sigma`` [R] of times in seconds [R]."""
    return np.searchsorted(DURATION_EDGES_S, time_s)


def coefficients_of(accelerator: Accelerator, dtype: str, kernel: str | None = None) -> Coefficients:
    """The shipped coefficients of ``kernel``, or of the preferred kernel of ``dtype``.

    Raises UnknownNameError for a dtype or kernel, UnsupportedFormatError when the accelerator has no rate for the dtype.
    """
    key = (accelerator.id, dtype, kernel)
    entry = _CACHE.get(key)
    if entry is None or entry[0] is not accelerator:
        entry = _CACHE[key] = (
            accelerator,
            build(accelerator, dtype, kernel, load_json("moe"), load_arrays("moe")),
        )
    return entry[1]


_CACHE: dict[tuple[str, str, str | None], tuple[Accelerator, Coefficients]] = {}


def build(
    accelerator: Accelerator,
    dtype: str,
    kernel: str | None,
    document: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
) -> Coefficients:
    """The coefficients in ``document`` and ``arrays`` (the shipped ones, or trial ones while fitting)."""
    device, form = format_on(accelerator, dtype)
    key = SAME_KERNELS.get(dtype, dtype)
    kernels: Mapping[str, Mapping[str, Any]] = document["physics"][key]
    family = accelerator.family
    chosen, source = _kernel(kernels, kernel, family)
    family_physics = kernels[chosen].get(family)
    measured = family_physics is not None and accelerator.id in family_physics["devices"] and key == dtype
    basis: Basis = "fitted" if measured else "derived" if family_physics else "specified"
    physics = {f: float(kernels[chosen][source][f]) for f in FIELDS}
    if family_physics is None:
        pace = _pace(accelerator, dtype, kernels[chosen][source]["devices"])
        physics["math_efficiency"] = min(physics["math_efficiency"] * pace, 1.0)
    sigma = document["log_sigma"]
    widths = sigma["fitted"].get(f"{key}/{chosen}/{accelerator.id}", sigma["unseen_shape"]) if measured else sigma[basis]
    return Coefficients(
        form,
        device,
        PhysicalCoefficients(**physics),
        boosted.unpack(f"{key}/{chosen}/{family}", arrays) if family_physics else None,
        float(document["reference_units"].get(family, device.units)),
        basis,
        np.array(widths),
        chosen,
    )


def format_on(accelerator: Accelerator, dtype: str) -> tuple[Device, Format]:
    """The device at the rate of ``dtype`` and the bytes per element of its products.

    Raises UnknownNameError, UnsupportedFormatError.
    """
    if dtype not in FORMATS:
        raise UnknownNameError("expert layer dtype", dtype, FORMATS)
    dtypes, form = FORMATS[dtype]
    for name in dtypes:
        if name in accelerator.peak_flop_per_s:
            return device_of(accelerator, name), form
    have = ", ".join(accelerator.peak_flop_per_s)
    raise UnsupportedFormatError(
        f"no {dtypes[0]} rate for accelerator",
        f"{accelerator.name} has no published dense {dtypes[0]} rate, which {dtype} expert layers need",
        hint=f"it has {have}",
    )


def _pace(accelerator: Accelerator, dtype: str, measured: Sequence[str]) -> float:
    """Sustained share of boost of ``accelerator`` over that of the ``measured`` devices of another family: their share of
    the peak holds what their power limit took (L40S, 350 W: a quarter), which is not this accelerator's."""
    catalogue = accelerators()
    sustained = _sustained(accelerator, dtype)
    measured_shares = [x for i in measured if i in catalogue and (x := _sustained(catalogue[i], dtype)) is not None]
    return sustained / (sum(measured_shares) / len(measured_shares)) if sustained is not None and measured_shares else 1.0


def _sustained(accelerator: Accelerator, dtype: str) -> float | None:
    """Share of the boost clock that large products in ``dtype`` hold; None where the accelerator has no rate for them."""
    rate = next((d for d in FORMATS[dtype][0] if d in accelerator.peak_flop_per_s), None)
    return None if rate is None else float(sustained_fraction(accelerator, _BUSY, rate))


_BUSY = 0.92
"""Share of the peak at boost that large products reach where power does not hold them back (H100, bf16)."""


def _kernel(kernels: Mapping[str, Mapping[str, Any]], kernel: str | None, family: str) -> tuple[str, str]:
    """The kernel and the family to take its coefficients from."""
    if kernel is not None and kernel not in kernels:
        kernel = _alike(kernel, kernels)
    order = [kernel] if kernel else _by_preference(kernels)
    for nearest in (family, *NEAREST.get(family, ())):
        for name in order:
            if nearest in kernels[name]:
                return name, nearest
    return order[0], next(iter(kernels[order[0]]))


def _alike(kernel: str, kernels: Mapping[str, Mapping[str, Any]]) -> str | None:
    """A measured kernel built from the same parts as an unmeasured one; None when no part is shared."""
    parts = set(kernel.lower().split("_"))
    shared = {name: len(parts & set(name.split("_"))) for name in kernels}
    best = max(_by_preference(kernels), key=lambda name: shared[name])
    return best if shared[best] >= _SHARED_PARTS else None


_SHARED_PARTS = 2


def _by_preference(kernels: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of ``kernels``: those of ``PREFERRED`` in its order, then the others by measured rows, most first."""
    rows = {name: sum(int(f["rows"]) for f in families.values()) for name, families in kernels.items()}
    first = [name for name in PREFERRED if name in kernels]
    return first + sorted((n for n in kernels if n not in first), key=lambda n: -rows[n])


def features(
    tokens: F64,
    top_k: F64,
    n_experts: F64,
    ep: F64,
    hidden: F64,
    ffn: F64,
    wide: F64,
    loads: Loads,
    units: float,
) -> F64:
    """Inputs of the correction trees [F, R]: loads of the rank's experts, widths, waves on the reference device."""
    routed, active = loads.routed, loads.active
    most = loads.tokens.max(axis=0)
    columns = [
        np.log2(tokens),
        np.log2(routed),
        np.log2(active),
        np.log2(routed / active),
        np.log2(most * active / routed),
        np.log2(active * hidden * ffn),
        np.log2(routed * hidden * ffn),
        np.log2(n_experts / ep),
        np.log2(ep),
        wide,
        np.log2(tokens * ep / n_experts),
        np.log2(tokens / n_experts),
    ]
    for tile_m in (16, 64, 128):
        blocks = (loads.experts * np.ceil(loads.tokens / tile_m)).sum(axis=0)
        for width in (wide * ffn, hidden):
            columns.append(np.log2(blocks * np.ceil(width / 128.0) / units))
    return np.stack(columns)
