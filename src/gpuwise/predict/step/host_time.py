"""Host time of an eager step: Python, dispatcher, autograd and driver time of each operation.

    t = (python [forward only] + dispatch + autograd + launch n_kernels + library + tensors p + module m) / speed

``python`` is the interpreter between two operations of a module's forward, ``dispatch`` PyTorch's dispatcher and tensor
bookkeeping, ``autograd`` what recording a forward operation adds or running a node of the backward costs, ``launch`` the driver's
part of each kernel, ``library`` what a product or a convolution spends choosing its kernel, ``tensors`` each tensor of a foreach
list, ``module`` each entry into a module. Operations in a CUDA graph cost only the graph's launch. Classes were measured on one
processor with tiny tensors in a tight loop; :func:`host_scale` scales them to a model's step on an accelerator's host, and
``HostSpeed.factor`` scales all of them to another processor. Numbers: ``host_time.json``.

Hosts differ by more than two: the same addition of one number took 2.6 us on one server and 5.7 on the host of an H100,
whose steps took 2.0 times as long as the classes of the first one say, all kinds of steps alike. The default lies in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.corrections import LAUNCH_KEY
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.accelerator_factors import factor_key
from gpuwise.predict.kernels.corrections import corrected
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.workload.capture.captured import Capture, OpFlag, Signature
from gpuwise.workload.capture.record.families import family_of, short_name
from gpuwise.workload.row_codes import Kind, Phase

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HostSpeed:
    """``factor`` is the single-thread speed relative to the processor the classes were measured on (2: twice as fast)."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0.01 <= self.factor <= 100.0:
            raise InputError(f"host speed {self.factor!r}", hint="1 is the reference processor; between 0.01 and 100")


def gap_seconds(accelerator: Accelerator, kernels: F64) -> F64:
    """[N] idle seconds of the stream between the kernels of an operation, which occur however far the host is ahead. 0 on
    cards whose kernels were fitted to whole steps, gaps included."""
    return np.zeros_like(kernels) if factor_key(accelerator) is not None else float(load_json("host_time")["gap_s"]) * kernels


def host_scale(accelerator: Accelerator) -> float:
    """Seconds on the host of ``accelerator`` over the classes' of :func:`host_seconds`: that of a usual server, or of this
    machine where ``gpuwise bench --calibrate`` measured what launching an operation takes."""
    scale = float(load_json("captured_time")["calibration"]["host"])
    return scale * float(launch_time(accelerator).time_s[0]) / float(load_json("host_time")["bench_launch_s"])


def host_log_sigma(accelerator: Accelerator) -> float:
    """Spread of log(measured / predicted) host seconds: between hosts, or between steps on a host that was measured."""
    return max(float(launch_time(accelerator).log_sigma[0]), float(load_json("host_time")["step_log_sigma"]))


def launch_time(accelerator: Accelerator) -> KernelTime:
    """[1] what ``gpuwise bench`` calls launch-eager: seconds of the host to issue one addition in a loop."""
    model = load_json("host_time")
    usual = KernelTime(np.array([model["bench_launch_s"]]), np.array([model["log_sigma"]]), "derived")
    return corrected(accelerator, LAUNCH_KEY, usual, 1.0) if accelerator.corrections else usual


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
