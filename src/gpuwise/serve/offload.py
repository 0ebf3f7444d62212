"""A model partly in the host's memory under llama.cpp: layers (``-ngl``) or experts (``--n-cpu-moe``) on the processor.

    t      = t_device(what it holds) + f t_processor(the rest) + 2 x crossings
    prompt = t_device(whole) + u bytes in the host's memory / (g P)    u batches of 512 tokens

Both take turns: a token passes from one to the other and back at each layer whose experts are on the host, once where whole
layers are. ``x`` is what a crossing costs (activations over PCIe, a wait, a start), ``f`` how much slower a processor is that
sleeps while the device works. A prompt's batches are computed on the device: what lies in the host's memory is copied over
PCIe, of whose rate ``P`` pageable memory reaches ``g``. Fitted by :mod:`studies.serving.offload_fit`
(``coefficients/processor_stream.json``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Estimate
from gpuwise.serve import processor, streams
from gpuwise.serve.engines.engine import ENGINES, LOCAL_ENGINE
from gpuwise.serve.formats import expert_bytes, expert_bytes_read, weight_bytes
from gpuwise.serve.memory import ServingMemory
from gpuwise.serve.streams import TokenWork, token_work
from gpuwise.workload.transformer.parameters import count_parameters

EXPERT_LAUNCHES = 5
"""Of the kernels of a block of experts, those that go with the experts: three products, the activation, the weighted sum."""


@dataclass(frozen=True, slots=True)
class Split:
    """What lies in the host's memory: ``layers`` whole layers, or the routed experts alone of ``expert_layers`` layers."""

    layers: int = 0
    expert_layers: int = 0


def needed_split(arch: Architecture, weights: str, memory: ServingMemory, n_devices: int) -> Split | None:
    """What goes to the host's memory so that the rest of ``memory`` (of one of ``n_devices``) fits: experts of some layers, else
    whole layers. None where the buffers alone do not fit."""
    over = (memory.total - memory.most) * n_devices
    if memory.workspace > memory.most:
        return None
    if over <= 0:
        return Split()
    experts = expert_bytes(arch, weights)
    if experts > over:
        return Split(expert_layers=math.ceil(over / (experts / arch.n_moe_layers)))
    per_layer = (memory.weights + memory.cache) * n_devices / arch.n_layers  # a layer moves with its cache
    return Split(layers=min(math.ceil(over / per_layer), arch.n_layers))


def split_bytes(arch: Architecture, weights: str, split: Split) -> float:
    """Weights in the host's memory."""
    if split.expert_layers:
        return expert_bytes(arch, weights) * split.expert_layers / arch.n_moe_layers
    return weight_bytes(arch, weights) * split.layers / arch.n_layers


@dataclass(frozen=True, slots=True)
class SplitTime:
    """Seconds of a token by who computes."""

    device_s: float
    host_s: float
    crossings_s: float

    @property
    def total_s(self) -> float:
        return self.device_s + self.host_s + self.crossings_s


def split_work(arch: Architecture, weights: str, context: float, split: Split) -> tuple[TokenWork, TokenWork]:
    """The work of a token on the device and on the host; together they are :func:`token_work`."""
    whole = token_work(arch, weights, context)
    if split.expert_layers:
        share = split.expert_layers / arch.n_moe_layers
        count = count_parameters(arch)
        active = count.active - (count.total - count.experts)
        launches = EXPERT_LAUNCHES * split.expert_layers
        host = TokenWork(expert_bytes_read(arch, weights) * share, active * share, 0.0, launches, whole.wide, whole.cache_reads)
    else:
        share = split.layers / arch.n_layers
        host = TokenWork(
            whole.weight_bytes * share,
            whole.weights * share,
            whole.cache_bytes * share,
            round(whole.launches * share),
            whole.wide,
            whole.cache_reads,
        )
    device = TokenWork(
        whole.weight_bytes - host.weight_bytes,
        whole.weights - host.weights,
        whole.cache_bytes - host.cache_bytes,
        whole.launches - host.launches,
        whole.wide,
        whole.cache_reads,
    )
    return device, host


def split_seconds(
    model: dict[str, Any],
    arch: Architecture,
    accelerator: Accelerator,
    cpu: Cpu,
    weights: str,
    split: Split,
    *,
    context: float,
    n_devices: int = 1,
) -> SplitTime:
    """Seconds of a token under the constants ``model``. Raises UnknownNameError for a format."""
    device, host = split_work(arch, weights, context, split)
    form = load_json(ENGINES[LOCAL_ENGINE].streams)["form"]
    offload = model["offload"]
    host_s = processor.overlapped(model, processor.seconds_by_part(model, cpu, host))
    crossings = 2 * (split.expert_layers or min(split.layers, 1))
    return SplitTime(
        streams.seconds_by_part(form, device, arch, accelerator, n_devices).total_s,
        offload["host_slowdown"] * host_s,
        crossings * offload["crossing_s"],
    )


def split_time(
    arch: Architecture, accelerator: Accelerator, cpu: Cpu, weights: str, split: Split, *, context: float, n_devices: int = 1
) -> Estimate:
    """Seconds of a token at ``context`` tokens. Raises UnknownNameError for a format."""
    model = load_json("processor_stream")
    time = split_seconds(model, arch, accelerator, cpu, weights, split, context=context, n_devices=n_devices)
    return Estimate.from_log_sigma(time.total_s, model["offload"]["log_sigma"], "derived").widened(arch.open_log_sigma)


def prompt_time(arch: Architecture, accelerator: Accelerator, weights: str, host_bytes: float, tokens: int) -> Estimate | None:
    """Seconds of a prompt with ``host_bytes`` of the weights in the host's memory; None for a device without a PCIe link. Raises
    UnpredictableError for one without published rates."""
    engine, offload = ENGINES[LOCAL_ENGINE], load_json("processor_stream")["offload"]
    if not accelerator.pcie_bytes_per_s:
        return None
    form = load_json(engine.streams)["form"]
    device = streams.prompt_time(form, arch, accelerator, weights, batch=engine.prompt_batch)(tokens, 0.0)
    copied = math.ceil(tokens / engine.prompt_batch) * host_bytes / (offload["pcie_share"] * accelerator.pcie_bytes_per_s)
    return Estimate.from_log_sigma(device + copied, offload["prompt_log_sigma"], "derived").widened(arch.open_log_sigma)
