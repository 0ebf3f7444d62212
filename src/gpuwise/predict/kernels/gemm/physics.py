"""The physical form of a matrix product's time: tiles, waves, split-K, cache, memory and power.

C[m, n] = A[m, k] B[k, n], ``batch`` times. A thread block makes one ``tile_m x tile_n`` tile of C from ``k
/ split`` of the reduction; a device of ``units`` units runs them in waves. With clocks from the device's
boost clock::

    t_block  = max(tile_m tile_n k' 2 / (rate eff / units), (tile_m + tile_n) k' bytes / load)
               + (step k' bytes / 128 + wave + epilogue tile_m tile_n / 2^15) / clock
    t_math   = t_block x (waves, rounded up in part)
    t_memory = DRAM bytes / (bandwidth eff) for what is not in L2, plus L2 bytes / (l2 bytes per clock)
    t_energy = (joules per FLOP x FLOP + joules per byte x DRAM bytes) / power budget
    t_power  = t_energy^2 / (t_energy + burst): a launch that is over before the governor reacts is not held back
    t        = latency / clock + (t_math^p + t_memory^p + t_power^p)^(1/p) + split-K reduction + quantising A

and the tile and split that give the least time are taken, as a library's heuristic would. Every constant is
a fitted coefficient (``studies.gemm.fit``). Time never falls when m, n or k grow within a tile's step,
and never rises when a device gains units (at the same rate per unit), bandwidth, cache, clock or power.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels.gemm.formats import Format
from gpuwise.units import MIB

F64 = NDArray[np.float64]

TILES = ((16, 64), (32, 64), (64, 64), (64, 128), (128, 64), (64, 256), (128, 128), (128, 256), (256, 128))
"""Candidate (tile_m, tile_n): what cuBLAS, CUTLASS and Triton instantiate."""
SPLITS = (1, 2, 4, 8, 16)
STEP_BYTES = 128.0
"""Bytes of a row of A that a thread block loads at once: one swizzled shared-memory row, for every format."""
CHUNK = 512
"""Rows at a time: the temporaries then stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class PhysicalCoefficients:
    """One implementation on one micro-architecture. Clocks are of the boost clock; the rest is
    dimensionless or SI."""

    latency_clocks: float
    math_efficiency: float
    load_bytes_per_clock: float
    """L2 to shared memory, per unit."""
    wave_rounding: float
    """1: the last wave costs a whole one; 0: waves flow into each other."""
    wave_clocks: float
    bandwidth_efficiency: float
    p: float
    """Exponent of the norm that joins math, memory and power: larger overlaps better."""
    split_clocks: float
    hot_weights: float
    """How many copies of B the timing loop walks through, as the cache sees it."""
    l2_bytes_per_clock: float
    """Per unit."""
    hot_sharpness: float
    hot_activations: float
    joules_per_flop: float
    joules_per_byte: float
    burst_s: float
    """Seconds of work at the power limit after which half of the limit is felt."""
    swizzle_tiles: float
    """Tiles of C side by side in one wave: what is shared before an operand is read again."""
    l2_retained: float
    step_clocks: float
    """Per :data:`STEP_BYTES` of a row of A: issue and synchronisation that math does not hide."""
    epilogue_clocks: float
    output_weight: float
    reduction_bytes_per_clock: float
    quantise_clocks: float
    quantise_efficiency: float
    """Fraction of the memory bandwidth at which A is turned into the narrow format; 0 where that is not
    part."""


FIELDS = tuple(f.name for f in fields(PhysicalCoefficients))


@dataclass(frozen=True, slots=True)
class Device:
    """Properties of an accelerator that the physics needs. Unknown power or cache means no power limit and no cache."""

    units: float
    rate_flop_per_s: float
    """At boost clock, which a short burst holds: for data-centre parts above the quoted peak."""
    bandwidth_bytes_per_s: float
    l2_bytes: float
    power_w: float
    clock_hz: float


_DEFAULT_CLOCK_HZ = 1.5e9
"""For devices that publish no clock; affects only fixed latencies (microseconds)."""
_FLOP_PER_UNIT_AND_CLOCK = 2048.0
"""For devices that publish no clock, or no unit count: the dense 16-bit rate of an A100 streaming multiprocessor per clock. Such
a device's units are not multiprocessors: one of Trainium's two cores does the work of forty."""
_POWER_SHARE = 0.85
"""Dynamic share of the board's power limit; the rest is static. Only its product with the fitted joules matters."""


def device_of(accelerator: Accelerator, math_dtype: str, rate_share: float = 1.0) -> Device:
    """``accelerator`` for products in ``math_dtype`` whose instructions reach ``rate_share`` of its rate. Raises
    UnpredictableError when it has no rate for it."""
    peak = accelerator.peak(math_dtype)
    clock = accelerator.boost_hz or _DEFAULT_CLOCK_HZ
    alike = max(1.0, round(peak / (_FLOP_PER_UNIT_AND_CLOCK * clock)))
    units = accelerator.compute_units if accelerator.compute_units and accelerator.boost_hz else alike
    return Device(
        units=float(units),
        rate_flop_per_s=rate_share * burst_rate(peak, units, accelerator.boost_hz),
        bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
        l2_bytes=accelerator.l2_bytes or MIB,
        power_w=_POWER_SHARE * accelerator.tdp_w if accelerator.tdp_w else np.inf,
        clock_hz=clock,
    )


