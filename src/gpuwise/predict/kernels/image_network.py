"""Time of a whole image network of which only totals are known: FLOP, activation elements, parameters.

A roofline over the network as one block, with the clock the power limit leaves, and a fitted correction:

    t = batch (t_c^p + t_m^p)^(1/p) f + t_w,   t_c = w 2 MACs / (e_c r x),   t_m = s A (b / B + v / (u h x))

``r`` peak rate of the format, ``x`` sustained clock, ``B`` stream bandwidth, ``u`` units, ``h`` boost clock,
``A`` activation elements (outputs of convolutions and matrix products, as fvcore counts them), ``b`` bytes of
one, ``s`` how often each is moved (fewer where a compiler fuses, more in training), ``v`` cycles a unit
spends on an element each time, ``w`` 1 or 3 (forward and backward), ``t_w`` weights read (training: gradients
and optimizer state as well). ``f`` comes from boosted trees over the network's ratios, traits
(``image_network_traits``) and the balance ``t_c / t_m`` on the device; the device enters nowhere else, so a device
nobody measured gets the same form.

Fitted on timm's published benchmarks (``coefficients/network.json``). Batches are taken as large enough to
hide launches; give ``n_kernels`` to bound a small one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_arrays, load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels.boosted import Trees, unpack
from gpuwise.predict.kernels.clock import joules_per_flop, sustained_fraction
from gpuwise.predict.kernels.image_network_traits import indicator
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import dram_rate
from gpuwise.predict.kernels.run_formats import has_matrix_units

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
"""fp16 and bf16 stand for mixed precision as well: autocast's weight casts are small beside the
activations."""


@dataclass(frozen=True, slots=True)
class Networks:
    """Columns [R]. ``macs``, ``activations`` and ``image_side`` (pixels) are of one sample; ``parameters`` of
    the network. ``compiled``: Inductor; ``channels_last``: NHWC activations; ``training``: forward, backward
    and update; ``modern``: PyTorch 2 or later (fused attention). ``traits`` [traits, R] from
    ``image_network_traits.indicator``."""

    macs: F64
    activations: F64
    parameters: F64
    batch: F64
    image_side: F64
    compiled: Bool
    channels_last: Bool
    training: Bool
    modern: Bool
    traits: F64

    def __len__(self) -> int:
        return len(self.macs)

    def take(self, rows: NDArray[Any]) -> Networks:
        """The networks at ``rows`` (positions or a mask)."""
        return Networks(
            self.macs[rows],
            self.activations[rows],
            self.parameters[rows],
            self.batch[rows],
            self.image_side[rows],
            self.compiled[rows],
            self.channels_last[rows],
            self.training[rows],
            self.modern[rows],
            self.traits[:, rows],
        )


def network(
    macs: float,
    activations: float,
    parameters: float,
    batch: float,
    *,
    image_side: float = 224.0,
    compiled: bool = False,
    channels_last: bool = False,
    training: bool = False,
    modern: bool = True,
    traits: frozenset[str] = frozenset(),
) -> Networks:
    """One network. Raises InputError where a total is not above zero."""
    if min(macs, activations, parameters, batch, image_side) <= 0:
        raise InputError("a network needs MACs, activations, parameters and a batch above zero")
    return Networks(
        macs=np.array([float(macs)]),
        activations=np.array([float(activations)]),
        parameters=np.array([float(parameters)]),
        batch=np.array([float(batch)]),
        image_side=np.array([float(image_side)]),
        compiled=np.array([compiled]),
        channels_last=np.array([channels_last]),
        training=np.array([training]),
        modern=np.array([modern]),
        traits=indicator([traits]),
    )


def network_time(accelerator: Accelerator, precision: str, networks: Networks, *, n_kernels: ArrayLike = 0.0) -> KernelTime:
    """Seconds [R] of one batch on ``accelerator``: forward, or a training step where ``training``.

    ``n_kernels`` [R] launches of a forward pass, where known: a step is never shorter than the host needs to
    issue them. Raises InputError on a precision that is not in :data:`PRECISIONS`, UnpredictableError when
    the catalogue has no rate for it.
    """
    if precision not in PRECISIONS:
        raise InputError(f"unknown network precision {precision!r}", hint="one of " + ", ".join(PRECISIONS))
    model = load_json("network")
    compute, memory, weights = rooflines(accelerator, precision, networks, model)
    time = networks.batch * combined(compute, memory, model["overlap"])
    trees = _trees()
    if trees is not None:
        factor = trees.evaluate(features(networks, compute, memory))
        time *= np.exp(np.clip(factor, -model["most_correction"], model["most_correction"]))
    time += weights
    launches = np.asarray(n_kernels, np.float64) * np.where(networks.training, 3.0, 1.0) * model["launch_s"]
    basis: Basis = "fitted" if accelerator.id in model["measured"] else "derived"
    widths = model["log_sigma"]["known_device" if basis == "fitted" else "other_device"]
    sigma: F64 = np.where(networks.training, float(widths["training"]), float(widths["inference"]))
    return KernelTime(np.maximum(time, launches), sigma, basis)


def combined(compute: F64, memory: F64, power: float) -> F64:
    """Two resources that overlap in part."""
    return (compute**power + memory**power) ** (1.0 / power)


def rooflines(accelerator: Accelerator, precision: str, n: Networks, model: dict[str, Any]) -> tuple[F64, F64, F64]:
    """Seconds [R] of arithmetic and of memory traffic for one sample, and of weights for one step."""
    unit = "vector" if precision == "fp32" or not has_matrix_units(accelerator) else "matrix"
    rate = accelerator.peak("fp32") if unit == "vector" else accelerator.peak(precision)
    efficiency = model["efficiency"][unit]
    flop = 2.0 * n.macs * np.where(n.training, 3.0, 1.0)
    passes: F64 = np.where(n.compiled, float(model["passes"]["compiled"]), float(model["passes"]["eager"]))
    passes *= np.where(n.training, float(model["passes"]["training"]), 1.0)
    units, hz = accelerator.compute_units, accelerator.boost_hz
    if not units or not hz:
        raise UnpredictableError("no unit count or clock for accelerator", f"{accelerator.name}: units or clock unknown")
    moved = n.activations * passes
    at_boost = flop / (efficiency * rate)
    stream = moved * FORMAT_BYTES[precision] / dram_rate(accelerator)
    visit = moved * model["cycles_per_element"] / (units * hz)
    busy = flop / rate / combined(at_boost, stream + visit, model["overlap"])
    if accelerator.family in model["joules_per_flop"] and unit == "matrix":
        busy *= model["joules_per_flop"][accelerator.family] / joules_per_flop(accelerator, "matrix")
    held = sustained_fraction(accelerator, busy, precision if unit == "matrix" else "fp32")
    per_parameter = np.where(n.training, model["training_bytes_per_parameter"], FORMAT_BYTES[precision])
    return at_boost / held, stream + visit / held, n.parameters * per_parameter / dram_rate(accelerator)


def features(n: Networks, compute: F64, memory: F64) -> F64:
    """What the trees ask about [F, R]: logarithms of the network's ratios, how it is run, its traits."""
    columns = [
        np.log(n.macs),
        np.log(n.macs / n.activations),
        np.log(n.parameters / n.macs),
        np.log(n.activations / n.parameters),
        np.log(n.image_side),
        np.log(n.batch),
        np.log(compute / memory),
        n.compiled,
        n.channels_last,
        n.training,
        n.modern,
    ]
    return np.concatenate([np.array(columns, dtype=np.float64), n.traits])


@cache
def _trees() -> Trees | None:
    return unpack("correction", load_arrays("network"))
