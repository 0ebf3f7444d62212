"""A program that runs quantised weights locally (llama.cpp): a token of one sequence is a stream of the weights.

    t = (((W + s KV) / B_e)^p + (N c / (u h))^p)^(1/p) + k l + r (n - 1)
    B_e = min(e m B, 0.97 B)

``W`` and ``KV`` bytes of weights and cache read for a token, ``s`` how much slower a cache is read than weights, ``B`` memory
bandwidth, of which memory of this technology lets a long stream have ``m`` and the vendor's kernels take ``e``; memory shared
with the host has an ``e`` of its own. Unpacking quantised weights is arithmetic (``c`` clocks of a unit for each of ``N``), which
wide-memory devices run into first; ``u h`` units times clock. ``k`` kernels in turn (:attr:`Block.token_launches`), each of
which starts, fills the device and drains in ``l`` (a number of clocks over ``h``): small matrices, experts above all, are read at
less than the bandwidth for it. Several devices hold layers in turn, so that their bandwidths do not add up; ``r`` is what a
hand-over between ``n`` devices costs. ``e``, ``s`` and ``l`` by vendor, fitted by :mod:`studies.serving.local_fit`
(``coefficients/single_stream.json``).

A batch of ``n`` sequences reads what its tokens touch once, the caches of all, and pays for its rows and, under llama.cpp, for
kernels that it fuses for one token alone; a prompt is arithmetic, and reads the weights of its tokens once a batch of 512
(``n_ubatch``):

    t(n) = (((W(n) + n s KV) / B_e)^p + (N(n) c / (u h))^p + w^p)^(1/p) + k l' + r (devices - 1) + m (n - 1) 2 N / R
    prompt(q, c) = (((2 N q + 2 X q / x) / R)^p + (b W(q / b) / B_e)^p)^(1/p)    q tokens in b batches, after c others
                   + attention(q, c) / (a u h) + b k l' + q (i H / B + M v / h)
    R = k' u h (P / (512 u h))^e, of 16-bit weights g P
    x = x0 r / (r + r0)    r rows of an expert in a batch

``X`` weights of a token's experts, ``N`` its others; ``P`` the 16-bit peak, with sums in 16 bits where a card has them (GeForce
cards halve the rate of sums in 32). Quantised weights are multiplied in 8-bit integers after they are unpacked (MMQ): on NVIDIA's
cards at one rate a unit and clock, whatever the width of the tensor units (``e`` 0), as attention. A batch's kernels start, fill
the device and drain in ``l'``, so that small models are far from ``R``; ``i`` bytes go to memory and back for each of the ``H``
hidden numbers of all layers; a recurrent layer (``M`` of them) passes its state from token to token in ``v`` clocks. ``l'`` and
``i`` are of NVIDIA's rows, the rest by vendor (:mod:`studies.serving.prompt_fit`); ``m`` of llama.cpp's own batches on a DGX
Spark (:mod:`studies.serving.llama_batches`). Weights of 16 bits go through cuBLAS from a few rows on (``ggml_cuda_mul_mat``),
whose arithmetic runs beside the stream: their rows are ``w = (n - 1) 2 N / R`` (no ``m``, and ``l`` for ``l'``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.corrections import Correction
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, Estimate
from gpuwise.predict.kernels.memory_bound import technology_share
from gpuwise.predict.memory.kv_cache import CacheLayout, kv_cache_bytes
from gpuwise.serve.engines.engine import ENGINES, LOCAL_ENGINE, Engine
from gpuwise.serve.formats import FORMATS, find_format, weight_bytes_read
from gpuwise.units import MIB
from gpuwise.workload.blocks.kinds import LATENT, LINEAR, STATE_SPACE, attention_sizes, block_counts
from gpuwise.workload.transformer.parameters import count_parameters

READ = CacheLayout("fp16", window_everywhere=False).unpadded
"""Cache bytes read for one new token."""
_USUAL_FLOP = 512.0
"""A clock and unit in 16 bits, from which the rate's shape is counted."""
_WIDE_BYTES = 2.0
"""A weight of 16 bits or more is not unpacked."""
_MOST = 0.97
"""Maximum share of the bandwidth left by refresh."""
_USUAL_HZ = 1.5e9
"""Clock for devices that publish none."""
LAST_LEVEL_BYTES = 32.0 * MIB
"""Of a processor's caches: a Ryzen 5 5600X' (AMD's data sheet), as most desktops'."""
_ENDS = 10
"""Kernels outside the layers: the row of the embedding, the last norm, the head, what copies its result to the host."""


