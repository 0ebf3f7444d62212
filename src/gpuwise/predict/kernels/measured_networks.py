"""Device time of captured operations by family: the form that is fitted on whole networks.

For one launch of an operation with FLOP ``F``, bytes moved ``Q`` and ``k`` kernels, on a card with matrix rate ``P``,
vector rate ``V`` and bandwidth ``B``:

    t = F p / (P e_f n/(n + n_0) a_P c s) + F / (V v_f) + r_f Q (1 - h) / (B a_B b_f) + t_l + k l
    h = min(c_2 L2 / Q, 0.9)

The first term is of products, convolutions and attention, the second of depthwise convolutions. Arithmetic and traffic
of a convolution add up (fitted as a power of the two's powers, the exponent ran to 1); those of a product or attention
overlap: the root of the sum of squares stands for their sum there. ``p`` is the padding of the two matrix dimensions to
16 bytes, ``n`` the narrowest of the product's dimensions (for a convolution: reduction, channels out), ``a_P`` and
``a_B`` factors of the architecture, ``c`` the clock held under the power limit (:mod:`gpuwise.predict.kernels.clock`), ``s`` how
channels-last images, the compiler or libraries before torch 2 change a convolution, ``r_f`` how often a family really
passes over its tensors, ``h`` the share that the last-level cache still holds from the operation before. ``t_l`` is the
change of layout of a convolution whose images are not channels-last: its tensors read and written once more, in part.
Compiled steps move less between operations that fuse (``fused``, by family) and keep convolutions channels-last. A step
takes the larger of the device's sum and the host's time for its calls. Constants: ``coefficients/captured_kernels.json``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator, architecture_key
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.clock import sustained_fraction
from gpuwise.workload.capture.record.capture import Capture, Settings, Signature
from gpuwise.workload.step import Kind

F64 = NDArray[np.float64]
FAMILIES = (
    "host",
    "convolution",
    "convolution_backward",
    "grouped",
    "depthwise",
    "depthwise_backward",
    "product",
    "attention",
    "batch_norm",
    "batch_norm_backward",
    "norm",
    "cast",
    "relayout",
    "reduction",
    "optimizer",
    "pointwise",
)
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


def conditions_of(settings: Settings, *, compiled: bool = False) -> Conditions:
    """What the settings of a capture say of the software."""
    return Conditions(compiled, settings.torch_version.startswith("1."), settings.matmul_tf32)


def network_seconds(
    signatures: Sequence[Signature], accelerator: Accelerator, settings: Settings
) -> tuple[F64, NDArray[np.bool_]]:
    """Device seconds of one call of each signature [S], and for which of them this form is the better one to believe.

    On architectures of the measured cards that is every kernel. Elsewhere it is convolutions and batch norm, which
    no table of single kernels in half precision covers; products and attention stand on their own measurements there.
    """
    constants: dict[str, Any] = load_json("captured_kernels")
    ours = _covered(accelerator, constants)
    f = features(signatures)
    convolves = np.array([n.startswith(("convolution", "grouped", "depthwise", "batch_norm")) for n in FAMILIES])[f.family]
    believed = (f.family != _INDEX["host"]) & (np.ones(len(convolves), dtype=bool) if ours else convolves)
    return seconds(f, accelerator, constants, conditions_of(settings)), believed


def network_log_sigma(accelerator: Accelerator, *, compiled: bool = False) -> float | None:
    """Spread of log(measured / predicted) of whole steps on ``accelerator``; None where no measured network stands for it."""
    constants: dict[str, Any] = load_json("captured_kernels")
    if not _covered(accelerator, constants):
        return None
    stack = "compiled" if compiled else "eager"
    return float(constants["log_sigma"][stack if accelerator.id in constants["measured"] else "other_device"])


_GEFORCE = re.compile(r"RTX [2345]0\d\d\b")


def _covered(accelerator: Accelerator, constants: Mapping[str, Any]) -> bool:
    """Whether measured networks stand for the card: it is one of theirs, or a GeForce of their architectures.

    GeForce cards clock higher than their published boost; boards for workstations and servers of the same architecture do not.
    """
    if accelerator.id in constants.get("measured", ()):
        return True
    key = architecture_key(accelerator.compute_capability, accelerator.family)
    return key in constants["architecture"]["rate"] and bool(_GEFORCE.search(accelerator.name))


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

    @property
    def time_s(self) -> float:
        return max(self.device_s, self.host_s)


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


class Conditions(NamedTuple):
    """What is around the kernels: ``compiled`` by Inductor, libraries of torch 1 (``before_torch_2``), TF32 products."""

    compiled: bool = False
    before_torch_2: bool = False
    matmul_tf32: bool = False


def seconds(f: Features, accelerator: Accelerator, model: Mapping[str, Any], conditions: Conditions | None = None) -> F64:
    """Device seconds of one call of each signature [S] under the constants ``model``.

    Raises UnpredictableError when the catalogue has no bandwidth or rate for the accelerator.
    """
    if not accelerator.memory_bandwidth_bytes_per_s:
        raise UnpredictableError("no bandwidth for accelerator", f"the catalogue has no bandwidth for {accelerator.name}")
    around = conditions or Conditions()
    compiled = around.compiled
    bandwidth = accelerator.memory_bandwidth_bytes_per_s * _of_architecture(model, "bandwidth", accelerator)
    share = _by_family(model["bandwidth"])[f.family]
    arithmetic = _arithmetic(f, accelerator, model, around)
    moved = f.moved * _by_family(model["passes"])[f.family]
    if compiled:
        moved = moved * np.where(_FUSES[f.family], _by_family(model["fused"])[f.family], 1.0)
    hit = np.minimum(model["cache_share"] * (accelerator.l2_bytes or 0.0) / np.maximum(f.moved, 1.0), MOST_HIT)
    memory = moved * (1.0 - hit) / (bandwidth * share)
    if around.before_torch_2:
        memory = memory * model["before_torch_2"]["memory"]
    launches = f.kernels * model["launch_s"] * (model["fused"]["launch"] if compiled else 1.0)
    both = np.where(f.product, np.hypot(arithmetic, memory), arithmetic + memory) + launches
    if compiled:
        return both
    copies = f.layout * model["relayouts"] * 2.0 * f.moved / (bandwidth * model["bandwidth"]["pointwise"])
    return both + np.where(_CONVOLVES[f.family], copies, 0.0)


def _of_architecture(model: Mapping[str, Any], what: str, accelerator: Accelerator) -> float:
    table: Mapping[str, float] = model["architecture"][what]
    if not _covered(accelerator, model):
        return table["other"]
    return table.get(architecture_key(accelerator.compute_capability, accelerator.family), table["other"])


def _by_family(constants: Mapping[str, float]) -> F64:
    return np.array([constants.get(n, constants["pointwise"]) for n in FAMILIES], dtype=np.float64)


def _arithmetic(f: Features, accelerator: Accelerator, model: Mapping[str, Any], conditions: Conditions) -> F64:
    """Seconds of the multiply-adds of products, convolutions and attention, and of depthwise convolutions."""
    rate = _rates(f, accelerator, conditions.matmul_tf32) * _of_architecture(model, "rate", accelerator)
    narrow = np.where(f.narrow > 0, f.narrow / (f.narrow + model["half_rate_at"]), 1.0)
    share = _by_family(model["efficiency"])[f.family] * narrow
    held = np.asarray(sustained_fraction(accelerator, np.minimum(share, 1.0), "fp16"))
    last = np.full(f.layout.shape, True) if conditions.compiled else f.layout == 0
    convolves, grouped = _CONVOLVES[f.family], f.family == _INDEX["grouped"]
    share = share * np.where(convolves & last, model["channels_last"]["convolution"], 1.0)
    share = share * np.where(grouped & last, model["channels_last"]["grouped"], 1.0)
    if conditions.compiled:
        share = share * np.where(convolves, model["compiled"]["convolution"], 1.0)
    if conditions.before_torch_2:
        share = share * np.where(convolves, model["before_torch_2"]["convolution"], 1.0)
    wide = np.where(_COMPUTES[f.family], f.flop * f.padding / (rate * share * held), 0.0)
    vector = np.zeros(len(f.flop))
    for name, efficiency in model["vector_efficiency"].items():
        each = f.flop / (accelerator.peak("fp32") * efficiency)
        vector = np.where(f.family == _INDEX[name], each, vector)
    return wide + vector * (model["compiled"]["depthwise"] if conditions.compiled else 1.0)


def _rates(f: Features, accelerator: Accelerator, matmul_tf32: bool) -> F64:
    peaks = accelerator.peak_flop_per_s
    vector = peaks.get("fp32")
    half = max(peaks.get("fp16") or 0.0, peaks.get("bf16") or 0.0, vector or 0.0)
    if not vector or not half:
        raise UnpredictableError("no rate for accelerator", f"the catalogue has no fp32 or fp16 rate for {accelerator.name}")
    tf32 = peaks.get("tf32") or vector
    return np.where(f.single, np.where(f.product & (not matmul_tf32), vector, tf32), half)


def step_seconds(
    capture: Capture, accelerator: Accelerator, *, step: int = -1, compiled: bool = False, model: Mapping[str, Any] | None = None
) -> StepSeconds:
    """Seconds of one captured step. Raises UnpredictableError for an accelerator without rates."""
    constants = model or load_json("captured_kernels")
    span = capture.steps[step]
    rows = capture.op_signature[span.first_op : span.end_op]
    count = np.bincount(rows, minlength=len(capture.signatures)).astype(np.float64)
    each = seconds(features(capture.signatures), accelerator, constants, conditions_of(capture.settings, compiled=compiled))
    host = len(rows) * constants["host_s"] * (constants["fused"]["launch"] if compiled else 1.0)
    return StepSeconds(float((each * count).sum()), float(host))
