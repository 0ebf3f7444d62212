"""A program that runs quantised weights locally (llama.cpp): a token of one sequence is a stream of the weights.

    t = (((W + KV) / (e B))^p + (W c / (u h))^p)^(1/p) + l n_layers + r (n - 1)

``W`` and ``KV`` bytes of weights and cache read for a token, ``B`` memory bandwidth, ``u h`` units times
clock: unpacking a quantised block is arithmetic (``c`` clocks of a unit per byte, by format), which
wide-memory devices run into first. ``l`` is the launch and dependency cost of a layer's kernels. Several
devices hold layers in turn, so that their bandwidths do not add up; ``r`` is what a hand-over between ``n``
devices costs. Fitted on one public table (``coefficients/single_stream.json``);
where a program reads its cache slower than weights, ``KV`` is that many times more (``cache_slowdown``).

A batch of ``n`` sequences reads what its tokens touch once (of experts those that skewed routing sends them to), the caches of
all, and pays for its rows; a prompt is arithmetic, and reads the weights of its tokens once a batch of 512 (``n_ubatch``):

    t(n) = (((W(n) + n KV) / (e B))^p + (W(n) c / (u h))^p + w^p)^(1/p) + l n_layers + r (devices - 1) + m (n - 1) 2 N / R
    prompt(q, c) = (((2 N q + 2 X q / x + attention(q, c) / s) / R)^p + (u W(q / u) / (e B))^p)^(1/p)    q tokens in u batches
    R = k u h (peak / (1024 u h))^a
    x = x0 r / (r + r0)    r rows of an expert in a batch

``c`` tokens before them, ``X`` weights of a token's experts, ``N`` its others. On Apple's chips ``l`` goes with the clock and the
units. ``k`` and ``s`` by vendor and width of the weights, ``a`` because tensor units that do more a clock are fed less well.
``k`` and ``a`` are of the prompts of the same table, ``m`` of llama.cpp's own batches on a DGX Spark, the rest of
:mod:`studies.serving.llama_batches`. Weights of 16 bits go through cuBLAS from a few rows on
(``ggml_cuda_mul_mat``), whose arithmetic runs beside the stream: their rows are ``w = (n - 1) 2 N / R``, and ``m`` is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, Estimate
from gpuwise.predict.memory.kv_cache import CacheLayout, kv_cache_bytes
from gpuwise.serve.engines.engine import ENGINES, LOCAL_ENGINE, Engine
from gpuwise.serve.formats import find_format, weight_bytes_read
from gpuwise.workload.blocks.kinds import attention_sizes
from gpuwise.workload.transformer.parameters import count_parameters

READ = CacheLayout("fp16", window_everywhere=False).unpadded
"""What one new token reads of a cache."""
_USUAL_FLOP = 1024.0
"""A clock and unit in 16 bits, from which the rate's shape is counted."""
_WIDE_BYTES = 2.0
"""A weight of 16 bits or more is not unpacked."""


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

    The interval is that of devices in the fit, of others of their vendors, or, of a vendor the fit never saw, wider by
    what a new family adds to the time of kernels bound by memory. Raises UnknownNameError for a weight format.
    """
    model = _coefficients(engine)
    time = seconds(model["form"], arch, accelerator, weights, context, n_devices)
    widths = model["log_sigma"]
    if accelerator.id in model["measured"]:
        return Estimate.from_log_sigma(time, float(widths["known_device"]), "fitted")
    sigma, basis = float(widths["other_device"]), _basis(accelerator, engine)
    if basis == "extrapolated":
        sigma *= float(load_json("memory_bound")["log_sigma"]["new_family_factor"])
    return Estimate.from_log_sigma(time, sigma, basis)


def spread(accelerator: Accelerator, engine: Engine | None = None) -> tuple[float, Basis]:
    """Log standard deviation of batches and prompts on a device, and what they stand on."""
    model = _coefficients(engine)
    sigma, basis = float(model["log_sigma"]["batch"]), _basis(accelerator, engine)
    if basis == "extrapolated":
        sigma *= float(load_json("memory_bound")["log_sigma"]["new_family_factor"])
    return sigma, "fitted" if accelerator.id in model["measured"] else basis


def vendors(engine: Engine | None = None) -> tuple[str, ...]:
    """Vendors whose devices are in the fit."""
    return tuple(_coefficients(engine)["form"]["vendors"])


def _basis(accelerator: Accelerator, engine: Engine | None) -> Basis:
    return "derived" if accelerator.vendor in vendors(engine) else "extrapolated"


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
    moved = weight_bytes_read(arch, weights, tokens=sequences)
    vendor = form["vendors"].get(accelerator.vendor) or form["vendors"]["NVIDIA"]
    cache = vendor.get("cache_slowdown", 1.0) * sequences * float(kv_cache_bytes(arch, context, READ))
    stream = (moved + cache) / (vendor["bandwidth_share"] * accelerator.memory_bandwidth_bytes_per_s)
    wide = find_format(weights).bytes_per_weight >= _WIDE_BYTES
    rows = (sequences - 1) * row_flop(arch, head=True) / arithmetic_rate(form, accelerator, weights) if sequences > 1 else 0.0
    unpack = 0.0
    if accelerator.vendor != "Apple" and accelerator.compute_units and accelerator.boost_hz:
        clocks = form["clocks_per_byte"]["half" if wide else "quantised"]
        unpack = moved * clocks / (accelerator.compute_units * accelerator.boost_hz)
    power = form["overlap"]
    beside, after = (rows, 0.0) if wide else (0.0, form["prompt"]["batch_rows"] * rows)
    body = (stream**power + unpack**power + beside**power) ** (1.0 / power)
    layer_s = vendor["layer_s"]
    if "layer_hz" in vendor and accelerator.boost_hz and accelerator.compute_units:
        units = accelerator.compute_units / vendor["layer_units"]
        layer_s *= vendor["layer_hz"] / accelerator.boost_hz * units ** vendor["layer_units_exponent"]
    return body + layer_s * arch.n_layers + form["hand_over_s"] * (n_devices - 1) + after


def prompt_time(
    form: dict[str, Any], arch: Architecture, accelerator: Accelerator, weights: str, *, batch: int = Engine.prompt_batch
) -> Callable[[float, float], float]:
    """Seconds of so many tokens of a prompt that see so many earlier ones, in batches of ``batch``. Raises UnpredictableError for
    a device without published rates."""
    prompt = form["prompt"]
    rate = arithmetic_rate(form, accelerator, weights)
    through_experts = _expert_flop(arch) / rate
    row = row_flop(arch, head=False) / rate - through_experts
    rated = rate * prompt["attention_share"].get(accelerator.vendor, 1.0)
    wide, *_ = attention_sizes(arch)
    pair, far = (4.0 * sizes.heads * sizes.head_dim / rated for sizes in (arch, wide))
    whole, near, window = arch.n_global_layers, arch.n_attention_layers - arch.n_global_layers, arch.window or 0
    vendor = form["vendors"].get(accelerator.vendor) or form["vendors"]["NVIDIA"]
    bandwidth, power = vendor["bandwidth_share"] * accelerator.memory_bandwidth_bytes_per_s, form["overlap"]

    def of(tokens: float, before: float) -> float:
        each = before + (tokens + 1) / 2
        batches = math.ceil(tokens / batch)
        experts = through_experts / _expert_share(prompt, arch, tokens / batches)
        arithmetic = tokens * (row + experts + far * whole * each + pair * near * min(each, window))
        stream = batches * weight_bytes_read(arch, weights, tokens=max(math.ceil(tokens / batches), 1)) / bandwidth
        return (arithmetic**power + stream**power) ** (1.0 / power)

    return of


def arithmetic_rate(form: dict[str, Any], accelerator: Accelerator, weights: str) -> float:
    """FLOP a second of products over many rows. Raises UnpredictableError for a device whose units or rates are unpublished."""
    peak = max(accelerator.peak_flop_per_s.get(name, 0.0) for name in ("bf16", "fp16"))
    if not accelerator.compute_units or not accelerator.boost_hz or not peak:
        raise UnpredictableError(
            f"{accelerator.name}: its units, clock or 16-bit rate are not published", hint="name a device that has them"
        )
    clocks = accelerator.compute_units * accelerator.boost_hz
    prompt = form["prompt"]
    wide = find_format(weights).bytes_per_weight >= _WIDE_BYTES
    rates = prompt["flop_per_clock"].get(accelerator.vendor) or prompt["flop_per_clock"]["NVIDIA"]
    each = rates["half" if wide else "quantised"]
    shape = 1.0 if accelerator.vendor == "Apple" else (peak / (_USUAL_FLOP * clocks)) ** prompt["peak_exponent"]
    return each * clocks * shape


def _expert_flop(arch: Architecture) -> float:
    """Of one token's products in routed experts."""
    moe = arch.moe
    if moe is None:
        return 0.0
    count = count_parameters(arch)
    return 2.0 * count.experts * moe.n_active / moe.n_experts


def _expert_share(prompt: dict[str, Any], arch: Architecture, tokens: float) -> float:
    """Of the rate of dense products, what experts reach over ``tokens`` tokens: each has few rows."""
    if arch.moe is None:
        return 1.0
    rows = tokens * arch.moe.n_active / arch.moe.n_experts
    return prompt["expert_share"] * rows / (rows + prompt["expert_rows"])


def row_flop(arch: Architecture, *, head: bool) -> float:
    """Of one token's products; with the head's where a token is written."""
    count = count_parameters(arch)
    return 2.0 * (count.active - (count.total - count.layers) + (arch.vocab * arch.hidden if head else 0))