def burst_rate(peak_flop_per_s: float, units: float, boost_hz: float | None) -> float:
    """FLOP/s at boost. Some peaks are quoted at a lower clock (H100 SXM: 1.83 of 1.98 GHz).

    A unit's FLOP per clock is a power of two; a quoted peak within 20 % of one is raised to it.
    """
    if boost_hz is None:
        return peak_flop_per_s
    per_clock = peak_flop_per_s / (units * boost_hz)
    whole = 2.0 ** round(np.log2(per_clock))
    return units * boost_hz * whole if per_clock <= whole <= 1.2 * per_clock else peak_flop_per_s


def physical_time(
    c: PhysicalCoefficients, device: Device, form: Format, m: F64, n: F64, k: F64, batch: F64, *, cold: bool = False
) -> F64:
    """Seconds [R] of device time for float columns [R]. ``cold``: L2 contains nothing from an earlier launch."""
    out = np.empty(m.shape[0])
    for start in range(0, m.shape[0], CHUNK):
        rows = slice(start, start + CHUNK)
        out[rows] = _chunk(c, device, form, m[rows], n[rows], k[rows], batch[rows], cold)
    return out


def _chunk(c: PhysicalCoefficients, device: Device, form: Format, m: F64, n: F64, k: F64, batch: F64, cold: bool) -> F64:
    dram, hot = traffic(c, device, form, m, n, k, batch)
    if cold:
        hot = np.zeros_like(hot)
    flop = 2.0 * m * n * k * batch
    dram_rate = device.bandwidth_bytes_per_s * c.bandwidth_efficiency
    l2_rate = max(dram_rate, c.l2_bytes_per_clock * device.units * device.clock_hz)
    memory = dram * ((1.0 - hot) / dram_rate + hot / l2_rate)
    energy = (flop * c.joules_per_flop + dram * (1.0 - hot) * c.joules_per_byte) / device.power_w
    power = energy * energy / (energy + c.burst_s)
    rest = memory**c.p + power**c.p
    best = np.full(m.shape, np.inf)
    tile_m, tile_n = _tiles(form)
    tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n) * batch
    area = tile_m * tile_n
    step_k = STEP_BYTES / form.a
    per_step = area * 2.0 * step_k / (device.rate_flop_per_s * c.math_efficiency / device.units)
    load = (tile_m + tile_n) * (step_k * 0.5 * (form.a + form.b)) / (c.load_bytes_per_clock * device.clock_hz)
    per_step = np.maximum(per_step, load) + c.step_clocks / device.clock_hz
    per_block = (c.wave_clocks + c.epilogue_clocks * area / 2.0**15) / device.clock_hz
    for split in SPLITS if form.splits_k else (1,):
        blocks = tiles * (split / device.units)
        waves = np.maximum(1.0, blocks + min(c.wave_rounding, 1.0) * (np.ceil(blocks) - blocks))
        steps = np.ceil(k / (step_k * split))
        math = (waves * (steps * per_step + per_block)).min(axis=0)
        time = (math**c.p + rest) ** (1.0 / c.p)
        if split > 1:
            time += c.split_clocks / device.clock_hz
            partial_bytes = 8.0 * m * n * batch * split
            time += partial_bytes / (c.reduction_bytes_per_clock * device.units * device.clock_hz)
        np.minimum(best, time, out=best)
    best += c.latency_clocks / device.clock_hz
    if c.quantise_efficiency > 0:
        best += c.quantise_clocks / device.clock_hz
        moved = m * k * batch * (form.a_before_quantising + form.a)
        best += moved / (device.bandwidth_bytes_per_s * c.quantise_efficiency)
    return best


@cache
def _tiles(form: Format) -> tuple[F64, F64]:
    """Rows and columns [T, 1] of the tiles that ``form``'s kernel has."""
    has = [t for t in TILES if t[0] >= form.smallest_tile[0] and t[1] >= form.smallest_tile[1]]
    rows, columns = np.array(has, dtype=np.float64).T
    return rows[:, None], columns[:, None]


def traffic(c: PhysicalCoefficients, device: Device, form: Format, m: F64, n: F64, k: F64, batch: F64) -> tuple[F64, F64]:
    """Bytes moved past an empty L2 [R], and the share of them that hits in L2 [R].

    An operand larger than L2 is read again for every ``swizzle_tiles`` tiles of the other one; the cheaper order is taken. The
    footprint of all launches of the timing loop decides what stays in L2 between them.
    """
    a, b = m * k * batch * form.a, n * k * batch * form.b
    output = m * n * batch * form.c * c.output_weight
    strip = 128.0 * c.swizzle_tiles
    a_again = (np.maximum(1.0, n / strip) - 1.0) * np.maximum(0.0, a - c.l2_retained * device.l2_bytes * batch)
    b_again = (np.maximum(1.0, m / strip) - 1.0) * np.maximum(0.0, b - c.l2_retained * device.l2_bytes * batch)
    dram = a + b + np.minimum(a_again, b_again) + output
    touched = c.hot_activations * (a + output) + c.hot_weights * b
    hot = 1.0 / (1.0 + (touched / device.l2_bytes) ** c.hot_sharpness)
    return dram, hot
