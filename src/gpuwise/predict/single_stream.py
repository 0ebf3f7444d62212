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

import numpy as np

from gpuwise.errors import UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.memory.kv_cache import LLAMA_CPP, kv_cache_bytes
from gpuwise.workload.transformer.parameters import count_parameters

FORMAT_BITS = {
    "F16": 16.0,
    "BF16": 16.0,
    "Q8_0": 8.5,
    "Q6_K": 6.56,
    "Q5_K_M": 5.69,
    "Q4_K_M": 4.85,
    "Q4_0": 4.55,
    "Q3_K_M": 3.91,
}
"""Bits a weight takes with its scales, mean over a Llama-3-8B file (ggml-org/llama.cpp
tools/quantize/README.md)."""


def weight_bytes_read(arch: Architecture, weights: str) -> float:
    """Bytes of weights one token reads: every parameter but the rows of the embedding it does not look up; of
    experts the active ones. Raises UnknownNameError for a format that is not in :data:`FORMAT_BITS`."""
    if weights not in FORMAT_BITS:
        raise UnknownNameError("weight format", weights, FORMAT_BITS)
    count = count_parameters(arch)
    gathered = 0 if arch.tied_embeddings else arch.vocab * arch.hidden
    read = count.total - gathered
    if arch.moe is not None:
        idle = arch.moe.n_experts - arch.moe.n_active
        read -= idle * arch.n_moe_layers * arch.moe.expert_ffn * arch.hidden * (3 if arch.gated_mlp else 2)
    return read * FORMAT_BITS[weights] / 8.0


def token_time(
    arch: Architecture, accelerator: Accelerator, weights: str, *, context: float = 1024.0, n_devices: int = 1
) -> KernelTime:
    """Seconds of one generated token [1] at ``context`` tokens in an fp16 cache, layers in turn on
    ``n_devices``."""
    model = load_json("single_stream")
    time = seconds(model["form"], arch, accelerator, weights, context, n_devices)
    seen = accelerator.id in model["measured"]
    sigma = model["log_sigma"]["known_device" if seen else "other_device"]
    basis: Basis = "fitted" if seen else "derived"
    return KernelTime(np.array([time]), np.array([sigma]), basis)


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
        clocks = form["clocks_per_byte"]["half" if FORMAT_BITS[weights] >= 16 else "quantised"]
        unpack = moved * clocks / (accelerator.compute_units * accelerator.boost_hz)
    power = form["overlap"]
    body = (stream**power + unpack**power) ** (1.0 / power)
    return body + vendor["layer_s"] * arch.n_layers + form["hand_over_s"] * (n_devices - 1)