@dataclass(frozen=True, slots=True)
class TokenWork:
    """Device-independent work of one token of each of several sequences."""

    weight_bytes: float
    weights: float
    """Their number."""
    cache_bytes: float
    """Cache bytes of all sequences."""
    launches: int
    wide: bool
    """Weights of 16 bits or more, which are not unpacked."""
    cache_reads: float
    """Times that a processor reads the cache (:func:`cache_reads`)."""


@dataclass(frozen=True, slots=True)
class TokenTime:
    """Seconds by part."""

    stream_s: float
    """Weights and caches from memory, unpacked on the way."""
    launches_s: float
    hand_over_s: float
    rows_s: float
    """Time of a batch's rows after the stream."""

    @property
    def total_s(self) -> float:
        return self.stream_s + self.launches_s + self.hand_over_s + self.rows_s


def _reading(arch: Architecture) -> Architecture:
    """``arch`` with a cache in each layer: one that borrows another's keys and values reads them again."""
    return arch if arch.shared_cache is None else replace(arch, shared_cache=None)


def launches(arch: Architecture) -> int:
    """Kernels of the graph of one token, or of a batch of a prompt's."""
    return _ENDS + sum(n * block.token_launches for block, n in block_counts(arch).items())


@lru_cache(maxsize=8192)
def token_work(arch: Architecture, weights: str, context: float, sequences: int = 1) -> TokenWork:
    """The work of a token of each of ``sequences`` that hold ``context`` tokens. Raises UnknownNameError for a format."""
    cache = float(kv_cache_bytes(_reading(arch), context, READ))
    return TokenWork(
        weight_bytes_read(arch, weights, tokens=sequences),
        weight_bytes_read(arch, "Q8_0", "Q8_0", tokens=sequences) / FORMATS["Q8_0"].bytes_per_weight,
        sequences * cache,
        launches(arch),
        find_format(weights).bytes_per_weight >= _WIDE_BYTES,
        cache_reads(arch, cache),
    )


def cache_reads(arch: Architecture, cache_bytes: float) -> float:
    """Times that a processor reads a cache for a token. Its threads go through one query head after the other
    (ggml-cpu/ops.cpp, ``ggml_compute_forward_flash_attn_ext``), so that keys and values come from memory again for each head
    that shares them, where those of a layer do not stay in the last level of its caches. Latent attention: once."""
    seen, *_ = attention_sizes(arch)
    if LATENT in block_counts(arch) or not arch.n_attention_layers:
        return 1.0
    layer = max(cache_bytes / arch.n_attention_layers, 1.0)
    return 1.0 + (seen.heads / seen.kv_heads - 1.0) / (1.0 + (LAST_LEVEL_BYTES / layer) ** 2)


def token_time(
    arch: Architecture,
    accelerator: Accelerator,
    weights: str,
    *,
    context: float = 1024.0,
    n_devices: int = 1,
    engine: Engine | None = None,
) -> Estimate:
    """Seconds of one generated token at ``context`` tokens in an fp16 cache, layers in turn on ``n_devices``, under ``engine``
    (None: llama.cpp).

    The interval is that of the vendor's devices in the fit, wider for others of the vendor, and of a vendor the fit never saw
    wider still by what a new family adds to the time of kernels bound by memory. Raises UnknownNameError for a weight format.
    """
    time = seconds(_coefficients(engine)["form"], arch, accelerator, weights, context, n_devices)
    estimate = Estimate.from_log_sigma(time, *token_spread(arch, accelerator, engine))
    return as_measured(estimate, accelerator.corrections, engine).widened(arch.open_log_sigma)


def decode_key(engine: str) -> str:
    """Key of the correction of a device for the tokens that ``engine`` writes on it."""
    return f"decode/{engine}"


def as_measured(time: Estimate, corrections: Mapping[str, Correction], engine: Engine | None = None) -> Estimate:
    """``time`` with what was measured of ``engine`` (None: llama.cpp) on this very device."""
    found = corrections.get(decode_key(LOCAL_ENGINE if engine is None else engine.name))
    return (
        time if found is None else Estimate.from_log_sigma(time.expected * math.exp(found.weights[0]), found.log_sigma, "fitted")
    )


def token_spread(arch: Architecture, accelerator: Accelerator, engine: Engine | None = None) -> tuple[float, Basis]:
    """Log standard deviation of a token of one sequence on a device, and its basis."""
    model = _coefficients(engine)
    name = ("" if accelerator.id in model["measured"] else "new_") + ("log_sigma" if arch.moe is None else "experts_log_sigma")
    return _spread(model, accelerator, vendor_of(model["form"], accelerator)[name])


