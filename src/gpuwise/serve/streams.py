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

A batch of ``n`` sequences reads what its tokens touch once (of experts those that skewed routing sends them to), the caches of
all, and pays for its rows; a prompt is arithmetic, and reads the weights of its tokens once a batch of 512 (``n_ubatch``):

    t(n) = (((W(n) + n s KV) / B_e)^p + (N(n) c / (u h))^p + w^p)^(1/p) + k l + r (devices - 1) + m (n - 1) 2 N / R
    prompt(q, c) = (((2 N q + 2 X q / x + attention(q, c) / s) / R)^p + (u W(q / u) / B_e)^p)^(1/p)    q tokens in u batches
    R = k u h (peak / (1024 u h))^a
    x = x0 r / (r + r0)    r rows of an expert in a batch

``c`` tokens before them, ``X`` weights of a token's experts, ``N`` its others. ``k`` and ``s`` by vendor and width of the
weights, ``a`` because tensor units that do more a clock are fed less well.
``k`` and ``a`` are of the prompts of one public table, ``m`` of llama.cpp's own batches on a DGX Spark, the rest of
:mod:`studies.serving.llama_batches`. Weights of 16 bits go through cuBLAS from a few rows on
(``ggml_cuda_mul_mat``), whose arithmetic runs beside the stream: their rows are ``w = (n - 1) 2 N / R`` (no ``m``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from gpuwise.dataclass import dataclass
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
from gpuwise.workload.blocks.kinds import attention_sizes, block_counts
from gpuwise.workload.transformer.parameters import count_parameters

READ = CacheLayout("fp16", window_everywhere=False).unpadded
"""Cache bytes read for one new token."""
_USUAL_FLOP = 1024.0
"""A clock and unit in 16 bits, from which the rate's shape is counted."""
_WIDE_BYTES = 2.0
"""A weight of 16 bits or more is not unpacked."""
_MOST = 0.97
"""Maximum share of the bandwidth left by refresh."""
_USUAL_HZ = 1.5e9
"""Clock for devices that publish none."""
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


@lru_cache(maxsize=8192)
def token_work(arch: Architecture, weights: str, context: float, sequences: int = 1) -> TokenWork:
    """The work of a token of each of ``sequences`` that hold ``context`` tokens. Raises UnknownNameError for a format."""
    return TokenWork(
        weight_bytes_read(arch, weights, tokens=sequences),
        weight_bytes_read(arch, "Q8_0", "Q8_0", tokens=sequences) / FORMATS["Q8_0"].bytes_per_weight,
        sequences * float(kv_cache_bytes(arch, context, READ)),
        _ENDS + sum(n * block.token_launches for block, n in block_counts(arch).items()),
        find_format(weights).bytes_per_weight >= _WIDE_BYTES,
    )


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

    The interval is that of the vendor's devices, or, of a vendor the fit never saw, wider by what a new family adds to the
    time of kernels bound by memory. Raises UnknownNameError for a weight format.
    """
    model = _coefficients(engine)
    time = seconds(model["form"], arch, accelerator, weights, context, n_devices)
    sigma, basis = _spread(
        model, accelerator, vendor_of(model["form"], accelerator)["log_sigma" if arch.moe is None else "experts_log_sigma"]
    )
    estimate = Estimate.from_log_sigma(time, sigma, basis)
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


def spread(accelerator: Accelerator, engine: Engine | None = None) -> tuple[float, Basis]:
    """Log standard deviation of batches and prompts on a device, and their basis."""
    model = _coefficients(engine)
    return _spread(model, accelerator, model["log_sigma"]["batch"])


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
    if accelerator.vendor != "Apple" and accelerator.compute_units and accelerator.boost_hz:
        clocks = form["clocks_per_weight"]["half" if work.wide else "quantised"]
        unpack = work.weights * clocks / (accelerator.compute_units * accelerator.boost_hz)
    power = form["overlap"]
    body = (stream**power + unpack**power + beside**power) ** (1.0 / power)
    launch_s = vendor["launch_clocks"] / (accelerator.boost_hz or _USUAL_HZ)
    return TokenTime(body, work.launches * launch_s, form["hand_over_s"] * (n_devices - 1), after)


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
    prompt = form["prompt"]
    rate = arithmetic_rate(form, accelerator, wide=find_format(weights).bytes_per_weight >= _WIDE_BYTES)
    through_experts = _expert_flop(arch) / rate
    row = row_flop(arch, head=False) / rate - through_experts
    rated = rate * prompt["attention_share"].get(accelerator.vendor, 1.0)
    wide, *_ = attention_sizes(arch)
    pair, far = (4.0 * sizes.heads * sizes.head_dim / rated for sizes in (arch, wide))
    whole, near, window = arch.n_global_layers, arch.n_attention_layers - arch.n_global_layers, arch.window or 0
    bandwidth, power = stream_rate(form, accelerator), form["overlap"]

    def of(tokens: float, before: float) -> float:
        each = before + (tokens + 1) / 2
        batches = math.ceil(tokens / batch)
        experts = through_experts / _expert_share(prompt, arch, tokens / batches)
        arithmetic = tokens * (row + experts + far * whole * each + pair * near * min(each, window))
        stream = batches * weight_bytes_read(arch, weights, tokens=max(math.ceil(tokens / batches), 1)) / bandwidth
        return (arithmetic**power + stream**power) ** (1.0 / power)

    return of


def arithmetic_rate(form: dict[str, Any], accelerator: Accelerator, *, wide: bool) -> float:
    """FLOP a second of products over many rows. Raises UnpredictableError for a device whose units or rates are unpublished."""
    peak = max(accelerator.peak_flop_per_s.get(name, 0.0) for name in ("bf16", "fp16"))
    if not accelerator.compute_units or not accelerator.boost_hz or not peak:
        raise UnpredictableError(
            f"{accelerator.name}: its units, clock or 16-bit rate are not published", hint="name a device that has them"
        )
    clocks = accelerator.compute_units * accelerator.boost_hz
    prompt = form["prompt"]
    rates = prompt["flop_per_clock"].get(accelerator.vendor) or prompt["flop_per_clock"]["NVIDIA"]
    each = rates["half" if wide else "quantised"]
    shape = 1.0 if accelerator.vendor == "Apple" else (peak / (_USUAL_FLOP * clocks)) ** prompt["peak_exponent"]
    return each * clocks * shape


def _expert_flop(arch: Architecture) -> float:
    """FLOP of one token's products in routed experts."""
    moe = arch.moe
    if moe is None:
        return 0.0
    count = count_parameters(arch)
    return 2.0 * count.experts * moe.n_active / moe.n_experts


def _expert_share(prompt: dict[str, Any], arch: Architecture, tokens: float) -> float:
    """Rate of experts relative to dense products over ``tokens`` tokens: each expert has few rows."""
    if arch.moe is None:
        return 1.0
    rows = tokens * arch.moe.n_active / arch.moe.n_experts
    return prompt["expert_share"] * rows / (rows + prompt["expert_rows"])


def row_flop(arch: Architecture, *, head: bool) -> float:
    """FLOP of one token's products; with the head's for an output token."""
    count = count_parameters(arch)
    return 2.0 * (count.active - (count.total - count.layers) + (arch.vocab * arch.hidden if head else 0))
