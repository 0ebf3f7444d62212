"""Decode of one sequence by a program that runs quantised weights locally (llama.cpp): a stream of the
weights per token.

    t = (((W + KV) / (e B))^p + (W c / (u h))^p)^(1/p) + l n_layers + r (n - 1)

``W`` and ``KV`` bytes of weights and cache read for a token, ``B`` memory bandwidth, ``u h`` units times
clock: unpacking a quantised block is arithmetic (``c`` clocks of a unit per byte, by format), which
wide-memory devices run into first. ``l`` is the launch and dependency cost of a layer's kernels. Several
devices hold layers in turn, so that their bandwidths do not add up; ``r`` is what a hand-over between ``n``
devices costs. Fitted on one public table (``coefficients/single_stream.json``).
"""

from __future__ import annotations

from typing import Any

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, Estimate
from gpuwise.predict.memory.kv_cache import LLAMA_CPP, kv_cache_bytes
from gpuwise.serve.formats import find_format, weight_bytes_read

MOST_DEVICES = 8
"""As many as a measured run spread its layers over."""
_WIDE_BYTES = 2.0
"""A weight of 16 bits or more is not unpacked."""


def token_time(
    arch: Architecture, accelerator: Accelerator, weights: str, *, context: float = 1024.0, n_devices: int = 1
) -> Estimate:
    """Seconds of one generated token at ``context`` tokens in an fp16 cache, layers in turn on ``n_devices``.

    The interval is that of devices in the fit, of others of their vendors, or, of a vendor the fit never saw, wider by
    what a new family adds to the time of kernels bound by memory. Raises UnknownNameError for a weight format.
    """
    model = load_json("single_stream")
    time = seconds(model["form"], arch, accelerator, weights, context, n_devices)
    widths = model["log_sigma"]
    if accelerator.id in model["measured"]:
        return Estimate.from_log_sigma(time, float(widths["known_device"]), "fitted")
    sigma, basis = float(widths["other_device"]), _basis(accelerator)
    if basis == "extrapolated":
        sigma *= float(load_json("memory_bound")["log_sigma"]["new_family_factor"])
    return Estimate.from_log_sigma(time, sigma, basis)


def vendors() -> tuple[str, ...]:
    """Vendors whose devices are in the fit."""
    return tuple(load_json("single_stream")["form"]["vendors"])


def _basis(accelerator: Accelerator) -> Basis:
    return "derived" if accelerator.vendor in vendors() else "extrapolated"


def seconds(
    form: dict[str, Any],
    arch: Architecture,
    accelerator: Accelerator,
    weights: str,
    context: float,
    n_devices: int,
) -> float:
    """Seconds of a token under the constants ``form``."""
    moved = weight_bytes_read(arch, weights)
    cache = float(kv_cache_bytes(arch, context, LLAMA_CPP.unpadded))
    vendor = form["vendors"].get(accelerator.vendor, form["vendors"]["NVIDIA"])
    stream = (moved + cache) / (vendor["bandwidth_share"] * accelerator.memory_bandwidth_bytes_per_s)
    unpack = 0.0
    if accelerator.vendor != "Apple" and accelerator.compute_units and accelerator.boost_hz:
        wide = find_format(weights).bytes_per_weight >= _WIDE_BYTES
        clocks = form["clocks_per_byte"]["half" if wide else "quantised"]
        unpack = moved * clocks / (accelerator.compute_units * accelerator.boost_hz)
    power = form["overlap"]
    body = (stream**power + unpack**power) ** (1.0 / power)
    return body + vendor["layer_s"] * arch.n_layers + form["hand_over_s"] * (n_devices - 1)