def batch_spread(arch: Architecture, accelerator: Accelerator, engine: Engine | None = None) -> tuple[float, Basis]:
    """:func:`token_spread` of a token of several sequences: what a batch adds comes on top."""
    sigma, basis = token_spread(arch, accelerator, engine)
    return math.hypot(sigma, _coefficients(engine)["log_sigma"]["batch"]), basis


def prompt_spread(accelerator: Accelerator, engine: Engine | None = None) -> tuple[float, Basis]:
    """Log standard deviation of a prompt's time on a device, and its basis."""
    model = _coefficients(engine)
    return _spread(model, accelerator, prompt_vendor(model["form"], accelerator)["log_sigma"])


def _spread(model: dict[str, Any], accelerator: Accelerator, sigma: float) -> tuple[float, Basis]:
    if accelerator.id in model["measured"]:
        return sigma, "fitted"
    if accelerator.vendor in model["form"]["vendors"]:
        return sigma, "derived"
    return sigma * float(load_json("memory_bound")["log_sigma"]["new_family_factor"]), "extrapolated"


def vendors(engine: Engine | None = None) -> tuple[str, ...]:
    """Vendors whose devices are in the fit."""
    return tuple(_coefficients(engine)["form"]["vendors"])


def _coefficients(engine: Engine | None) -> dict[str, Any]:
    return load_json((engine or ENGINES[LOCAL_ENGINE]).streams)


def seconds(
    form: dict[str, Any],
    arch: Architecture,
    accelerator: Accelerator,
    weights: str,
    context: float,
    n_devices: int,
    sequences: int = 1,
) -> float:
    """Seconds of a token of each of ``sequences`` that hold ``context`` tokens, under the constants ``form``. Raises
    UnpredictableError for several on a device without published rates."""
    return seconds_by_part(form, token_work(arch, weights, context, sequences), arch, accelerator, n_devices, sequences).total_s


def seconds_by_part(
    form: dict[str, Any], work: TokenWork, arch: Architecture, accelerator: Accelerator, n_devices: int = 1, sequences: int = 1
) -> TokenTime:
    """:func:`seconds` by part."""
    vendor = vendor_of(form, accelerator)
    stream = (work.weight_bytes + vendor["cache_slowdown"] * work.cache_bytes) / stream_rate(form, accelerator)
    beside = after = unpack = 0.0
    if sequences > 1:
        rows = (sequences - 1) * row_flop(arch, head=True) / arithmetic_rate(form, accelerator, wide=work.wide)
        beside, after = (rows, 0.0) if work.wide else (0.0, form["prompt"]["batch_rows"] * rows)
    if accelerator.compute_units and accelerator.boost_hz:
        unpack = (
            work.weights * _unpack_clocks(form, accelerator, wide=work.wide) / (accelerator.compute_units * accelerator.boost_hz)
        )
    power = form["overlap"]
    body = (stream**power + unpack**power + beside**power) ** (1.0 / power)
    clocks = max(vendor["launch_clocks"], form["prompt"]["batch_launch_clocks"] if sequences > 1 and not work.wide else 0.0)
    launch_s = clocks / (accelerator.boost_hz or _USUAL_HZ)
    return TokenTime(body, work.launches * launch_s, form["hand_over_s"] * (n_devices - 1), after)


def _unpack_clocks(form: dict[str, Any], accelerator: Accelerator, *, wide: bool) -> float:
    """Clocks of a unit for a weight; of some vendors' chips by generation (how their id begins)."""
    clocks = vendor_of(form, accelerator).get("clocks_per_weight", form["clocks_per_weight"])
    if wide:
        return clocks["half"]
    return next((v for name, v in clocks.items() if accelerator.id.startswith(name)), clocks["quantised"])


def vendor_of(form: dict[str, Any], accelerator: Accelerator) -> dict[str, Any]:
    """Constants of the device's vendor; NVIDIA's for a vendor outside the fit."""
    return form["vendors"].get(accelerator.vendor) or form["vendors"]["NVIDIA"]


def stream_rate(form: dict[str, Any], accelerator: Accelerator) -> float:
    """Bytes a second of weights."""
    vendor = vendor_of(form, accelerator)
    if accelerator.unified_memory:
        share = vendor["shared_memory_share"]
    else:
        share = vendor.get("memory_share", 1.0) * technology_share(accelerator)
    return min(share, _MOST) * accelerator.memory_bandwidth_bytes_per_s


