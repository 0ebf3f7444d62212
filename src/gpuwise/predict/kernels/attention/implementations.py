"""Selection of the measured kernel for an attention call: names, measured device, certainty.

Names a caller may give:

- None or ``flash``: forward and backward, what training code runs on this family (FlashAttention-2 on Ampere
  and Ada, -3 on
  Hopper, cuDNN on Blackwell: ``training``); decode, the family's usual engine kernel, smoothed.
  ``fa2``, ``fa3``, ``fa4``, ``cudnn``, ``triton``: that implementation, or the family's default where it has
  none. All of these obey the laws exactly (a bigger device, a causal mask, a window, a smaller call never
  cost more).
- ``engine:kernel`` (``vllm:vllm_flash_attn_fa3``, ``trtllm:torch_flow``, ``sglang:trtllm_mha`` ...): a
  serving engine's
  kernel as measured, with its irregularities and the cache write around it; :func:`serving_kernel` says which
  one an engine picks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.errors import UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_arrays, load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels.attention.features import Device, exp_per_clock
from gpuwise.predict.kernels.attention.net import Trees, unpack
from gpuwise.predict.kernels.clock import sustained_fraction

F64 = NDArray[np.float64]

IMPLEMENTATIONS = ("flash", "fa2", "fa3", "fa4", "cudnn", "triton")
_FP8 = ("fp8", "mxfp8", "nvfp4", "int8")
"""Formats whose attention runs on the fp8 kernels (a 4-bit product is not used inside attention)."""
_DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8", "int4")


def device_for(accelerator: Accelerator, dtype: str) -> Device | None:
    """The device at its specified clock, its matrix rate at the clock it sustains; None when units or clock
    are unknown.

    Raises UnpredictableError when it has no rate for ``dtype``.
    """
    rate = accelerator.peak("fp8" if dtype in _FP8 else dtype)
    if accelerator.compute_units is None or accelerator.boost_hz is None:
        return None
    clock_share = float(sustained_fraction(accelerator, 1.0, "fp8" if dtype in _FP8 else dtype))
    return _at_boost(accelerator, rate * clock_share)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A measured kernel to evaluate for a device."""

    phase: str
    """``forward`` or ``decode``."""
    name: str
    """Key of its coefficients: ``Hopper|vllm|vllm_flash_attn_fa3|bf16|bf16``."""
    device: Device
    gpu: float
    """Index of the family's measured device to use (a feature of the trees)."""
    provenance: str
    """How near the measurements are: ``device``, its ``family``, a ``relative`` family, or the ``specification`` alone."""
    basis: Basis
    q_bytes: float
    kv_bytes: float
    measured_device: Device
    """Device of the measurement: ``device`` itself, or its substitute."""


def dtype_bytes(dtype: str) -> float:
    """Bytes of one element. Raises UnknownNameError for a format no attention runs in."""
    if dtype not in _DTYPES:
        raise UnknownNameError("attention dtype", dtype, _DTYPES)
    return FORMAT_BYTES[dtype]


def arithmetic(dtype: str) -> str:
    """``bf16`` or ``fp8``: which measured kernels a format runs on."""
    return "fp8" if dtype in _FP8 else "bf16"


def coefficients() -> dict[str, Any]:
    """The family's document."""
    return load_json("attention")


def resolve(accelerator: Accelerator, phase: str, dtype: str, kv_dtype: str | None, source: str | None) -> Kernel | None:
    """The measured kernel for a call; None when no measured family is related to the accelerator.

    ``source`` is ``engine:kernel`` or None for the family's default. Raises UnpredictableError when the accelerator has no
    rate for ``dtype``, UnknownNameError for a kernel without measurements.
    """
    q_bytes, kv_bytes = max(dtype_bytes(dtype), 2.0), dtype_bytes(kv_dtype or dtype)
    nominal_rate = accelerator.peak("fp8" if dtype in _FP8 else dtype)
    document = coefficients()
    family, provenance = _family(document, accelerator)
    if family is None or accelerator.compute_units is None or accelerator.boost_hz is None:
        if source is not None:
            _check_source(document, source)
        return None
    kv_arithmetic = "fp8" if kv_bytes <= 1.0 else "bf16"
    name = _nearest(document, phase, family, source, arithmetic(dtype), kv_arithmetic)
    runs_in = name.split("|")[3]
    rate = accelerator.peak("bf16") if runs_in == "bf16" and dtype in _FP8 else nominal_rate
    donor, gpu = _donor(document, family, accelerator)
    device = _at_boost(accelerator, rate)
    measured = device
    basis: Basis = "fitted"
    if accelerator.id == donor:
        provenance = "device"
    else:
        device = device.at_matrix_rate(_relative_clock(accelerator, donor, dtype))
        stands_in = _catalogue_entry(donor)
        measured, basis = _at_boost(stands_in, stands_in.peak(runs_in)), "derived"
    return Kernel(phase, name, device, gpu, provenance, basis, q_bytes, kv_bytes, measured)


