"""Device time of captured operations by family: the form that is fitted on whole networks.

For one launch of an operation with FLOP ``F``, bytes moved ``Q`` and ``k`` kernels, on a card with matrix rate ``P`` and
bandwidth ``B``:

    t = sqrt(t_c^2 + t_m^2) + t_l + k l
    t_c = F p / (P e_f n/(n + n_0) a c)      t_m = r_f Q (1 - h) / (B b_f)      h = min(c_2 L2 / Q, 0.9)

``p`` is the padding of the two matrix dimensions to 16 bytes, ``n`` the narrowest of the product's dimensions (for a
convolution: reduction, channels out), ``a`` a factor of the architecture, ``c`` the clock held under the power limit
(:mod:`gpuwise.predict.clock`), ``r_f`` how often a family really passes over its tensors, ``h`` the share that
the last-level cache still holds from the operation before. ``t_l`` is the change of
layout of a convolution whose images are not channels-last: its tensors read and written once more, in part. Compiled
steps move less between pointwise operations (``fused``) and keep convolutions channels-last. A step takes the larger of
the device's sum and the host's time for its calls. Constants: ``coefficients/captured_kernels.json``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.accelerators import Accelerator
from gpuwise.predict.clock import sustained_fraction
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.workload.captured import Capture, Signature
from gpuwise.workload.optable import Kind

F64 = NDArray[np.float64]
FAMILIES = (
    "host", "convolution", "convolution_backward", "grouped", "depthwise", "depthwise_backward", "product", "attention",
    "batch_norm", "batch_norm_backward", "norm", "cast", "relayout", "reduction", "optimizer", "pointwise",
)  # fmt: skip
"""What constants are kept for; ``pointwise`` is everything else that waits for memory."""
_INDEX = {name: i for i, name in enumerate(FAMILIES)}
_COMPUTES = np.array([n in ("convolution", "convolution_backward", "grouped", "product", "attention") for n in FAMILIES])
_FUSES = np.array([n in ("batch_norm", "batch_norm_backward", "norm", "cast", "relayout", "pointwise") for n in FAMILIES])
_CONVOLVES = np.array([n in ("convolution", "convolution_backward", "grouped") for n in FAMILIES])
_RELAYOUT = frozenset({"clone", "copy_", "cat", "roll", "constant_pad_nd", "index", "stack", "im2col", "col2im", "_to_copy"})
_REDUCTION = ("mean", "sum", "amax", "amin", "max", "min", "argmax", "var", "norm", "linalg_vector_norm")
ALIGNED_ELEMENTS = 8.0
"""16 bytes of half precision: tensor-core kernels load whole vectors (cuBLAS, cuDNN alignment rules)."""


MOST_HIT = 0.9
"""A cache never saves everything: results are written back."""


@dataclass(frozen=True, slots=True)
class Features:
    """What the form needs of each signature [S]."""

    family: NDArray[np.int64]
    flop: F64
    moved: F64
    kernels: F64
    padding: F64
    narrow: F64
    layout: F64
    """1 where a convolution reads images that are not channels-last."""
    single: NDArray[np.bool_]
    """Computes in fp32 (or TF32)."""
    product: NDArray[np.bool_]
    """A matrix product or attention (not a convolution): TF32 has a switch of its own."""


def network_seconds(
    signatures: Sequence[Signature], accelerator: Accelerator, *, matmul_tf32: bool
) -> tuple[F64, NDArray[np.bool_]]:
    """Device seconds of one call of each signature [S], and for which of them this form is the better one to believe.

    On architectures of the measured cards that is every kernel. Elsewhere it is convolutions and batch norm, which
    no table of single kernels in half precision covers; products and attention stand on their own measurements there.
    A rate above the published one, as GeForce cards of the fit show it, is not carried to other cards of the family.
    """
    constants: dict[str, Any] = load_json("captured_kernels")
    ours = _covered(accelerator, constants)
    if not ours and constants["architecture"].get(accelerator.family, 1.0) > 1.0:
        constants = constants | {"architecture": {}}
    f = features(signatures)
    convolves = np.array([n.startswith(("convolution", "grouped", "depthwise", "batch_norm")) for n in FAMILIES])[f.family]
    believed = (f.family != _INDEX["host"]) & (np.ones(len(convolves), dtype=bool) if ours else convolves)
    return seconds(f, accelerator, constants, matmul_tf32=matmul_tf32), believed


_GEFORCE = re.compile(r"RTX [2345]0\d\d\b")


def _covered(accelerator: Accelerator, constants: Mapping[str, Any]) -> bool:
    """Whether the card is of an architecture of the measured ones, and no rate is carried over that it has not."""
    share = constants["architecture"].get(accelerator.family)
    return share is not None and (share <= 1.0 or bool(_GEFORCE.match(accelerator.name)))


def compiled_device_seconds(capture: Capture, accelerator: Accelerator, step: int) -> float | None:
    """Device seconds of a compiled step as measured networks have them; None for a card that none of them stands for."""
    constants = load_json("captured_kernels")
    if not _covered(accelerator, constants):
        return None
    return step_seconds(capture, accelerator, step=step, compiled=True, model=constants).device_s


class StepSeconds(NamedTuple):
    """Device and host seconds of a step; ``time_s`` is the larger."""

    device_s: float
    host_s: float
    log_sigma: float
    basis: Basis

    @property
    def time_s(self) -> float:
        return max(self.device_s, self.host_s)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a measured step of one card says: its time over the predicted one, for every other step on that card."""

    accelerator_id: str
    factor: float

    def as_dict(self) -> dict[str, object]:
        return {"accelerator_id": self.accelerator_id, "factor": self.factor}

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Calibration:
        """Raises InputError for anything but a card's name and a positive factor."""
        name, factor = document.get("accelerator_id"), document.get("factor")
        if not isinstance(name, str) or not isinstance(factor, (int, float)) or not 0 < factor < math.inf:
            raise InputError("not a calibration", hint='it holds "accelerator_id" and a positive "factor"')
        return Calibration(name, float(factor))