def prompt_time(
    form: dict[str, Any], arch: Architecture, accelerator: Accelerator, weights: str, *, batch: int = Engine.prompt_batch
) -> Callable[[float, float], float]:
    """Seconds for the given prompt tokens after the given earlier ones, in batches of ``batch``. Raises UnpredictableError for
    a device without published rates."""
    prompt, vendor = form["prompt"], prompt_vendor(form, accelerator)
    rate = arithmetic_rate(form, accelerator, wide=find_format(weights).bytes_per_weight >= _WIDE_BYTES)
    attention_rate = vendor["attention_flop_per_clock"] * _clocks(accelerator)
    through_experts = _expert_flop(arch) / rate
    row = row_flop(arch, head=False) / rate - through_experts
    wide, *_ = attention_sizes(arch)
    pair, far = (4.0 * sizes.heads * sizes.head_dim / attention_rate for sizes in (arch, wide))
    whole, near, window = arch.n_global_layers, arch.n_attention_layers - arch.n_global_layers, arch.window or 0
    bandwidth, power, hz = stream_rate(form, accelerator), form["overlap"], accelerator.boost_hz or _USUAL_HZ
    blocks = block_counts(arch)
    launches_s = launches(arch) * prompt["launch_clocks"] / hz
    beside = prompt["row_bytes"] * arch.hidden * arch.n_layers / accelerator.memory_bandwidth_bytes_per_s
    beside += (blocks.get(STATE_SPACE, 0) + blocks.get(LINEAR, 0)) * vendor["state_clocks"] / hz

    def of(tokens: float, before: float) -> float:
        each = before + (tokens + 1) / 2
        batches = math.ceil(tokens / batch)
        products = tokens * (row + through_experts / _expert_share(vendor, arch, tokens / batches))
        stream = batches * weight_bytes_read(arch, weights, tokens=max(math.ceil(tokens / batches), 1)) / bandwidth
        attention = tokens * (far * whole * each + pair * near * min(each, window))
        return (products**power + stream**power) ** (1.0 / power) + attention + batches * launches_s + tokens * beside

    return of


def prompt_vendor(form: dict[str, Any], accelerator: Accelerator) -> dict[str, Any]:
    """Constants of prompts on the device's vendor; NVIDIA's for a vendor outside the fit."""
    vendors = form["prompt"]["vendors"]
    return vendors.get(accelerator.vendor) or vendors["NVIDIA"]


def arithmetic_rate(form: dict[str, Any], accelerator: Accelerator, *, wide: bool) -> float:
    """FLOP a second of products over many rows. Raises UnpredictableError for a device whose units or rates are unpublished."""
    vendor = prompt_vendor(form, accelerator)
    if wide:
        return vendor["half_share"] * _peak(accelerator)
    clocks = _clocks(accelerator)
    shape = (_peak(accelerator) / (_USUAL_FLOP * clocks)) ** vendor["peak_exponent"] if vendor["peak_exponent"] else 1.0
    return vendor["flop_per_clock"] * clocks * shape


def _clocks(accelerator: Accelerator) -> float:
    """Clocks of all units in a second."""
    if not accelerator.compute_units or not accelerator.boost_hz:
        raise _unpublished(accelerator)
    return accelerator.compute_units * accelerator.boost_hz


def _peak(accelerator: Accelerator) -> float:
    """FLOP a second in 16 bits, with sums in 16 bits where the device has them; in 32 bits on one that is older than both."""
    rates = accelerator.peak_flop_per_s
    half = max(accelerator.fp16_accumulate_flop_per_s or 0.0, rates.get("fp16", 0.0), rates.get("bf16", 0.0))
    peak = half or rates.get("fp32", 0.0)
    if not peak:
        raise _unpublished(accelerator)
    return peak


def _unpublished(accelerator: Accelerator) -> UnpredictableError:
    return UnpredictableError(
        f"{accelerator.name}: its units, clock or 16-bit rate are not published", hint="name a device that has them"
    )


def _expert_flop(arch: Architecture) -> float:
    """FLOP of one token's products in routed experts."""
    moe = arch.moe
    if moe is None:
        return 0.0
    count = count_parameters(arch)
    return 2.0 * count.experts * moe.n_active / moe.n_experts


def _expert_share(vendor: dict[str, Any], arch: Architecture, tokens: float) -> float:
    """Rate of experts relative to dense products over ``tokens`` tokens: each expert has few rows."""
    if arch.moe is None:
        return 1.0
    rows = tokens * arch.moe.n_active / arch.moe.n_experts
    return min(vendor["expert_share"] * rows / (rows + vendor["expert_rows"]), 1.0)


def row_flop(arch: Architecture, *, head: bool) -> float:
    """FLOP of one token's products; with the head's for an output token."""
    count = count_parameters(arch)
    return 2.0 * (count.active - (count.total - count.layers) + (arch.vocab * arch.hidden if head else 0))