def _at_boost(accelerator: Accelerator, matrix_flop_per_s: float) -> Device:
    """The device at its specified clock; unit count and clock must be known."""
    assert accelerator.compute_units is not None
    assert accelerator.boost_hz is not None
    return Device(
        float(accelerator.compute_units),
        accelerator.boost_hz,
        matrix_flop_per_s,
        exp_per_clock(accelerator.compute_capability),
        accelerator.memory_bandwidth_bytes_per_s,
        accelerator.l2_bytes or 0.0,
    )


def _family(document: dict[str, Any], accelerator: Accelerator) -> tuple[str | None, str]:
    """The measured family used for the accelerator (None: no related family was measured), and its provenance."""
    if accelerator.family in document["families"]:
        return accelerator.family, "family"
    related: dict[str, str] = document["related"]
    return related.get(accelerator.family), "relative"


def _donor(document: dict[str, Any], family: str, accelerator: Accelerator) -> tuple[str, float]:
    """The measured device of the family nearest in 16-bit rate, and its number among them."""
    measured: list[dict[str, Any]] = document["families"][family]["measured"]
    rate = accelerator.peak_flop_per_s.get("bf16") or accelerator.peak_flop_per_s.get("fp16")

    def distance(i: int) -> tuple[bool, float]:
        away = abs(math.log(measured[i]["bf16_flop_per_s"] / rate)) if rate else 0.0
        return measured[i]["id"] != accelerator.id, away

    best = min(range(len(measured)), key=distance)
    return measured[best]["id"], float(best)


@cache
def _catalogue_entry(identity: str) -> Accelerator:
    from gpuwise.facts.hardware.accelerators import accelerators

    return accelerators()[identity]


def _relative_clock(accelerator: Accelerator, donor: str, dtype: str) -> float:
    """Sustained share of boost relative to the measured device's: power limits differ, kernels do not."""
    arithmetic_dtype = "fp8" if dtype in _FP8 else "bf16"
    mine, theirs = (
        float(sustained_fraction(a, 1.0, arithmetic_dtype if arithmetic_dtype in a.peak_flop_per_s else "fp16"))
        for a in (accelerator, _catalogue_entry(donor))
    )
    return mine / theirs


def _nearest(document: dict[str, Any], phase: str, family: str, source: str | None, dtype: str, kv: str) -> str:
    """The key of ``source`` in ``family``: with these formats, else with others, else the family's usual
    kernel."""
    measured: dict[str, Any] = document["kernels"][phase]
    if source is not None:
        _check_source(document, source)
    usual: dict[str, str] = document["families"][family]["usual"]
    for candidate in (source, usual.get(f"{phase}-{dtype}"), usual[phase]):
        for a, b in (
            (dtype, kv),
            (dtype, "bf16"),
            (dtype, "fp8"),
            ("bf16", kv),
            ("bf16", "bf16"),
            ("bf16", "fp8"),
            ("fp8", "fp8"),
        ):
            name = f"{family}|{(candidate or '').replace(':', '|')}|{a}|{b}"
            if name in measured:
                return name
    raise AssertionError(f"no {phase} kernel of {family}")  # the coefficient file always has the usual one


def _check_source(document: dict[str, Any], source: str) -> None:
    names = sorted({_source(k) for phase in document["kernels"].values() for k in phase})
    if source not in names:
        raise UnknownNameError("attention kernel", source, [*IMPLEMENTATIONS, *names])


def _source(name: str) -> str:
    _, engine, kernel, _, _ = name.split("|")
    return f"{engine}:{kernel}"


def serving_kernel(accelerator: Accelerator, engine: str, phase: str, kv_dtype: str = "bf16") -> str | None:
    """The kernel ``engine`` (vllm, sglang, trtllm) picks on this accelerator's family, as ``engine:kernel``.

    ``phase`` is ``forward`` or ``decode``. None when no related family was measured. Raises UnknownNameError
    for an engine without measurements.
    """
    document = coefficients()
    family, _ = _family(document, accelerator)
    engines = sorted({k.split("|")[1] for p in document["kernels"].values() for k in p})
    if engine not in engines:
        raise UnknownNameError("serving engine", engine, engines)
    if family is None:
        return None
    table: dict[str, str] = document["families"][family]["engines"].get(engine, {})
    kv_format = "fp8" if dtype_bytes(kv_dtype) <= 1.0 else "bf16"
    return table.get(f"{phase}-{kv_format}") or document["families"][family]["usual"][phase]


@cache
def network(phase: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of a kernel's network and its entry in the document."""
    entry = coefficients()["kernels"][phase][name]
    return unpack(load_arrays("attention")[f"{phase}_networks"][entry["row"]], coefficients()["features"][phase]), entry


@cache
def trees(phase: str, name: str) -> Trees:
    """The trees of a kernel."""
    entry = coefficients()["kernels"][phase][name]
    arrays = load_arrays("attention")
    part = slice(entry["trees"][0], entry["trees"][1])
    return Trees(arrays["tree_feature"][part], arrays["tree_cut"][part], arrays["tree_leaf"][part], entry["step"])


@cache
def edges(phase: str) -> list[F64]:
    """Bin edges of the trees' features."""
    arrays = load_arrays("attention")
    return np.split(arrays[f"{phase}_edges"], np.cumsum(arrays[f"{phase}_edge_counts"])[:-1])