def family_of(s: Signature) -> str:
    """One of :data:`FAMILIES`."""
    op = s.op.split(".")[1]
    if s.kind == Kind.CONVOLUTION:
        backward = "backward" in op
        weight = s.inputs[2 if backward else 1]
        groups = _integer(s.attribute("groups", 1))
        if groups > 1 and weight.shape[1] == 1:
            return "depthwise_backward" if backward else "depthwise"
        if groups > 1:
            return "grouped"
        return "convolution_backward" if backward else "convolution"
    if s.kind == Kind.ATTENTION:
        return "attention"
    if s.flop > 0:
        return "product"
    if s.kind == Kind.HOST or not s.n_kernels:
        return "host"
    return _waits_for_memory(s, op)


def _waits_for_memory(s: Signature, op: str) -> str:
    if "batch_norm" in op:
        return "batch_norm_backward" if "backward" in op else "batch_norm"
    if "layer_norm" in op or "group_norm" in op or "rms_norm" in op or "softmax" in op:
        return "norm"
    if op in _RELAYOUT:
        same = bool(s.inputs) and bool(s.outputs) and s.inputs[0].stride == s.outputs[0].stride
        return "cast" if op in ("_to_copy", "copy_", "clone") and same else "relayout"
    if s.kind == Kind.OPTIMIZER or op.startswith("_foreach"):
        return "optimizer"
    return "reduction" if op in _REDUCTION else "pointwise"


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 1


def features(signatures: Sequence[Signature]) -> Features:
    """Columns of ``signatures``."""
    named = [family_of(s) for s in signatures]
    family = np.array([_INDEX[name] for name in named], dtype=np.int64)
    shapes = [_shape(s, name) for s, name in zip(signatures, named, strict=True)]
    formats = [_format(s) for s in signatures]
    return Features(
        family=family,
        flop=np.array([s.flop for s in signatures], dtype=np.float64),
        moved=np.array([s.bytes_read + s.bytes_written for s in signatures], dtype=np.float64),
        kernels=np.array([s.n_kernels for s in signatures], dtype=np.float64),
        padding=np.array([p for p, _, _ in shapes], dtype=np.float64),
        narrow=np.array([n for _, n, _ in shapes], dtype=np.float64),
        layout=np.array([c for _, _, c in shapes], dtype=np.float64),
        single=np.array([f in ("fp32", "fp64") for f in formats], dtype=bool),
        product=np.array([name in ("product", "attention") for name in named], dtype=bool),
    )


def _format(s: Signature) -> str:
    floats = [t.dtype for t in s.inputs if t.dtype.startswith(("fp", "bf"))]
    if "addmm" in s.op and len(floats) > 1:
        return floats[1]
    return floats[0] if floats else "fp32"


