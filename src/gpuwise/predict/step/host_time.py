"""Host time of an eager step: what Python, the dispatcher, autograd and the driver spend on each operation.

    t = (python [forward only] + dispatch + autograd + launch n_kernels + library + tensors p + module m) / speed

``python`` is the interpreter between two operations of a module's forward, ``dispatch`` PyTorch's dispatcher and tensor
bookkeeping, ``autograd`` what recording a forward operation adds or running a node of the backward costs, ``launch`` the
driver's part of each kernel, ``library`` what a product or a convolution spends choosing its kernel, ``tensors`` each tensor
of a foreach list, ``module`` each entry into a module. What a CUDA graph replays costs its entry alone. Classes were measured
on one processor with tiny tensors;
``HostSpeed.factor`` scales all of them to another processor. Numbers: ``host_time.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.predict.coefficients import load_json
from gpuwise.workload.capture.record.capture import Capture, OpFlag, Signature
from gpuwise.workload.capture.record.families import family_of, short_name
from gpuwise.workload.step import Kind, Phase

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HostSpeed:
    """``factor`` is the single-thread speed relative to the processor the classes were measured on (2: twice as fast)."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0.01 <= self.factor <= 100.0:
            raise InputError(f"host speed {self.factor!r}", hint="1 is the reference processor; between 0.01 and 100")


def host_seconds(capture: Capture, step: int = -1, host: HostSpeed | None = None) -> F64:
    """[N] host seconds of each operation of the step, in program order."""
    model = load_json("host_time")
    span = capture.steps[step]
    part = slice(span.first_op, span.end_op)
    signature, phase = capture.op_signature[part], capture.op_phase[part]
    n = len(signature)
    if not n:
        return np.zeros(0)
    used, inverse = np.unique(signature, return_inverse=True)
    fixed = np.array([_of_signature(capture.signatures[int(i)], model) for i in used.tolist()])[inverse]
    trains = bool(np.any(phase == Phase.BACKWARD))
    forward = (phase == Phase.FORWARD) | (phase == Phase.RECOMPUTE)
    extra = np.where(forward, model["python_s"] + (model["autograd_s"] if trains else 0.0), 0.0)
    extra = np.where(phase == Phase.BACKWARD, model["node_s"], extra)
    extra = np.where(phase == Phase.OPTIMIZER, model["python_s"], extra)
    micro = (capture.op_flags[part] & OpFlag.MICRO) != 0
    entered = np.zeros(n, dtype=bool)
    module = capture.op_module[part]
    entered[1:] = (module[1:] != module[:-1]) & forward[1:]
    total = fixed + np.where(micro & (phase == Phase.BACKWARD), 0.5 * extra, extra) + np.where(entered, model["module_s"], 0.0)
    flags = capture.op_flags[part]
    graph = np.where((flags & OpFlag.REPLAY) != 0, model["compiled"]["graph_entry_s"], 0.0)
    total = np.where((flags & OpFlag.REPLAYED) != 0, graph, total)
    total[0] += model["step_s"]
    return total / (host or HostSpeed()).factor


def _of_signature(s: Signature, model: dict[str, Any]) -> float:
    name = short_name(s.op)
    family = family_of(s)
    if s.kind is Kind.HOST and not s.n_kernels:
        return float(model["view_s"])
    seconds = float(model["dispatch_s"]) + float(model["launch_s"]) * min(s.n_kernels, _INSIDE_LIBRARY.get(family, s.n_kernels))
    if family == "recurrent":  # the library launches its steps itself
        seconds += float(model["inner_launch_s"]) * s.n_kernels
    seconds += float(model["library_s"].get(family, 0.0))
    if name.startswith(("_foreach_", "_fused_", "_amp_foreach")):
        seconds += float(model["tensor_s"]) * len(s.inputs) + float(model["allocation_s"]) * len(s.outputs)
    else:
        seconds += float(model["allocation_s"]) * len(s.outputs)
    return seconds


_INSIDE_LIBRARY = {"recurrent": 1}
