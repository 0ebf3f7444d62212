"""The physical form of a fused expert layer: routing, two grouped products, activation and combination.

Tokens of a rank are sorted by expert; each expert's rows fill tiles of ``tile_m``. The first product widens
from ``hidden`` to one or two (gated) times ``ffn / tp``, the second narrows back. As for a single product,
a grouped one takes the tile that gives the least time of arithmetic in waves, joined with memory (each
active expert's weights once) and power in a p-norm. Around them: fixed launches, work per routed row and
per local expert, and the rows that permutation, activation and combination move.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gpuwise.predict.kernels.experts.loads import Loads
from gpuwise.predict.kernels.gemm.physics import Device

F64 = NDArray[np.float64]

_TILES = ((8, 128), (16, 64), (16, 128), (32, 128), (64, 128), (128, 128), (128, 256))
_CHUNK = 256
_HOT_SHARPNESS = 4.0
"""How abruptly weights stop fitting in L2 (matrix products: 5)."""


@dataclass(frozen=True, slots=True)
class PhysicalCoefficients:
    """One kernel and format on one micro-architecture. Clocks are of the boost clock."""

    latency_clocks: float
    row_clocks: float
    """Per routed row, spread over the units."""
    expert_clocks: float
    """Per local expert, in sequence."""
    math_efficiency: float
    load_bytes_per_clock: float
    wave_rounding: float
    wave_clocks: float
    step_clocks: float
    epilogue_clocks: float
    bandwidth_efficiency: float
    bandwidth_when_many: float
    """Share of the bandwidth left when tokens outnumber the local experts and kernels use taller tiles."""
    row_bytes_weight: float
    """Weight of the local rows that permutation, activation and combination move, relative to reading and writing each once."""
    foreign_bytes_weight: float
    """The same for all ranks' rows: some kernels walk over those whose expert is elsewhere."""
    hot_copies: float
    """How many copies of the active weights the timing loop walks through, as the cache sees it."""
    l2_bytes_per_clock: float
    """Per unit."""
    p: float
    joules_per_flop: float


FIELDS = tuple(f.name for f in fields(PhysicalCoefficients))


@dataclass(frozen=True, slots=True)
class Format:
    """Bytes per element of activations and weights inside the products."""

    activation: float
    weight: float


def grouped_physical_time(
    c: PhysicalCoefficients,
    device: Device,
    form: Format,
    loads: Loads,
    n: F64,
    k: F64,
    many: NDArray[np.bool_],
    hot: F64,
) -> F64:
    """Seconds [R] of one grouped product without fixed latency; ``many``: tokens outnumber the local
    experts; ``hot``: share of the traffic that L2 still holds from the launch before."""
    routed, active = loads.routed, loads.active
    flop = 2.0 * routed * n * k
    moved = active * n * k * form.weight + routed * (k * form.activation + n * 2.0)
    efficiency = c.bandwidth_efficiency * np.where(many, c.bandwidth_when_many, 1.0)
    dram_rate = device.bandwidth_bytes_per_s * efficiency
    l2_rate = np.maximum(dram_rate, c.l2_bytes_per_clock * device.units * device.clock_hz)
    memory = moved * ((1.0 - hot) / dram_rate + hot / l2_rate)
    power = flop * c.joules_per_flop / device.power_w
    steps = np.ceil(k / 64.0)
    best = np.full(n.shape, np.inf)
    for tile_m, tile_n in _TILES:
        blocks = (loads.experts * np.ceil(loads.tokens / tile_m)).sum(axis=0) * np.ceil(n / tile_n) / device.units
        waves = np.maximum(1.0, blocks + c.wave_rounding * (np.ceil(blocks) - blocks))
        per_step = tile_m * tile_n * 128.0 / (device.rate_flop_per_s * c.math_efficiency / device.units)
        per_step += 64.0 * (tile_m * form.activation + tile_n * form.weight) / (c.load_bytes_per_clock * device.clock_hz)
        per_step += c.step_clocks / device.clock_hz
        per_block = (c.wave_clocks + c.epilogue_clocks * tile_m * tile_n / 2.0**15) / device.clock_hz
        np.minimum(best, waves * (steps * per_step + per_block), out=best)
    return (best**c.p + memory**c.p + power**c.p) ** (1.0 / c.p)


def layer_physical_time(
    c: PhysicalCoefficients,
    device: Device,
    form: Format,
    loads: Loads,
    tokens: F64,
    choices: F64,
    hidden: F64,
    ffn: F64,
    local: F64,
    wide: F64,
    *,
    cold: bool = False,
) -> F64:
    """Seconds [R]. ``choices`` are tokens times top_k over all ranks; ``ffn`` is this rank's part; ``local`` is the number of
    local experts; ``wide`` is 2 for gated experts, else 1; ``cold``: L2 contains nothing from an earlier launch."""
    out = np.empty(tokens.shape)
    for start in range(0, tokens.shape[0], _CHUNK):
        r = slice(start, start + _CHUNK)
        part = Loads(loads.tokens[:, r], loads.experts[:, r])
        out[r] = _layer_chunk(c, device, form, part, tokens[r], choices[r], hidden[r], ffn[r], local[r], wide[r], cold)
    return out


def _layer_chunk(
    c: PhysicalCoefficients,
    device: Device,
    form: Format,
    loads: Loads,
    tokens: F64,
    choices: F64,
    hidden: F64,
    ffn: F64,
    local: F64,
    wide: F64,
    cold: bool,
) -> F64:
    routed = loads.routed
    many = tokens > local
    weight_bytes = loads.active * (wide + 1.0) * hidden * ffn * form.weight * c.hot_copies
    hot = 1.0 / (1.0 + (weight_bytes / device.l2_bytes) ** _HOT_SHARPNESS) * (0.0 if cold else 1.0)
    products = grouped_physical_time(c, device, form, loads, wide * ffn, hidden, many, hot)
    products += grouped_physical_time(c, device, form, loads, hidden, ffn, many, hot)
    row_bytes = 2.0 * (3.0 * hidden + (wide + 1.0) * ffn)
    moved = row_bytes * (routed * c.row_bytes_weight + choices * c.foreign_bytes_weight) + 4.0 * tokens * hidden
    clocks = c.latency_clocks + c.row_clocks * routed / device.units + c.expert_clocks * local
    return products + moved / (device.bandwidth_bytes_per_s * c.bandwidth_efficiency) + clocks / device.clock_hz