def _padded(n: float) -> float:
    return math.ceil(n / ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS / max(n, 1.0)


def _shape(s: Signature, family: str) -> tuple[float, float, float]:
    """(padding, narrowest dimension, layout is not channels-last); (1, 0, 0) where none of it matters."""
    if family in ("convolution", "convolution_backward", "grouped"):
        backward = family == "convolution_backward" or "backward" in s.op
        image, weight = (s.inputs[1], s.inputs[2]) if backward else (s.inputs[0], s.inputs[1])
        groups = _integer(s.attribute("groups", 1))
        c_in, c_out = float(weight.shape[1]), weight.shape[0] / groups
        narrow = min(c_in * math.prod(weight.shape[2:]), c_out)
        last = len(image.stride) > 1 and image.stride[1] == 1 and image.shape[1] > 1
        return _padded(c_in) * _padded(c_out), narrow, 0.0 if last else 1.0
    if family == "product" and s.outputs and len(s.outputs[0].shape) > 1:
        m, n = s.outputs[0].shape[-2:]
        k = s.flop / 2.0 / max(math.prod(s.outputs[0].shape), 1)
        return _padded(n) * _padded(k), float(min(m, n, k)), 0.0
    return 1.0, 0.0, 0.0


def seconds(
    f: Features, accelerator: Accelerator, model: Mapping[str, Any], *, compiled: bool = False, matmul_tf32: bool = False
) -> F64:
    """Device seconds of one call of each signature [S] under the constants ``model``.

    Raises UnpredictableError when the catalogue has no bandwidth or rate for the accelerator.
    """
    bandwidth = accelerator.memory_bandwidth_bytes_per_s
    if not bandwidth:
        raise UnpredictableError("no bandwidth for accelerator", f"the catalogue has no bandwidth for {accelerator.name}")
    efficiency, share, passes = (
        np.array([model[name].get(n, model[name]["pointwise"]) for n in FAMILIES], dtype=np.float64)
        for name in ("efficiency", "bandwidth", "passes")
    )
    rate = _rates(f, accelerator, matmul_tf32) * model["architecture"].get(accelerator.family, 1.0)
    narrow = np.where(f.narrow > 0, f.narrow / (f.narrow + model["half_rate_at"]), 1.0)
    at_boost = efficiency[f.family] * narrow
    held = np.asarray(sustained_fraction(accelerator, np.minimum(at_boost, 1.0), "fp16"))
    compute = np.where(_COMPUTES[f.family], f.flop * f.padding / (rate * at_boost * held), 0.0)
    moved = f.moved * passes[f.family]
    if compiled:
        moved = np.where(_FUSES[f.family], moved * model["fused"], moved)
    hit = np.minimum(model["cache_share"] * (accelerator.l2_bytes or 0.0) / np.maximum(f.moved, 1.0), MOST_HIT)
    memory = moved * (1.0 - hit) / (bandwidth * share[f.family])
    layout = np.where(_CONVOLVES[f.family], f.layout * model["relayouts"] * 2.0 * f.moved / (bandwidth * share[-1]), 0.0)
    launches = f.kernels * model["launch_s"] * (model["fused"] if compiled else 1.0)
    return np.hypot(compute, memory) + (0.0 if compiled else 1.0) * layout + launches


def _rates(f: Features, accelerator: Accelerator, matmul_tf32: bool) -> F64:
    peaks = accelerator.peak_flop_per_s
    vector = peaks.get("fp32")
    half = max(peaks.get("fp16") or 0.0, peaks.get("bf16") or 0.0, vector or 0.0)
    if not vector or not half:
        raise UnpredictableError("no rate for accelerator", f"the catalogue has no fp32 or fp16 rate for {accelerator.name}")
    tf32 = peaks.get("tf32") or vector
    return np.where(f.single, np.where(f.product & (not matmul_tf32), vector, tf32), half)


def step_seconds(
    capture: Capture, accelerator: Accelerator, *, step: int = -1, compiled: bool = False,
    calibration: Calibration | None = None, model: Mapping[str, Any] | None = None,
) -> StepSeconds:  # fmt: skip
    """Seconds of one captured step; ``calibration`` is that of a run on this very accelerator.

    Raises UnpredictableError for an accelerator without rates, InputError for another accelerator's calibration.
    """
    if calibration is not None and calibration.accelerator_id != accelerator.id:
        raise InputError(f"the calibration is of {calibration.accelerator_id}, not of {accelerator.id}")
    constants = model or load_json("captured_kernels")
    span = capture.steps[step]
    rows = capture.op_signature[span.first_op : span.end_op]
    count = np.bincount(rows, minlength=len(capture.signatures)).astype(np.float64)
    f = features(capture.signatures)
    each = seconds(f, accelerator, constants, compiled=compiled, matmul_tf32=capture.settings.matmul_tf32)
    host = len(rows) * constants["host_s"] * (constants["fused"] if compiled else 1.0)
    sigma: Mapping[str, float] = constants.get("log_sigma", {})
    known = accelerator.id in constants.get("measured", ())
    kind = "compiled" if compiled else "eager"
    width = sigma.get(kind, 0.2) if known else sigma.get("other_device", 0.25)
    basis: Basis = "fitted" if known else "derived" if accelerator.family in constants["architecture"] else "specified"
    if calibration is not None:
        width = sigma.get("calibrated", width)
    factor = 1.0 if calibration is None else calibration.factor
    return StepSeconds(factor * float((each * count).sum()), factor * float(host), float(width), basis)
